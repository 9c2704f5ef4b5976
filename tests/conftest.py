"""What the tests of several sandboxes share."""

from __future__ import annotations

from pathlib import Path

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
