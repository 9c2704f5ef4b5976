"""What version 0.1 had under other names imports as before, with a warning that says where it is."""

from __future__ import annotations

import importlib
import sys

import pytest

from wmrl_gym.moved import MODULES


@pytest.mark.parametrize("old", sorted(MODULES))
def test_an_old_name_is_the_module_of_today(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {MODULES[old]} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MODULES[old])
    assert module.__name__ == module.__spec__.name == MODULES[old]  # type: ignore[union-attr]


def test_names_that_were_public_in_modules_that_are_packages_now() -> None:
    from wmrl_gym.world_models.dynamics import EnsembleDynamics
    from wmrl_gym.world_models.llm import LLMWorldModel
    from wmrl_gym.world_models.outcome import OutcomeModel
    from wmrl_gym.world_models.progress import ProgressModel

    classes = (EnsembleDynamics, LLMWorldModel, OutcomeModel, ProgressModel)
    assert [each.__name__ for each in classes] == ["EnsembleDynamics", "LLMWorldModel", "OutcomeModel", "ProgressModel"]


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("wmrl_gym.wrappers.never_was")
