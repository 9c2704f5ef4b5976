"""Imagined episodes that start where real ones have been."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import CountedEnv, Drift
from wmrl_gym.corrections import AnchorDecision
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


class First:
    """The first ``count`` episodes are anchors."""

    def __init__(self, count: int, group_size: int = 1) -> None:
        self.count, self.group_size = count, group_size

    def decide(self, episode: int) -> AnchorDecision:
        return AnchorDecision(anchor=episode // self.group_size < self.count, propensity=0.5)

    def reseeded(self, seed: int) -> First:
        return self


def branched(num_envs: int, schedule: First, **options: Any) -> WorldModelVectorEnv:
    return WorldModelVectorEnv(
        "CartPole-v1",
        Drift(step=0.001),
        num_envs=num_envs,
        anchors=schedule,
        autoreset_mode=SAME,
        start_states="buffer",
        **({"max_model_steps": 2} | options),
    )


def acted_upon(envs: Any) -> set[bytes]:
    """The observations that the buffer says were acted upon."""
    return {row.tobytes() for row in envs.engine.buffer.everything().observation}


def anchors_finish(envs: Any, seed: int = 0) -> None:
    envs.reset(seed=seed)
    while envs.engine.episodes.is_real.any():
        envs.step(np.ones(envs.num_envs, int))


def test_imagined_episodes_start_where_real_ones_have_been() -> None:
    envs = branched(4, First(3))
    anchors_finish(envs)
    seen = acted_upon(envs)
    starts = []
    for _ in range(40):
        observation, *_, terminated, truncated, _ = envs.step(np.ones(4, int))
        starts += [row.tobytes() for row in observation[terminated | truncated]]
    assert len(starts) == 80
    assert set(starts) <= seen
    assert len(set(starts)) > 10
    envs.close()


def test_the_real_environment_is_not_even_reset_for_them() -> None:
    class CountedResets(CountedEnv):
        resets = 0

        def reset(self, **kwargs: Any) -> Any:
            self.resets += 1
            return super().reset(**kwargs)

    counted = CountedResets(gym.make("CartPole-v1"))
    env = WorldModelWrapper(counted, Drift(step=0.0), anchors=First(1), start_states="buffer", max_model_steps=1)
    env.reset(seed=0)
    while not env._over:
        env.step(1)
    before = counted.resets, counted.steps
    for _ in range(20):
        observation, info = env.reset()
        assert env.observation_space.contains(observation)
        assert not info["anchor"]
        env.step(0)
    assert (counted.resets, counted.steps) == before == (1, len(env.engine.buffer))
    env.close()


def test_anchors_start_at_a_real_reset_and_only_they_make_pairs() -> None:
    class Every(First):
        def decide(self, episode: int) -> AnchorDecision:
            return AnchorDecision(anchor=episode % 3 == 0, propensity=1 / 3)

    envs = branched(3, Every(0))
    envs.reset(seed=0)
    real_steps = 0
    for _ in range(60):
        before = envs.engine.episodes.number.copy()
        observation, *_, terminated, truncated, _ = envs.step(np.ones(3, int))
        new = np.flatnonzero(terminated | truncated)
        for slot in new[envs.engine.episodes.number[new] % 3 == 0]:
            assert (np.abs(observation[slot]) <= 0.05).all()  # CartPole starts there, and its episodes soon leave
        real_steps += int((before % 3 == 0).sum())
    pairs, _ = envs.engine.stream.since(0)
    assert (pairs.episode % 3 == 0).all()
    assert len(pairs) == len(envs.engine.buffer) == real_steps
    envs.close()


def test_background_anchors_start_at_a_real_reset_too() -> None:
    envs = branched(2, First(2), anchor_mode="background")
    observation, _ = envs.reset(seed=5)
    real = gym.make("CartPole-v1")
    np.testing.assert_array_equal(observation[0], real.reset(seed=5)[0])
    for _ in range(2):
        envs.step(np.ones(2, int))
    assert envs.engine.wait(60)
    executed = envs.engine.buffer.everything()
    assert executed is not None
    assert len(executed) == envs.engine.stream.added == 4
    envs.close()


def test_the_horizon_follows_the_number_of_real_transitions() -> None:
    asked: list[int] = []

    def horizon(transitions: int) -> int:
        asked.append(transitions)
        return 1 if transitions < 6 else 4

    env = WorldModelWrapper(
        gym.make("CartPole-v1"), Drift(step=0.0), anchors=First(1), start_states="buffer", max_model_steps=horizon
    )
    env.reset(seed=0)
    while not env._over:
        env.step(1)
    length = len(env.engine.buffer)
    assert length >= 6
    env.reset()
    assert [env.step(0)[3] for _ in range(4)] == [False, False, False, True]
    assert asked == [0, length]
    env.close()


def test_a_horizon_is_decided_when_the_episode_starts() -> None:
    envs = branched(2, First(1), max_model_steps=lambda transitions: 3 + transitions)
    envs.reset(seed=0)
    flags = [envs.step(np.ones(2, int))[3][1] for _ in range(3)]
    assert flags == [False, False, True]
    envs.close()


def test_a_schedule_below_one_step_is_refused() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(), max_model_steps=lambda transitions: 0)
    with pytest.raises(ValueError, match="at least 1, and the schedule says 0 at 0 transitions"):
        env.reset(seed=0)


def test_members_of_a_group_share_their_branch() -> None:
    envs = branched(3, First(2, group_size=4), max_model_steps=1)
    anchors_finish(envs)
    starts: dict[int, set[bytes]] = {}
    for _ in range(60):
        observation, _, _, _, infos = envs.step(np.ones(3, int))
        for slot in np.flatnonzero(~infos["anchor"]):
            starts.setdefault(int(infos["group"][slot]), set()).add(observation[slot].tobytes())
    assert len(starts) > 20
    assert all(len(members) == 1 for members in starts.values())
    assert len({next(iter(members)) for members in starts.values()}) > 5
    envs.close()


def test_an_explicit_seed_starts_at_a_real_reset() -> None:
    envs = branched(2, First(1))
    anchors_finish(envs)
    observation, _ = envs.reset(seed=[11, 12])
    for slot, seed in enumerate((11, 12)):
        np.testing.assert_array_equal(observation[slot], gym.make("CartPole-v1").reset(seed=seed)[0])
    envs.close()


def test_before_anything_real_has_happened_they_start_at_a_real_reset() -> None:
    envs = branched(2, First(0))
    observation, _ = envs.reset(seed=3)
    np.testing.assert_array_equal(observation[0], gym.make("CartPole-v1").reset(seed=3)[0])
    envs.close()


def test_a_branched_run_stopped_and_resumed_equals_one_never_stopped() -> None:
    def go(envs: Any, count: int) -> list[Any]:
        return [envs.step(np.ones(3, int))[:4] for _ in range(count)]

    envs = branched(3, First(2, group_size=2), max_model_steps=lambda transitions: 1 + transitions % 3)
    anchors_finish(envs)
    go(envs, 5)
    state = envs.state_dict()
    expected = go(envs, 30)
    resumed = branched(3, First(2, group_size=2), max_model_steps=lambda transitions: 1 + transitions % 3)
    resumed.load_state_dict(state)
    for left, right in zip(expected, go(resumed, 30), strict=True):
        np.testing.assert_equal(left, right)
    envs.close()
    resumed.close()


def test_the_oldest_starts_go_first_and_resuming_draws_the_same() -> None:
    from wmrl_gym.data import TransitionBuffer, Transitions
    from wmrl_gym.engine.starts import StartStates

    def steps(first: int, n: int) -> Transitions:
        at, no = np.arange(first, first + n, dtype=np.float32)[:, None], np.zeros(n, bool)
        return Transitions(at, at, np.zeros(n), at + 1, no, no, ~no, np.arange(first, first + n))

    buffer = TransitionBuffer(5)
    starts = StartStates(gym.spaces.Box(0, 100, (1,)), buffer)
    for first in (0, 3, 6):
        buffer.add(steps(first, 3))
    drawn, context = starts.draw(np.arange(200), np.random.default_rng(0))
    assert set(drawn[:, 0].tolist()) == {4.0, 5.0, 6.0, 7.0, 8.0}
    np.testing.assert_array_equal(drawn[:, 0], context)
    kept = TransitionBuffer(5)
    kept.restore(steps(4, 5), 9)
    again = StartStates(gym.spaces.Box(0, 100, (1,)), kept)
    np.testing.assert_array_equal(again.draw(np.arange(200), np.random.default_rng(0))[0], drawn)


def test_factored_environments_keep_a_state_that_no_observation_holds() -> None:
    with pytest.raises(ValueError, match="factored environment keeps a state of its own"):
        WorldModelVectorEnv(Bandit(), OutcomeModel(8, encoder="none"), num_envs=2, start_states="buffer")


def test_other_starts_are_refused() -> None:
    with pytest.raises(ValueError, match='must be "real" or "buffer", got \'replay\''):
        WorldModelWrapper(gym.make("CartPole-v1"), Drift(), start_states="replay")  # type: ignore[arg-type]
