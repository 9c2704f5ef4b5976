"""What the tests of several folders share."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from wmrl_gym.sandbox import Limits


@pytest.fixture(scope="session")
def limits() -> Limits:
    """Limits that nothing on a busy machine reaches by accident."""
    return Limits(wall_s=60, cpu_s=60)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task folder: ``public/`` for the sandbox, ``private/`` beside it with the answers."""
    for folder, name, content in (("public", "train.csv", "id,y\n1,2\n"), ("private", "answers.csv", "id,y\n3,SECRET-ANSWER\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes, as ``subprocess.Popen`` does, that end with the test whether it passes or fails."""
    begun: list[subprocess.Popen[str]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
        begun.append(subprocess.Popen(command, text=True, start_new_session=True, **options))
        return begun[-1]

    yield popen
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
