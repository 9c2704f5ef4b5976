"""A small task, and the logic that its rollouts share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchText


@pytest.fixture(scope="session")
def small_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rows to predict."""
    return write_small_task(tmp_path_factory.mktemp("tasks") / "small", metric="rmse", kind="regression", larger_is_better=False)


@pytest.fixture(scope="session")
def logic(small_task: Path) -> Iterator[AutoResearchText]:
    """The task, with a sandbox of two workers."""
    made = AutoResearchText(small_task, workers=2, max_turns=3)
    yield made
    made.close()
