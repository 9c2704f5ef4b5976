"""Schedules by uncertainty are told how uncertain a start is."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import Drift
from tests.exploitable import Spiked
from wmrl_gym.corrections import UncertaintySchedule
from wmrl_gym.engine.starts import StartUncertainty
from wmrl_gym.world_models import Prediction
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


class UnsureOfTask(Spiked):
    """Knows two tasks well, and task 2 badly; ``says`` whether it knows that."""

    def __init__(self, bandit: Bandit, *, says: bool) -> None:
        super().__init__(bandit, noise=0.0)
        self.says = says

    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        after, prediction = super().step(state, action, rng)
        std = np.where(state.task == 2, 0.2, 0.02)
        prediction.reward[:] = np.clip(prediction.reward + std * rng.standard_normal(len(std)), 0, 1) * prediction.reward_due
        prediction.reward_std[:] = std if self.says else 0.05
        return after, prediction


def shares(says: bool, uncertainty: Any, *, max_turns: int = 1, single: bool = False) -> np.ndarray[Any, Any]:
    """The mean propensity of each task's episodes, late in a run."""
    bandit = Bandit(max_turns=max_turns)
    envs = WorldModelVectorEnv(
        bandit,
        UnsureOfTask(bandit, says=says),
        num_envs=32,
        anchors=UncertaintySchedule(0.2),
        uncertainty=uncertainty,
        update_every=0,
        autoreset_mode=SAME,
        max_real=2,
    )
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    told = []
    for _ in range(40 * max_turns):
        *_, infos = envs.step(np.stack([rng.integers(1, 3, 32), rng.integers(0, 4, 32)], axis=1))
        told.append((infos["context"].copy(), infos["propensity"].copy()))
    envs.close()
    context, propensity = (np.concatenate(column) for column in zip(*told[20 * max_turns :], strict=True))
    return np.array([propensity[context == task].mean() for task in range(3)])


@pytest.mark.parametrize("max_turns", [1, 2], ids=["probed at the start", "by the task's running mean"])
def test_what_the_model_says_of_a_start_decides(max_turns: int) -> None:
    share = shares(True, "model", max_turns=max_turns)
    assert share[2] > 3 * share[:2].max()
    assert (share > 0).all()


def test_measured_disagreement_finds_what_the_model_does_not_know_of_itself() -> None:
    share = shares(False, "disagreement")
    assert share[2] > 3 * share[:2].max()
    np.testing.assert_allclose(shares(False, "model"), 0.2, atol=1e-6)


def test_inverse_propensities_keep_the_corrected_reward_that_of_all_episodes() -> None:
    bandit = Bandit(max_turns=1)
    envs = WorldModelVectorEnv(
        bandit,
        UnsureOfTask(bandit, says=True),
        num_envs=64,
        anchors=UncertaintySchedule(0.3),
        update_every=0,
        autoreset_mode=SAME,
        max_real=2,
    )
    stack = ResidualCorrection(OnlineDebiasing(envs), 1.0, max_gain=100.0)
    stack.reset(seed=0)
    rng = np.random.default_rng(0)
    paid, true = [], []
    for step in range(150):
        # A model that is as good as random on task 2, paid for designs that are bad there.
        action = np.full((64, 2), 3) if step % 2 else np.stack([rng.integers(1, 3, 64), rng.integers(0, 4, 64)], axis=1)
        context = stack.unwrapped.engine.episodes.context.copy()  # type: ignore[attr-defined]
        _, reward, *_ = stack.step(action)
        value = 0.5 + 0.5 * bandit.quality[context, action[:, 0], action[:, 1]]
        true.append(np.where(action[:, 0] == 3, 0.1, value))
        paid.append(reward)
    error = np.concatenate(paid) - np.concatenate(true)
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(error.size)
    stack.close()


def test_a_run_by_uncertainty_stopped_and_resumed_equals_one_never_stopped() -> None:
    def make() -> Any:
        bandit = Bandit(max_turns=2)
        schedule = UncertaintySchedule(0.3, group_size=2)
        model = UnsureOfTask(bandit, says=True)
        return WorldModelVectorEnv(bandit, model, num_envs=6, anchors=schedule, update_every=0, autoreset_mode=SAME, seed=0)

    actions = np.random.default_rng(0).integers(1, 3, (60, 6, 2))
    first, second = make(), make()
    first.reset(seed=3)
    second.reset(seed=4)
    for each in actions[:31]:
        first.step(each)
    second.load_state_dict(first.state_dict())
    for each in actions[31:]:
        *_, expected = first.step(each)
        *_, actual = second.step(each)
        np.testing.assert_array_equal(expected["propensity"], actual["propensity"])
        np.testing.assert_array_equal(expected["anchor"], actual["anchor"])
    first.close()
    second.close()


def test_one_environment_has_starts_as_uncertain_as_the_model_says() -> None:
    class Far(Drift):
        """Sure near the middle of the track only."""

        def step(self, state: Any, action: Any, rng: Any) -> Any:
            after, prediction = super().step(state, action, rng)
            prediction.reward_std[:] = 0.01 + np.abs(state[:, 0])
            return after, prediction

    env = WorldModelWrapper(gym.make("CartPole-v1"), Far(), anchors=UncertaintySchedule(0.2), seed=0)
    starts, chances = [], []
    for episode in range(60):
        observation, info = env.reset(seed=0 if episode == 0 else None)
        starts.append(abs(observation[0]))
        chances.append(info["propensity"])
    assert np.corrcoef(starts[10:], chances[10:])[0, 1] > 0.8


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="uncertainty must be one of 'model', 'disagreement', got 'magic'"):
        StartUncertainty("magic")  # type: ignore[arg-type]
