"""Which corrections a preset puts around a world model, and what is saved of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from tests.bandit import Bandit
from tests.drifting import Drift, inflated
from wmrl_gym import wrappers
from wmrl_gym.corrections import ContextualCalibration
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel
from wmrl_gym.wrappers import diagnostics, vector, world_model_parts
from wmrl_gym.wrappers.base import Correction


def corrections(env: Any) -> tuple[Correction, ...]:
    parts = world_model_parts(env)
    assert parts is not None
    return parts.corrections


def is_contextual(env: Any) -> bool:
    parts = world_model_parts(env)
    assert parts is not None
    assert parts.debiasing is not None
    chosen = isinstance(parts.debiasing.calibration, ContextualCalibration)
    assert diagnostics(env)["debias/contextual"] == float(chosen)
    return chosen


def vectors(preset: Any = "recommended", *, seed: int = 0) -> Any:
    bandit = Bandit()
    return vector.corrected(bandit, inflated(bandit), num_envs=4, preset=preset, anchors=0.3, update_every=0, seed=seed)


def play(envs: Any, steps: int, *, begin: bool = True) -> list[np.ndarray[Any, Any]]:
    if begin:
        envs.reset(seed=0)
    rng = np.random.default_rng(steps)
    return [envs.step(rng.integers(0, 4, (4, 2)))[1] for _ in range(steps)]


def test_where_attempts_have_features_the_recommended_one_knows_what_was_done() -> None:
    assert is_contextual(vectors())
    assert [each.name for each in corrections(vectors())] == ["OnlineDebiasing", "ResidualCorrection"]
    assert is_contextual(wrappers.corrected(FactoredEnv(Bandit()), OutcomeModel()))
    for one, other in zip(play(vectors(), 90), play(vectors("contextual"), 90), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["wmrl/AutoResearchDesign-v0", "wmrl/AutoResearch-v0"])
def test_tasks_with_code_have_features_by_their_ids_too(name: str) -> None:
    options: dict[str, Any] = {"task": "diabetes", "world_model": OutcomeModel(), "preset": "recommended"}
    with gym.make(name, **options) as env:
        assert is_contextual(env)
    envs = gym.make_vec(name, num_envs=2, **options)
    assert is_contextual(envs)
    envs.close()


def test_elsewhere_it_is_the_smooth_one() -> None:
    assert not is_contextual(wrappers.corrected(gym.make("CartPole-v1"), EnsembleDynamics()))
    envs = vector.corrected("CartPole-v1", EnsembleDynamics(), num_envs=2, preset="recommended")
    assert not is_contextual(envs)
    envs.close()


def test_a_model_of_whole_steps_around_a_factored_environment_describes_no_attempts() -> None:
    env = wrappers.corrected(FactoredEnv(Bandit()), Drift(step=0.0), pairs="open_loop")
    assert not is_contextual(env)
    env.reset(seed=0)
    env.step(np.array([1, 2]))


def test_the_former_recommended_one_has_a_name_of_its_own() -> None:
    assert not is_contextual(vectors("smooth"))
    assert [each.name for each in corrections(vectors("smooth"))] == ["OnlineDebiasing", "ResidualCorrection"]
    by_hand = vector.WorldModelVectorEnv(
        Bandit(), inflated(Bandit()), num_envs=4, anchors=0.3, update_every=0, seed=0, group_size=1
    )
    by_hand = vector.ResidualCorrection(vector.OnlineDebiasing(by_hand, "smooth"), 0.5)  # type: ignore[assignment]
    for one, other in zip(play(vectors("smooth"), 90), play(by_hand, 90), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_the_former_recommended_one_saved_is_refused_whole_and_taken_by_smooth() -> None:
    before = vectors("smooth")
    play(before, 60)
    states = [each.state_dict() for each in corrections(before)]
    renamed = vectors("recommended")
    untouched = corrections(renamed)[0].state_dict()
    with pytest.raises(ValueError, match=r'saved with a smooth or binned calibration.*is called "smooth"'):
        corrections(renamed)[0].load_state_dict(states[0])
    np.testing.assert_equal(corrections(renamed)[0].state_dict(), untouched)
    same = vectors("smooth")
    for each, state in zip(corrections(same), states, strict=True):
        each.load_state_dict(state)
    assert diagnostics(same)["debias/pairs"] == diagnostics(before)["debias/pairs"] > 0
    known = vectors("contextual")
    play(known, 60)
    with pytest.raises(ValueError, match="saved with a contextual calibration"):
        corrections(same)[0].load_state_dict(corrections(known)[0].state_dict())


def test_a_preset_that_is_none_is_named_with_all_that_are() -> None:
    with pytest.raises(ValueError, match="'contextual', 'debias', 'denoise', 'paper', 'recommended', 'smooth'"):
        vectors("magic")
