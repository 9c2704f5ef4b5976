"""What version 0.1 had under other names imports as before, with a warning that says where it is."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.drifting import Counter, Drift
from wmrl_gym.corrections import AnchorSchedule
from wmrl_gym.engine.episodes import Episodes
from wmrl_gym.moved import MODULES
from wmrl_gym.wrappers import OnlineDebiasing, WorldModelWrapper
from wmrl_gym.wrappers.vector import OnlineDebiasing as VectorOnlineDebiasing
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


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


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("engine.options", "Cost", "engine.ledger.Cost"),
        ("envs.autoresearch.reply", "Reply", "envs.autoresearch.reply.ParsedReply"),
        ("envs.autoresearch.tasks.peers", "Layout", "envs.autoresearch.tasks.peers.CompetitionLayout"),
        ("study.evaluation", "Grade", "study.evaluation.GradedEpisode"),
        ("world_models.dynamics.ensemble", "Rows", "world_models.dynamics.ensemble.MemberRows"),
        ("world_models.dynamics.prediction", "Outcome", "world_models.dynamics.prediction.StepOutcome"),
        ("world_models.outcome.forests", "Calibration", "world_models.outcome.forests.StatusCalibration"),
        ("world_models.sentence_encoders", "SentenceEncoder", "world_models.sentence_encoders.SentenceEmbedder"),
    ],
)
def test_an_old_name_in_a_module_is_the_class_of_today(module: str, old: str, new: str) -> None:
    place, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"wmrl_gym.{module}.{old} is wmrl_gym.{new} now"):
        found = getattr(importlib.import_module(f"wmrl_gym.{module}"), old)
    assert found is vars(importlib.import_module(f"wmrl_gym.{place}"))[name]
    with pytest.raises(AttributeError, match="never_was"):
        _ = importlib.import_module(f"wmrl_gym.{module}").never_was


def test_the_correction_of_a_wrapper_is_found_under_its_old_name() -> None:
    single = OnlineDebiasing(WorldModelWrapper(Counter(), Drift()))
    vector = VectorOnlineDebiasing(WorldModelVectorEnv(Counter, Drift(), num_envs=2))
    for env in (single, vector):
        with pytest.warns(DeprecationWarning, match=r"core is called OnlineDebiasing\.correction now"):
            assert env.core is env.correction
        env.close()


def test_episodes_saved_by_version_0_1_are_read() -> None:
    saved, resumed = (Episodes(AnchorSchedule(0.5), num_slots=3) for _ in range(2))
    saved.is_real[:] = [True, False, True]
    state = saved.state_dict()
    state["arrays"]["opened"] = state["arrays"].pop("is_real")
    resumed.load_state_dict(state)
    assert resumed.is_real.tolist() == [True, False, True]


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("wmrl_gym.wrappers.never_was")
