"""Rollouts kept as arrays: which steps may be learnt from, and what late truths are worth."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from wmrl_gym.integrations import arrays
from wmrl_gym.wrappers import step_info
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected


def rollout(envs: Any, steps: int) -> tuple[Any, Any, Any]:
    """Rewards, validity and the pairs that are waited for, under random actions: each of shape (steps, num_envs)."""
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(steps):
        _, reward, terminated, truncated, infos = envs.step(rng.integers(0, 4, (envs.num_envs, 2)))
        info = step_info(infos, terminated | truncated)
        rows.append((reward, info["reward_valid"], np.where(np.isfinite(info["real_reward"]), -1, info["pair"])))
    rewards, valid, pairs = (np.stack(column) for column in zip(*rows, strict=True))
    return rewards, valid, pairs


def background(bandit: Bandit, **options: Any) -> Any:
    settings = {"num_envs": 16, "anchors": 0.5, "anchor_mode": "background", "update_every": 0, "autoreset_mode": "SameStep"}
    return corrected(bandit, fitted(Bandit()), **(settings | options))


def test_each_truth_takes_its_rewards_place_where_nothing_else_is_said() -> None:
    envs = WorldModelVectorEnv(
        Bandit(), fitted(Bandit()), num_envs=16, anchors=0.5, anchor_mode="background", update_every=0, autoreset_mode="SameStep"
    )
    late = arrays.LateTruths(envs)
    rewards, valid, pairs = rollout(envs, 3)
    late.join(rewards, valid, pairs=pairs)
    collected, _ = envs.engine.stream.since(0)
    truths = dict(zip(collected.pair.tolist(), collected.real.tolist(), strict=True))
    waiting = pairs[pairs >= 0]
    assert late.arrived == len(waiting) > 0
    np.testing.assert_array_equal(rewards[pairs >= 0], [truths[int(pair)] for pair in waiting])
    assert valid.all()
    envs.close()


def test_a_truth_that_does_not_arrive_leaves_its_step_unknown() -> None:
    envs = background(Bandit(crash=2), late=True, anchors=0.6)
    late = arrays.LateTruths(envs)

    def collect() -> tuple[Any, Any]:
        rewards, valid, pairs = rollout(envs, 3)
        late.join(rewards, valid, pairs=pairs)
        return valid, pairs

    with pytest.warns(UserWarning, match="counts as unknown"):
        valid, pairs = collect()
    assert late.missing == int((~valid).sum()) > 0
    assert late.arrived > 0
    assert (pairs[~valid] >= 0).all()
    envs.close()


def test_what_has_no_late_truths_is_refused() -> None:
    with pytest.raises(TypeError, match="blocking ones need no joining"):
        arrays.LateTruths(corrected("CartPole-v1", Drift(), num_envs=2))
    with pytest.raises(TypeError, match="has none"):
        arrays.LateTruths(gym.make("CartPole-v1"))


def test_arrays_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape, got \(3,\) and \(2,\)"):
        arrays.known_to_the_end(np.ones(3, bool), np.ones(2, bool))
    envs = background(Bandit(), late=True)
    with pytest.raises(ValueError, match="one shape"):
        arrays.LateTruths(envs).join(np.zeros(3), np.ones(3, bool), pairs=np.zeros(2, np.int64))
    envs.close()
