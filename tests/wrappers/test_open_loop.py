"""Where states are predicted from predicted states, errors compound, and calibration knows the depth."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import Drift
from tests.exploitable import Spiked
from wmrl_gym.world_models import Prediction
from wmrl_gym.wrappers.vector import OnlineDebiasing, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


class Walk(gym.Env[Any, Any]):
    """Walks by its action for 16 steps; each step pays how far it is from the start."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps = np.zeros(1, np.float32), 0
        return self.at.copy(), {}

    def step(self, action: Any) -> Any:
        self.at = self.at + np.asarray(action, np.float32)
        self.steps += 1
        return self.at.copy(), float(self.at[0]), False, self.steps == 16, {}


class TooFar(Drift):
    """Believes that each step goes 10% too far: small at first, and it adds up."""

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        after = (state + 0.05 + np.asarray(action)).astype(np.float32)
        n = len(after)
        yes, no = np.ones(n, bool), np.zeros(n, bool)
        return after, Prediction(after, after[:, 0].astype(float), np.full(n, np.nan), no, no, yes, yes)


def walked(pairs: Any, *, mode: Any = "blocking") -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The stack after a run, and of its last imagined episodes the errors of the raw and of the calibrated rewards, by depth."""
    envs = WorldModelVectorEnv(
        Walk,
        TooFar(),
        num_envs=16,
        anchors=0.5,
        pairs=pairs,
        anchor_mode=mode,
        max_model_steps=16,
        autoreset_mode=SAME,
        seed=0,
        max_real=2,
    )
    stack = OnlineDebiasing(envs, reward_range=(-12.0, 12.0))
    stack.reset(seed=0)
    rng = np.random.default_rng(0)
    raw, after = np.zeros((2, 16, 16))
    truth = np.zeros(16)
    for step in range(16 * 20):
        if mode == "background":
            envs.engine.wait(60)
        action = rng.uniform(-0.5, 0.5, (16, 1)).astype(np.float32)
        depth = step % 16
        truth = action[:, 0] + (truth if depth else 0.0)
        _, _, terminated, truncated, infos = stack.step(action)
        rows = infos["final_info"] if (terminated | truncated).any() else infos
        raw[depth], after[depth] = rows["wm_reward"] - truth, rows["calibrated_reward"] - truth
    return stack, raw, after


@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_errors_that_grow_with_depth_are_taken_out_at_each_depth(mode: Any) -> None:
    stack, raw, after = walked("open_loop", mode=mode)
    assert raw[15].mean() > 0.6  # 16 steps of 0.05
    assert np.abs(after.mean(axis=1))[[1, 3, 7, 15]].max() < 0.3
    assert np.abs(after.mean(axis=1)).mean() < 0.4 * np.abs(raw.mean(axis=1)).mean()
    stack.close()


def test_pairs_keep_the_depth_and_classes_double() -> None:
    stack, _, _ = walked("open_loop")
    pairs, _ = stack.correction.stream.since(0)
    assert set(pairs.step) == set(range(1, 17))
    labels = stack.correction.contexts(np.zeros(16, np.int64), np.arange(1, 17))
    assert [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)] == [
        [0],
        [1, 2],
        [3, 4, 5, 6],
        [7, 8, 9, 10, 11, 12, 13, 14],
        [15],
    ]
    assert (pairs.context == 0).all()  # the task is the task
    stack.close()


def test_teacher_forced_pairs_have_no_depth_and_factored_environments_none_either() -> None:
    stack, _, _ = walked("teacher_forced")
    assert not stack.unwrapped.engine.by_depth  # type: ignore[attr-defined]
    stack.close()
    bandit = Bandit()
    envs = WorldModelVectorEnv(bandit, Spiked(bandit), num_envs=2, anchor_mode="background")
    assert not envs.engine.by_depth
    envs.close()
