"""Stable-Baselines3 trains on any of the vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from wmrl_gym.integrations import sb3
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def ppo(venv: Any, **options: Any) -> PPO:
    settings: dict[str, Any] = {"n_steps": 6, "batch_size": 24, "n_epochs": 2, "seed": 0, "device": "cpu"}
    return PPO("MlpPolicy", venv, **(settings | options | sb3.weighted(venv)))


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_a_step_after_the_end_shows_the_new_episode_and_keeps_the_old_observation(mode: Any) -> None:
    envs = WorldModelVectorEnv("CartPole-v1", Drift(step=0.001), num_envs=3, anchors=0.0, max_model_steps=2, autoreset_mode=mode)
    venv = sb3.to_vec_env(envs)
    first = venv.reset()
    venv.step(np.zeros(3, int))
    observation, _, dones, infos = venv.step(np.zeros(3, int))
    assert dones.all()
    for slot, info in enumerate(infos):
        np.testing.assert_allclose(info["terminal_observation"], first[slot] + 0.002, atol=1e-6)
        assert info["TimeLimit.truncated"]
        assert info["episode"]["l"] == 2
        assert info["episode"]["r"] == pytest.approx(1.0)
    assert (np.abs(observation) <= 0.05).all()  # CartPole's starts
    venv.close()


def test_a_termination_is_no_time_limit() -> None:
    venv = sb3.to_vec_env(WorldModelVectorEnv("CartPole-v1", Drift(ends=True), num_envs=2, anchors=0.0))
    venv.reset()
    _, _, dones, infos = venv.step(np.zeros(2, int))
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False]
    venv.close()


def test_the_same_seed_gives_the_same_training() -> None:
    def train() -> np.ndarray[Any, Any]:
        bandit = Bandit()
        venv = sb3.to_vec_env(corrected(bandit, fitted(bandit), num_envs=8, anchors=0.2, update_every=0))
        model = ppo(venv).learn(96)
        venv.close()
        return model.policy.get_distribution(model.policy.obs_to_tensor(np.zeros((1, 5), np.float32))[0]).distribution[0].probs

    np.testing.assert_array_equal(train().detach().numpy(), train().detach().numpy())


def test_ppo_learns_the_bandit_in_its_world_model() -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit, 150), num_envs=64, anchors=0.05, update_every=0, autoreset_mode=SAME)
    venv = sb3.to_vec_env(envs)
    model = ppo(venv, learning_rate=0.01, batch_size=192, n_epochs=6, ent_coef=0.003)
    model.learn(64 * 6 * 60)
    best = [0.5 + 0.5 * bandit.quality[task, :3].max() for task in range(3)]
    scores = []
    for task in range(3):
        action, _ = model.predict(np.eye(5, dtype=np.float32)[[task]], deterministic=True)
        scores.append(0.1 if action[0, 0] == 3 else 0.5 + 0.5 * bandit.quality[task, action[0, 0], action[0, 1]])
    assert np.mean(scores) > 0.9 * np.mean(best)
    venv.close()


def test_weights_multiply_advantages_and_leave_returns_alone() -> None:
    bandit = Bandit()
    venv = sb3.to_vec_env(corrected(bandit, fitted(bandit), num_envs=8, preset="paper", anchors=0.5, update_every=0))
    model = ppo(venv)
    model.learn(48)
    buffer: Any = model.rollout_buffer
    buffer.reset()
    callback = CallbackList([])
    callback.init_callback(model)
    model.collect_rollouts(model.env, callback, buffer, 6)
    plain_returns = buffer.returns.copy()
    unweighted = buffer.advantages.copy()
    buffer.weights[:] = 3.0
    buffer.recompute()
    np.testing.assert_allclose(buffer.advantages, 3.0 * unweighted, rtol=1e-5)
    np.testing.assert_array_equal(buffer.returns, plain_returns)
    venv.close()


def test_steps_of_unknown_reward_and_those_before_them_are_left_out() -> None:
    bandit = Bandit(lose=2)
    envs = WorldModelVectorEnv(bandit, fitted(Bandit()), num_envs=16, anchors=1.0, update_every=0, autoreset_mode=SAME, warmup=0)
    venv = sb3.to_vec_env(envs)
    model = ppo(venv)
    model.learn(96)
    buffer: Any = model.rollout_buffer
    assert (~buffer.valid).sum() > 0
    assert buffer.usable.sum() < buffer.valid.sum()
    starts = buffer.episode_starts.reshape(16, 6).T if buffer.generator_ready else buffer.episode_starts
    for step, slot in np.argwhere(~buffer.valid):
        before = step
        while before >= 0:
            assert not buffer.usable[before, slot]
            if starts[before, slot]:
                break
            before -= 1
    seen = sum(len(batch.actions) for batch in buffer.get(7))
    assert seen == buffer.usable.sum()
    venv.close()


@pytest.mark.parametrize("unknown", [0, 1, 21, 23, 40, 71])
def test_no_minibatch_is_a_small_remainder(unknown: int) -> None:
    venv = sb3.to_vec_env(WorldModelVectorEnv("CartPole-v1", Drift(step=0.001), num_envs=16, anchors=0.0, max_model_steps=2))
    model = ppo(venv)  # 96 steps a rollout
    model.learn(96)
    buffer: Any = model.rollout_buffer
    buffer.usable = np.arange(96).reshape(6, 16) >= unknown
    buffer.generator_ready = True
    sizes = [len(rows.observations) for rows in buffer.get(24)]
    assert sum(sizes) == 96 - unknown
    assert max(sizes) - min(sizes) <= 1
    assert 16 <= min(sizes) <= max(sizes) <= 36
    assert [len(rows.observations) for rows in buffer.get(None)] == [96 - unknown]
    venv.close()


def test_a_rollout_without_a_single_known_reward_is_a_clear_error() -> None:
    class Lost(Bandit):
        def execute(self, attempt: Any) -> Any:
            outcome = super().execute(attempt)
            outcome.known[:] = False
            return outcome

    venv = sb3.to_vec_env(WorldModelVectorEnv(Lost(), fitted(Bandit()), num_envs=4, anchors=1.0, warmup=0, update_every=0))
    with pytest.raises(RuntimeError, match="not one step of this rollout has a known reward"):
        ppo(venv).learn(24)
    venv.close()


def test_text_observations_are_refused_with_the_key() -> None:
    from wmrl_gym.spaces import UnicodeText

    class Talking(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict({"said": UnicodeText(10), "turn": gym.spaces.Discrete(3)})
        action_space = gym.spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            return {"said": "", "turn": 0}, {}

        def step(self, action: Any) -> Any:
            return {"said": "a", "turn": 1}, 0.0, True, False, {}

    envs = gym.vector.SyncVectorEnv([Talking])
    with pytest.raises(TypeError, match=r"\['said'\] are \['UnicodeText'\]"):
        sb3.to_vec_env(envs)
    envs.close()


def test_the_callback_logs_anchors_calibration_and_real_seconds(tmp_path: Any) -> None:
    from stable_baselines3.common.logger import configure

    bandit = Bandit()
    venv = sb3.to_vec_env(corrected(bandit, fitted(bandit), num_envs=8, preset="paper", anchors=0.5))
    model = ppo(venv)
    model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    model.learn(96, callback=sb3.WorldModelCallback(venv))
    names = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    for name in ("cost/executions", "cost/real_wall_s", "anchors/pairs", "debias/rmse", "denoise/weight"):
        assert name in names
    assert list(tmp_path.glob("events.out.tfevents*"))
    model.logger.close()
    venv.close()
