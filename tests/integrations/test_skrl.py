"""skrl trains on the environments, and never meets a step that it could not leave out or weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model, MultiCategoricalMixin
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from tests.integrations.poisoned import poisoned
from wmrl_gym.integrations import skrl as ours
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

SAME = AutoresetMode.SAME_STEP


class Policy(MultiCategoricalMixin, Model):  # type: ignore[misc]
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        MultiCategoricalMixin.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))

    def compute(self, inputs: Any, role: str) -> Any:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):  # type: ignore[misc]
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def compute(self, inputs: Any, role: str) -> Any:
        return self.net(inputs["observations"]), {}


def train(envs: Any, folder: Path, *, rollouts: int) -> Policy:
    set_seed(0)
    env = ours.to_env(envs)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    policy = Policy(**spaces)
    cfg = PPO_CFG(rollouts=6, learning_epochs=4, mini_batches=2, discount_factor=1.0, learning_rate=0.01)
    cfg.entropy_loss_scale = 0.003
    cfg.experiment.directory, cfg.experiment.write_interval, cfg.experiment.checkpoint_interval = str(folder), 0, 0
    agent = PPO(
        models={"policy": policy, "value": Value(**spaces)},
        memory=RandomMemory(memory_size=6, num_envs=env.num_envs, device=env.device),
        cfg=cfg,
        **spaces,
    )
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 6 * rollouts, "disable_progressbar": True}).train()
    return policy


def test_ppo_learns_the_bandit_in_its_world_model(tmp_path: Path) -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit, 150), num_envs=64, anchors=0.05, update_every=0, autoreset_mode=SAME)
    policy = train(envs, tmp_path, rollouts=50)
    best = [0.5 + 0.5 * bandit.quality[task, :3].max() for task in range(3)]
    scores = []
    for task in range(3):
        first, second = policy.net(torch.eye(5)[[task]]).unflatten(-1, (2, 4)).argmax(-1)[0].tolist()
        scores.append(0.1 if first == 3 else 0.5 + 0.5 * bandit.quality[task, first, second])
    assert np.mean(scores) > 0.9 * np.mean(best)


def test_an_unknown_reward_is_refused_before_anything_is_learnt_from_it(tmp_path: Path) -> None:
    with pytest.raises(ours.UnusableStep, match=r"the rewards of environments \[.*\] are unknown"):
        train(poisoned(1000.0, mode=SAME), tmp_path, rollouts=3)


def test_weights_are_refused(tmp_path: Path) -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit), num_envs=16, preset="paper", anchors=0.5, update_every=0, autoreset_mode=SAME)
    with pytest.raises(ours.UnusableStep, match="use a preset that corrects rewards"):
        train(envs, tmp_path, rollouts=40)


def test_single_environments_are_wrapped_too() -> None:
    env = ours.to_env(WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=0.001, pays=0.25), anchors=0.0))
    start, _ = env.reset()
    observation, reward, *_ = env.step(torch.zeros(1, 1, dtype=torch.long))
    assert reward.tolist() == [[0.25]]
    torch.testing.assert_close(observation, start + 0.001)


def test_another_autoreset_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be SAME_STEP, got AutoresetMode\.NEXT_STEP"):
        ours.to_env(WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=2))
