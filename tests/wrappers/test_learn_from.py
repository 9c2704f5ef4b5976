"""Starting from real steps that were recorded elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests import minari_sets
from tests.bandit import Bandit
from tests.drifting import Drift
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.data.demonstrations import run_episode
from wmrl_gym.data.minari import MinariEpisodes
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected


def recorded(count: int = 4, env_id: str = "Pendulum-v1") -> Transitions:
    """The steps of a few episodes of random actions."""
    env = gym.make(env_id, max_episode_steps=30)
    env.action_space.seed(0)
    episodes = [run_episode(env, lambda env, _: env.action_space.sample(), seed=seed) for seed in range(count)]
    env.close()
    return batch.concatenate([episode.transitions() for episode in episodes])


def small(min_transitions: int = 100) -> EnsembleDynamics:
    return EnsembleDynamics((16,), n_members=2, n_elites=2, min_transitions=min_transitions, max_gradient_steps=20)


def vector(model: EnsembleDynamics, **options: Any) -> WorldModelVectorEnv:
    made = {"num_envs": 3, "anchors": 0.0, "max_model_steps": 2, "autoreset_mode": "SameStep", "seed": 0} | options
    return WorldModelVectorEnv(lambda: gym.make("Pendulum-v1", max_episode_steps=7), model, **made)


def test_an_episode_gives_its_steps_in_order() -> None:
    env = gym.make("CartPole-v1", max_episode_steps=500)
    episode = run_episode(env, lambda env, _: 1, seed=0)
    steps = episode.transitions(context=2)
    np.testing.assert_array_equal(steps.observation, episode.observation[:-1])
    np.testing.assert_array_equal(steps.next_observation, episode.observation[1:])
    assert steps.terminated.tolist() == [False] * (len(episode) - 1) + [True]
    assert not steps.truncated.any()
    assert steps.reward_valid.all()
    assert (steps.context == 2).all()
    env.close()


def test_the_first_episode_is_imagined_already() -> None:
    env = WorldModelWrapper(gym.make("Pendulum-v1"), small(), anchors=0.0, seed=0)
    env.learn_from(recorded())
    _, info = env.reset(seed=0)
    assert env.model.fitted
    assert not info["anchor"]
    assert env.last_cost["executions"] == 0
    assert env.last_cost["update_s"] > 0
    env.close()


def test_branched_rollouts_start_at_recorded_observations() -> None:
    steps = recorded()
    envs = vector(small(), start_states="buffer")
    envs.learn_from(steps)
    envs.reset(seed=0)
    known, starts = {row.tobytes() for row in steps.observation}, []
    for _ in range(20):
        observation, *_, terminated, truncated, _ = envs.step(np.zeros((3, 1), np.float32))
        starts += [row.tobytes() for row in observation[terminated | truncated]]
    assert len(starts) == 30
    assert set(starts) <= known
    assert envs.last_cost["executions"] == 0
    envs.close()


def test_the_episodes_of_a_minari_data_set_will_do(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    folder = minari_sets.write(tmp_path, "cartpole-v0", env, minari_sets.random_episodes(env, 6))
    episodes = MinariEpisodes(folder)
    model = small(min_transitions=50)
    imagined = WorldModelWrapper(env, model, anchors=0.0, seed=0)
    imagined.learn_from(episodes.read_many(range(len(episodes))))
    assert model.transitions == episodes.steps
    assert model.fitted
    imagined.close()


def test_recorded_steps_are_no_pairs_and_corrections_learn_nothing_from_them() -> None:
    envs = corrected("Pendulum-v1", small(), num_envs=3, anchors=0.0, seed=0)
    base: Any = envs.unwrapped
    base.learn_from(recorded())
    envs.reset(seed=0)
    _, reward, *_, infos = envs.step(np.zeros((3, 1), np.float32))
    assert base.engine.stream.added == 0
    np.testing.assert_array_equal(reward, infos["wm_reward"])
    envs.close()


def test_anchors_after_it_make_pairs_as_ever() -> None:
    envs = vector(small(), anchors=1.0)
    envs.learn_from(recorded())
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.zeros((3, 1), np.float32))
    assert envs.engine.stream.added == 12
    assert envs.last_cost["executions"] == 12
    envs.close()


@pytest.mark.parametrize(("episodes", "executed"), [(4, 0), (2, 42), (0, 105)])
def test_they_shorten_the_warm_up(episodes: int, executed: int) -> None:
    # 100 are wanted, in whole episodes of 7 steps.
    model = small(min_transitions=100)
    envs = vector(model, warmup=50)
    if episodes:
        envs.learn_from(recorded(episodes))
    envs.reset(seed=0)
    assert envs.last_cost["executions"] == executed
    assert model.fitted
    envs.close()


def test_the_model_gets_all_of_them_where_the_buffer_keeps_fewer() -> None:
    model = small()
    env = WorldModelWrapper(gym.make("Pendulum-v1"), model, seed=0)
    env.engine.buffer.capacity = 50
    env.learn_from(recorded())
    assert len(env.engine.buffer) == 50
    assert model.transitions == 120
    env.engine.update_model()
    assert model.transitions == 120
    env.close()


def test_a_run_resumed_from_a_saved_state_equals_one_never_stopped(tmp_path: Path) -> None:
    def go(envs: WorldModelVectorEnv, count: int) -> list[Any]:
        return [envs.step(np.full((3, 1), 0.5, np.float32))[:4] for _ in range(count)]

    options: dict[str, Any] = {"anchors": 0.3, "start_states": "buffer", "update_every": 20, "max_model_steps": 5}
    model = small()
    never = vector(model, **options)
    never.learn_from(recorded())
    never.reset(seed=1)
    # Plain environments are saved between real episodes.
    while never.engine.episodes.is_real.any() or never.last_cost["executions"] == 0:
        go(never, 1)
    state = never.state_dict()
    model.save(tmp_path)
    again = small()
    again.load(tmp_path)
    resumed = vector(again, **options)
    resumed.load_state_dict(state)
    for left, right in zip(go(never, 30), go(resumed, 30), strict=True):
        np.testing.assert_equal(left, right)
    never.close()
    resumed.close()


def test_steps_recorded_in_other_types_become_the_spaces_own() -> None:
    steps = recorded()
    env = WorldModelWrapper(gym.make("Pendulum-v1"), small(), seed=0)
    env.learn_from(replace(steps, observation=steps.observation.astype(np.float64)))
    kept = env.engine.buffer.everything()
    assert kept is not None
    assert kept.observation.dtype == np.float32
    env.close()


def test_transitions_of_another_environment_are_refused_and_nothing_is_kept() -> None:
    env = WorldModelWrapper(gym.make("Pendulum-v1"), small(), seed=0)
    steps = recorded()
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "observations": (
            {"observation": np.zeros((120, 4), np.float32)},
            r"recorded observation must be float32 of shape \(120, 3\)",
        ),
        "actions": ({"action": np.zeros(120, np.int64)}, "recorded action must be float32"),
        "rows": ({"next_observation": steps.observation[:9]}, "must have 120 rows"),
        "rewards": ({"reward": np.full(120, np.nan)}, "recorded reward 0 is nan"),
        "columns": ({"terminated": np.zeros(3, bool)}, "recorded terminated must be bool"),
    }
    for changed, message in wrong.values():
        with pytest.raises(ValueError, match=message):
            env.learn_from(replace(steps, **changed))
    with pytest.raises(TypeError, match="takes Transitions, got list"):
        env.learn_from([steps])  # type: ignore[arg-type]
    assert len(env.engine.buffer) == 0
    env.close()


def test_choices_that_there_are_not_are_refused() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), small(), seed=0)
    steps = recorded(1, "CartPole-v1")
    with pytest.raises(ValueError, match=r"recorded action 0 is outside Discrete\(2\)"):
        env.learn_from(replace(steps, action=np.full(len(steps), 7)))
    env.close()


def test_a_model_that_does_not_learn_is_refused_unless_rollouts_branch() -> None:
    steps = recorded(1, "CartPole-v1")
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(), anchors=0.0, seed=0)
    with pytest.raises(TypeError, match="Drift does not learn"):
        env.learn_from(steps)
    branching = WorldModelWrapper(gym.make("CartPole-v1"), Drift(), anchors=0.0, start_states="buffer", seed=0)
    branching.learn_from(steps)
    branching.reset(seed=0)
    branching.engine.episodes.is_real[:] = False
    observation, _ = branching.reset()
    assert observation in steps.observation
    env.close()
    branching.close()


def test_factored_environments_need_attempts_and_outcomes() -> None:
    bandit = Bandit()
    source = WorldModelVectorEnv(bandit, OutcomeModel(8, encoder="none"), num_envs=1, seed=5)
    source.warm_up(30)
    steps = source.engine.buffer.everything()
    assert steps is not None
    fresh = OutcomeModel(8, encoder="none")
    envs = WorldModelVectorEnv(Bandit(), fresh, num_envs=2, anchors=0.0, seed=0)
    with pytest.raises(ValueError, match="must hold attempts and outcomes"):
        envs.learn_from(replace(steps, attempt=None, outcome=None))
    envs.learn_from(steps)
    assert fresh.fitted
    envs.reset(seed=0)
    assert envs.last_cost["executions"] == 0
    source.close()
    envs.close()
