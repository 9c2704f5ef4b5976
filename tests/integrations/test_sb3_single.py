"""Stable-Baselines3 on a single environment, and wrappers of its own in between."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.integrations import sb3
from wmrl_gym.wrappers import WorldModelWrapper, corrected, diagnostics
from wmrl_gym.wrappers.vector import corrected as corrected_vector


class Poisoned(gym.Wrapper[Any, Any, Any, Any]):
    """Pays ``placeholder`` where the reward is unknown, and counts those."""

    def __init__(self, env: gym.Env[Any, Any], placeholder: float) -> None:
        super().__init__(env)
        self.placeholder, self.unknown = placeholder, 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not info["reward_valid"]:
            self.unknown += 1
            reward = self.placeholder
        return observation, reward, terminated, truncated, info


def poisoned(placeholder: float) -> Poisoned:
    real = FactoredEnv(Bandit(lose=2, reward="improvement"))
    model = fitted(Bandit(reward="improvement"))
    return Poisoned(WorldModelWrapper(real, model, anchors=1.0, update_every=0, seed=0), placeholder)


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.policy.parameters()])


@pytest.mark.parametrize("known_only", [True, False])
def test_ppo_on_a_single_environment_does_not_learn_from_unknown_rewards(known_only: bool) -> None:
    trained = []
    for placeholder in (0.0, 1000.0):
        env = poisoned(placeholder)
        venv: Any = sb3.to_vec_env(env) if known_only else DummyVecEnv([lambda env=env: env])
        arguments = sb3.weighted(venv) if known_only else {}
        model = PPO("MlpPolicy", venv, n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu", **arguments).learn(96)
        assert env.unknown > 0
        trained.append(parameters(model))
        venv.close()
    assert torch.equal(*trained) is known_only, "without the integration the placeholder shows in what was learnt"


def test_an_off_policy_algorithm_relabels_a_single_environment() -> None:
    env = corrected(gym.make("CartPole-v1"), Drift(step=0.001), anchors=0.5, max_model_steps=5)
    venv = sb3.to_vec_env(env)
    model = DQN("MlpPolicy", venv, learning_starts=10, seed=0, device="cpu", **sb3.relabelled(venv)).learn(60)
    assert model.replay_buffer.kept["reward_valid"][:60].all()  # type: ignore[union-attr]
    assert diagnostics(venv.envs)["cost/imagined"] > 0
    venv.close()


def test_ended_episodes_of_a_single_environment_are_told_as_sb3_expects() -> None:
    venv = sb3.to_vec_env(gym.make("CartPole-v1", max_episode_steps=3))
    venv.reset()
    for _ in range(3):
        observation, _, dones, infos = venv.step(np.zeros(1, int))
    assert dones.tolist() == [True]
    assert infos[0]["TimeLimit.truncated"]
    assert infos[0]["episode"]["l"] == 3
    assert infos[0]["terminal_observation"].shape == (4,)
    assert (np.abs(observation) <= 0.05).all()  # the next episode's start
    venv.close()


def test_what_sb3_wraps_in_between_is_looked_through_or_refused() -> None:
    bandit = Bandit()
    behind = sb3.to_vec_env(corrected_vector(bandit, fitted(bandit), num_envs=2, anchor_mode="background", late=True))
    assert sb3.weighted(VecMonitor(behind))["rollout_buffer_kwargs"]["venv"] is behind
    with pytest.raises(TypeError, match="norm_reward=False"):
        sb3.weighted(VecMonitor(VecNormalize(behind)))
    scaled = VecMonitor(VecNormalize(behind))
    with pytest.raises(TypeError, match="norm_reward=False"):
        PPO("MlpPolicy", scaled, n_steps=4, batch_size=8, **sb3.weighted(behind)).learn(8, callback=sb3.LateAnchors(behind))
    behind.close()


def test_an_environment_that_cannot_say_what_is_known_is_refused() -> None:
    venv = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    for arguments in (sb3.weighted, sb3.relabelled):
        with pytest.raises(TypeError, match=r"sb3\.to_vec_env.*got DummyVecEnv"):
            arguments(venv)  # type: ignore[operator]
    with pytest.raises(TypeError, match="single or vector, got str"):
        sb3.to_vec_env("CartPole-v1")  # type: ignore[arg-type]
    venv.close()
