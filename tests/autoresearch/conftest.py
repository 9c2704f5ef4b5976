"""What the tests of AutoResearch share: one warm sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wmrl_gym.sandbox import Sandbox, make_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Two warm workers."""
    opened = make_sandbox("local", workers=2)
    yield opened
    opened.close()
