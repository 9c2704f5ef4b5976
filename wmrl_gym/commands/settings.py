"""What several subcommands take: ``--set KEY=VALUE``, and a folder that one of them writes at a time."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wmrl_gym.files import OUT, locked, writing


def settings_of(given: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts as arguments; a value that is not JSON is a text.

    Raises:
        ValueError: a text without ``=``.

    >>> settings_of(["hidden=[64, 64]", "propagation=ts_inf"])
    {'hidden': [64, 64], 'propagation': 'ts_inf'}
    """
    settings: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, got {setting!r}")
        try:
            settings[key] = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            settings[key] = value
    return settings


def remove_results(folder: Path, *, marker: str) -> None:
    """Remove what a command has written in a folder, so that it begins anew there; nothing where there is no folder.

    Args:
        folder: it.
        marker: the file that says that a folder is the command's.

    Raises:
        ValueError: the folder holds something else.
    """
    if folder.exists():
        if not (folder / marker).is_file():
            raise ValueError(f"{folder} does not look like results of this command: remove it by hand")
        shutil.rmtree(folder)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Be the only command that writes in a folder, which is made; wait for another one that does.

    Raises:
        CannotWrite: the folder cannot be written.
    """

    def waiting() -> None:
        print(f"another command writes in {folder}: waiting for it to end", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        with writing(folder, advice=OUT):
            stack.enter_context(locked(folder, waiting=waiting))
        yield
