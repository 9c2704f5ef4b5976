"""What the ``wmrl`` command does: a module for each subcommand, with ``add(commands)`` and what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console() -> Console:
    """A console that prints users' words as they are: rich would take ``[sb3]`` for markup and ``:car:`` for a picture."""
    from rich.console import Console

    return Console(markup=False, emoji=False)
