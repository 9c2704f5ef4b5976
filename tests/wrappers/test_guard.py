"""A policy that climbs towards the model's mistakes is caught."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from tests.bandit import Bandit
from tests.drifting import Counter, Drift
from tests.exploitable import Spiked, exploit
from wmrl_gym.wrappers import OnlineDebiasing as Single
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


@pytest.mark.parametrize("options", [{}, {"anchor_mode": "background"}], ids=["blocking", "background"])
def test_an_exploitable_model_is_caught_and_costs_few_executions(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="the world model seems to harm"):
        naive, plain_executed, _ = exploit(pessimism=None, seed=2, **options)
    guarded, executed, said = exploit(pessimism=1.0, seed=2, **options)
    assert naive < 0.45  # the policy has found what the model overrates
    assert guarded > 0.64  # the best is 0.68
    assert said["guard/verified"] >= 1
    assert executed - plain_executed <= 64  # of 12,800 episodes


def test_without_a_guard_nothing_is_logged_nor_verified() -> None:
    bandit = Bandit(max_turns=1)
    envs = WorldModelVectorEnv(bandit, Spiked(bandit), num_envs=4, anchors=0.0, update_every=0)
    stack = OnlineDebiasing(envs)
    stack.reset(seed=0)
    stack.step(np.full((4, 2), 3))
    assert envs.engine.verification is None
    assert bandit.executed == 0
    assert "guard/verified" not in stack.stats()


def trained(bandit: Bandit, **options: Any) -> tuple[Any, Any]:
    """A stack whose guard has seen honest anchors, at the point where the spike is tried for the first time."""
    envs = WorldModelVectorEnv(
        bandit, Spiked(bandit), num_envs=8, max_real=2, anchors=0.5, update_every=0, autoreset_mode=SAME, **options
    )
    stack = OnlineDebiasing(envs, pessimism=1.0)
    stack.reset(seed=0)
    rng = np.random.default_rng(0)
    while not stack.correction.guard.ready:
        stack.step(np.stack([rng.integers(1, 3, 8), rng.integers(0, 4, 8)], axis=1))
    return envs, stack


def test_the_highest_unconfirmed_are_executed_as_far_as_there_is_room_and_paid_their_truth() -> None:
    bandit = Bandit(max_turns=1)
    envs, stack = trained(bandit)
    before, pairs = bandit.executed, envs.engine.stream.added
    _, reward, *_, infos = stack.step(np.full((8, 2), 3))
    final = infos["final_info"]
    imagined = np.flatnonzero(np.isnan(final["real_reward"]))
    verified = np.isfinite(final["real_reward"])
    anchors = bandit.executed - before
    assert verified.sum() == anchors <= 8
    assert final["anchor"][verified].all()
    np.testing.assert_array_equal(final["propensity"][verified], 1.0)
    np.testing.assert_allclose(reward[verified], 0.1)
    assert (reward[imagined] < 0.9).all()  # unconfirmed, and not believed
    assert envs.engine.stream.added == pairs + anchors
    stack.close()


def test_a_residual_above_pays_the_truth_of_what_was_executed_for_its_prediction() -> None:
    bandit = Bandit(max_turns=1)
    envs = WorldModelVectorEnv(bandit, Spiked(bandit), num_envs=8, max_real=8, anchors=0.2, update_every=0, autoreset_mode=SAME)
    stack = ResidualCorrection(OnlineDebiasing(envs, pessimism=1.0))
    stack.reset(seed=0)
    rng = np.random.default_rng(0)
    while not stack.env.correction.guard.ready:
        stack.step(np.stack([rng.integers(1, 3, 8), rng.integers(0, 4, 8)], axis=1))
    _, reward, *_ = stack.step(np.full((8, 2), 3))
    np.testing.assert_allclose(reward, 0.1)
    stack.close()


def test_the_verified_episode_is_the_imagined_one_step_by_step() -> None:
    bandit = Bandit(max_turns=3)
    envs, stack = trained(bandit)
    engine = envs.engine
    actions = np.random.default_rng(5).integers(1, 3, (2, 8, 2))
    before = engine.buffer.added
    for each in actions:
        stack.step(each)
    stack.step(np.full((8, 2), 3))
    kept = engine.buffer.since(before)
    assert kept is not None
    executed = kept.action.tolist()
    for slot in range(8):
        episode = [*actions[:, slot].tolist(), [3, 3]]
        if episode[0] in executed:
            at = executed.index(episode[0])
            assert episode[-1] in executed[at:]
    assert engine.stream.since(0)[0].propensity.max() == 1.0
    stack.close()


def test_dense_rewards_execute_an_episode_once_up_to_where_it_was_unconfirmed() -> None:
    class Rising(Drift):
        """Believes that each step pays more than the one before."""

        def step(self, state: Any, action: Any, rng: Any) -> Any:
            after, prediction = super().step(state, action, rng)
            prediction.reward[:] = np.where(after[:, 0] > 5.0, 3.0, 1.0)
            return after, prediction

    envs = WorldModelVectorEnv(
        lambda: TimeLimit(Counter(), 40),
        Rising(step=1.0),
        num_envs=2,
        anchors=0.5,
        pairs="open_loop",
        autoreset_mode=SAME,
        seed=1,
    )
    stack = OnlineDebiasing(envs, reward_range=(0.0, 4.0), pessimism=1.0)
    stack.correction.guard.learn(np.ones(64), np.ones(64))
    stack.reset(seed=1)
    for _ in range(40):
        stack.step(np.zeros(2, int))
    verified = int(stack.stats()["guard/verified"])
    assert verified <= 2
    assert stack.stats()["guard/unconfirmed"] >= verified
    stack.close()


def test_a_guarded_run_stopped_and_resumed_equals_one_never_stopped() -> None:
    def make() -> tuple[Any, Any]:
        bandit = Bandit(max_turns=3)
        envs = WorldModelVectorEnv(
            bandit, Spiked(bandit), num_envs=6, max_real=2, anchors=0.5, update_every=0, autoreset_mode=SAME, seed=0
        )
        return envs, OnlineDebiasing(envs, pessimism=1.0)

    actions = np.random.default_rng(0).integers(1, 4, (80, 6, 2))
    envs, stack = make()
    stack.reset(seed=3)
    for each in actions[:61]:  # in the middle of an episode
        stack.step(each)
    saved = envs.state_dict(), stack.state_dict()
    again, resumed = make()
    resumed.reset(seed=9)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for each in actions[61:]:
        expected, actual = stack.step(each)[1], resumed.step(each)[1]
        np.testing.assert_array_equal(expected, actual)
    stack.close()
    resumed.close()


def test_one_environment_without_a_second_instance_is_refused() -> None:
    with pytest.raises(ValueError, match="in a second instance only"):
        Single(WorldModelWrapper(Counter(ends=3), Drift()), pessimism=1.0)
    Single(WorldModelWrapper(gym.make("CartPole-v1"), Drift()), pessimism=1.0)
