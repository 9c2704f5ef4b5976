"""Sandboxes that many tests share: starting one costs more than using it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wmrl_gym.sandbox import LocalSandbox


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
