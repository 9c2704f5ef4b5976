"""Input that is none is named before it does harm: actions, models, options, observations that are not finite."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from tests.wrappers.goal import Goal, cart_pole
from tests.wrappers.nothing import Nothing
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers import (
    WorldModelWrapper,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (np.array([np.nan], np.float32), "action must be finite"),
        (np.zeros(2, np.float32), r"action must be in Box.*, got float32 of shape \(2,\)"),
        ("left", "action must be in Box"),
    ],
)
def test_an_action_that_is_none_is_named_before_the_model_sees_it(action: Any, what: str) -> None:
    env = WorldModelWrapper(gym.make("Pendulum-v1"), Nothing(), anchors=0.0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=what):
        env.step(action)
    discrete = WorldModelWrapper(cart_pole(), Nothing(), anchors=0.0)
    discrete.reset(seed=0)
    with pytest.raises(ValueError, match="action must be in Discrete"):
        discrete.step(7)
    envs = WorldModelVectorEnv("Pendulum-v1", Nothing(), num_envs=2, anchors=0.0)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="actions must be"):
        envs.step(np.full((2, 1), np.nan, np.float32))
    envs.close()


def test_a_model_that_is_none_or_bound_to_other_spaces_is_named() -> None:
    with pytest.raises(TypeError, match="model must be a WorldModel, got PPO"):
        WorldModelWrapper(cart_pole(), type("PPO", (), {})())
    with pytest.raises(TypeError, match="the class Nothing: call it first"):
        WorldModelWrapper(cart_pole(), Nothing)  # type: ignore[arg-type]
    model = EnsembleDynamics(hidden=(8,))
    WorldModelWrapper(cart_pole(), model)
    with pytest.raises(ValueError, match="model is bound to an environment whose observation_space"):
        WorldModelWrapper(gym.make("Pendulum-v1"), model)
    with pytest.raises(TypeError, match="WorldModelWrapper has no argument 'anchor'; its options are anchors"):
        WorldModelWrapper(cart_pole(), Nothing(), anchor=0.1)


def test_a_step_whose_observation_is_not_finite_ends_the_episode_as_unknown() -> None:
    env = WorldModelWrapper(Goal(breaks_at=3), Nothing(), anchors=1.0)
    env.reset(seed=0)
    before = [env.step(2) for _ in range(2)][-1][0]
    observation, reward, terminated, truncated, info = env.step(2)
    np.testing.assert_array_equal(observation, before)
    assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, True, False)
    assert "real_reward" not in info
    assert (len(env.engine.buffer), len(env.engine.stream)) == (2, 2)
    assert (env.stats()["cost/skipped"], env.stats()["anchors/unknown"]) == (1, 1)
    env.reset()
    assert env.step(2)[4]["reward_valid"]


def test_a_start_that_is_not_finite_is_left_out() -> None:
    class Broken(Goal):
        resets = 0

        def reset(self, **options: Any) -> Any:
            seen, info = super().reset(**options)
            self.resets += 1
            return (seen * np.nan if self.resets == 1 else seen), info

    env = WorldModelWrapper(Broken(), Nothing(), anchors=1.0)
    assert np.isfinite(env.reset(seed=0)[0]).all()
    assert env.stats()["cost/skipped"] == 1


def test_a_run_that_may_never_imagine_says_so_at_once() -> None:
    class Endless(Goal):
        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 0.0, False, False, {}

    env = WorldModelWrapper(Endless(), EnsembleDynamics(hidden=(8,)), anchors=0.0, max_model_steps=10)
    with pytest.warns(UserWarning, match="no time limit"):
        env.reset(seed=0)
    anchored = WorldModelWrapper(Endless(), Nothing(), anchors=1.0)
    anchored.reset(seed=0)
    for _ in range(999):
        anchored.step(2)
    with pytest.warns(UserWarning, match="a real episode has gone on for 1,000 steps"):
        anchored.step(2)
    limited = WorldModelWrapper(Endless(), EnsembleDynamics(hidden=(8,)), anchors=0.0, max_model_steps=10, max_episode_steps=3)
    limited.reset(seed=0)
    assert [limited.step(2)[3] for _ in range(3)] == [False, False, True]


def test_a_run_that_another_version_saved_is_refused_before_anything_changes() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Nothing(), anchors=0.0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    state = env.state_dict()
    old = {**state, "engine": {name: value for name, value in state["engine"].items() if name != "format"}}
    with pytest.raises(ValueError, match="this state of a run has the format 1, expected 2"):
        env.load_state_dict(old)
    assert env.step(0)[4]["depth"] == 4
    env.load_state_dict(state)
    assert env.step(0)[4]["depth"] == 4
