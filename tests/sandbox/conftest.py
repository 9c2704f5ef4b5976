"""Sandboxes that many tests share: starting one costs more than using it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wmrl_gym.sandbox import Limits, LocalSandbox


@pytest.fixture(scope="session")
def limits() -> Limits:
    """Limits that nothing on a busy machine reaches by accident."""
    return Limits(wall_s=60, cpu_s=60)


@pytest.fixture(scope="session")
def warm() -> Iterator[LocalSandbox]:
    """A warm sandbox with one worker."""
    with LocalSandbox(preimport=()) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def cold() -> Iterator[LocalSandbox]:
    """A sandbox that starts an interpreter for every run."""
    with LocalSandbox(warm=False) as sandbox:
        yield sandbox


@pytest.fixture(params=["warm", "cold"])
def sandbox(request: pytest.FixtureRequest) -> LocalSandbox:
    """Each kind of isolated sandbox in turn."""
    chosen: LocalSandbox = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task folder: ``public/`` for the sandbox, ``private/`` beside it with the answers."""
    for folder, name, content in (("public", "train.csv", "id,y\n1,2\n"), ("private", "answers.csv", "id,y\n3,SECRET-ANSWER\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    return tmp_path
