"""Fixtures that the tests of AutoResearch share: a cache of their own, and one warm sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wmrl_gym.sandbox import Sandbox, make_sandbox


@pytest.fixture(scope="session", autouse=True)
def task_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Embedded tasks are written here and not into the user's cache."""
    home = tmp_path_factory.mktemp("wmrl-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WMRL_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Two warm workers."""
    opened = make_sandbox("local", workers=2)
    yield opened
    opened.close()
