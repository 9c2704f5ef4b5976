"""What every test shares, doctests included."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadline: a test must not fail because the machine is busy. Where CI is set, the same examples each time.
settings.register_profile("wmrl", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("wmrl")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests write tasks to a cache of their own, never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WMRL_HOME", str(tmp_path_factory.mktemp("wmrl-home")))
        yield
