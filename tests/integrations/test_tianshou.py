"""Tianshou 2 collects from the vector environments, and its algorithms see weights and only what is known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tianshou.algorithm import DQN, PPO, Reinforce
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, PrioritizedVectorReplayBuffer, VectorReplayBuffer

from examples import tianshou_ppo
from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from tests.integrations.poisoned import poisoned
from wmrl_gym.integrations import tianshou as ours
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

DISABLED = AutoresetMode.DISABLED


class Net(torch.nn.Module):
    def __init__(self, inputs: int, *outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.Tanh(), torch.nn.Linear(32, int(np.prod(outputs))))

    def get_output_dim(self) -> int:
        return int(np.prod(self.outputs))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        values = self.net(torch.as_tensor(np.asarray(obs), dtype=torch.float32))
        return values.unflatten(-1, self.outputs), state


class Critic(Net):
    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:  # type: ignore[override]
        return super().forward(obs)[0]


def choices(logits: torch.Tensor) -> torch.distributions.Distribution:
    return torch.distributions.Independent(torch.distributions.Categorical(logits=logits), 1)


def ppo(venv: Any, *, weigh: bool = True, **options: Any) -> Any:
    torch.manual_seed(0)
    policy = ProbabilisticActorPolicy(
        actor=Net(5, 2, 4), dist_fn=choices, action_space=venv.envs.single_action_space, action_scaling=False
    )
    made = ours.weighted(PPO) if weigh else PPO
    return made(policy=policy, critic=Critic(5, 1), optim=AdamOptimizerFactory(lr=0.01), gamma=1.0, ent_coef=0.003, **options)


def train(algorithm: Any, venv: Any, *, rollouts: int, buffer: Any = None, random: bool = False, **update: Any) -> None:
    """What Tianshou's trainer does: collect, update, forget."""
    steps = 6 * len(venv)
    buffer = VectorReplayBuffer(steps, len(venv)) if buffer is None else buffer
    collector = Collector[CollectStats](algorithm, venv, buffer)
    np.random.seed(0)  # Tianshou's minibatches are drawn from it
    venv.seed(0)
    collector.reset()
    for _ in range(rollouts):
        collector.collect(n_step=steps, random=random)
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, **update)
        collector.reset_buffer(keep_statistics=True)


def parameters(algorithm: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in algorithm.parameters()])


def test_ppo_learns_the_bandit_in_its_world_model() -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit, 150), num_envs=32, anchors=0.05, update_every=0, autoreset_mode=DISABLED)
    venv = ours.to_vector_env(envs)
    algorithm = ppo(venv)
    train(algorithm, venv, rollouts=30, batch_size=48, repeat=6)
    best = [0.5 + 0.5 * bandit.quality[task, :3].max() for task in range(3)]
    scores = []
    for task in range(3):
        first, second = algorithm.policy.actor(np.eye(5)[[task]])[0].argmax(-1)[0].tolist()
        scores.append(0.1 if first == 3 else 0.5 + 0.5 * bandit.quality[task, first, second])
    assert np.mean(scores) > 0.9 * np.mean(best)
    venv.close()


@pytest.mark.parametrize("weigh", [True, False])
@pytest.mark.parametrize("options", [{}, {"return_scaling": True, "recompute_advantage": True, "advantage_normalization": True}])
def test_unknown_rewards_are_not_learnt_from(weigh: bool, options: Any) -> None:
    trained = []
    for placeholder in (0.0, 1000.0):
        venv = ours.to_vector_env(poisoned(placeholder))
        algorithm = ppo(venv, weigh=weigh, **options)
        train(algorithm, venv, rollouts=3, batch_size=32, repeat=2)
        trained.append(parameters(algorithm))
        assert venv.envs.unknown > 0  # type: ignore[attr-defined]
        venv.close()
    assert torch.equal(*trained) is weigh, "without the hook the placeholder shows in what was learnt"


