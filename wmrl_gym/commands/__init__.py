"""What the ``wmrl`` command does: a module for each subcommand, with ``add(commands)`` and what it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST = 1_000
"""Characters of an error that are printed."""


def complain(command: str, error: BaseException) -> int:
    """Print an error in one line, however long what it quotes is; returns the exit status."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    print(f"wmrl {command}: {text}", file=sys.stderr)
    return 2


def plain_console() -> Console:
    """A console that prints users' words as they are: rich would take ``[sb3]`` for markup and ``:car:`` for a picture."""
    from rich.console import Console

    return Console(markup=False, emoji=False)