class OneChoice(gym.vector.VectorActionWrapper):
    """The bandit's sixteen designs as one choice, for algorithms of Q-values."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.single_action_space = gym.spaces.Discrete(16)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Any) -> Any:
        return np.stack([actions // 4, actions % 4], axis=1)


def dqn(venv: Any, *, weigh: bool, n_step: int) -> Any:
    torch.manual_seed(0)
    policy = DiscreteQLearningPolicy(model=Net(5, 16), action_space=venv.envs.single_action_space, eps_training=0.5)
    made = ours.weighted(DQN) if weigh else DQN
    return made(policy=policy, optim=AdamOptimizerFactory(lr=0.01), n_step_return_horizon=n_step, target_update_freq=4)


@pytest.mark.parametrize("weigh", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_dqn_never_samples_an_unknown_reward(weigh: bool, n_step: int) -> None:
    trained = []
    for placeholder in (0.0, 1000.0):
        venv = ours.to_vector_env(OneChoice(poisoned(placeholder)))
        algorithm = dqn(venv, weigh=weigh, n_step=n_step)
        venv.envs.single_action_space.seed(0)
        train(algorithm, venv, rollouts=3, random=True, sample_size=64)
        trained.append(parameters(algorithm))
        assert venv.envs.env.unknown > 0
        venv.close()
    assert torch.equal(*trained) is weigh, "without the hook the placeholder shows in what was learnt"


def test_advantages_are_multiplied_by_the_weights() -> None:
    bandit = Bandit()
    venv = ours.to_vector_env(
        corrected(bandit, fitted(bandit), num_envs=4, preset="paper", update_every=0, autoreset_mode=DISABLED)
    )
    algorithm = ppo(venv)
    buffer = VectorReplayBuffer(24, 4)
    collector = Collector[CollectStats](algorithm, venv, buffer)
    collector.reset()
    collector.collect(n_step=24)
    batch, indices = buffer.sample(0)
    plain = PPO._add_returns_and_advantages(algorithm, batch, buffer, indices).adv.clone()
    buffer._meta.info.weight[:] = np.arange(24.0)
    weighted = algorithm._add_returns_and_advantages(batch, buffer, indices)
    np.testing.assert_allclose(weighted.adv.numpy(), plain.numpy() * indices, rtol=1e-5)
    venv.close()


def test_resets_of_some_leave_the_others_alone() -> None:
    envs = WorldModelVectorEnv("CartPole-v1", Drift(step=0.05), num_envs=3, anchors=0.0, autoreset_mode=DISABLED)
    venv = ours.to_vector_env(envs)
    assert len(venv) == 3
    first, info = venv.reset(seed=0)
    assert [row["env_id"] for row in info] == [0, 1, 2]
    stepped, *_, info = venv.step(np.zeros(3, int))
    np.testing.assert_allclose(stepped, first + 0.05, atol=1e-6)
    assert [row["depth"] for row in info] == [1, 1, 1]
    new, info = venv.reset([2])
    assert new.shape == (1, 4)
    assert info[0]["depth"] == 0
    stepped, *_, info = venv.step(np.zeros(3, int))
    np.testing.assert_allclose(stepped[:2], first[:2] + 0.1, atol=1e-6)
    np.testing.assert_allclose(stepped[2], new[0] + 0.05, atol=1e-6)
    venv.close()
    with pytest.raises(AssertionError, match="after close"):
        venv.reset()


def test_stepping_only_some_is_refused_with_what_to_do() -> None:
    venv = ours.to_vector_env(WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=3, anchors=0.0, autoreset_mode=DISABLED))
    venv.reset()
    with pytest.raises(ValueError, match="collect n_step, a multiple of 3"):
        venv.step(np.zeros(2, int), np.array([0, 2]))
    venv.close()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be DISABLED, got AutoresetMode\.NEXT_STEP"):
        ours.to_vector_env(WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=2))
    with pytest.raises(TypeError, match="Reinforce has no advantages"):
        ours.weighted(Reinforce)
    with pytest.raises(TypeError, match="takes an on-policy or off-policy algorithm"):
        ours.weighted(dict)
    venv = ours.to_vector_env(OneChoice(poisoned(0.0)))
    with pytest.raises(TypeError, match="PrioritizedReplayBuffer"):
        train(
            dqn(venv, weigh=True, n_step=1),
            venv,
            rollouts=1,
            buffer=PrioritizedVectorReplayBuffer(96, len(venv), alpha=0.6, beta=0.4),
            random=True,
            sample_size=8,
        )
    venv.close()


def test_the_example_trains_in_learned_dynamics() -> None:
    sizes = ["--rollouts=2", "--num-envs=4", "--steps=16", "--warmup=100", "--gradient-steps=50", "--evaluation-episodes=2"]
    said = tianshou_ppo.main(sizes)
    assert said["executions"] >= 100
    assert said["imagined"] > 0
    assert said["after"] >= 1.0
