"""Tianshou's PPO on CartPole inside learned dynamics, with real episodes among the imagined ones.

The parts are Tianshou's own: its collector, its buffer and its PPO. Two lines make the difference: ``to_vector_env``, which its
collectors take, and ``weighted(PPO)``, which uses ``weight`` and ``reward_valid`` of each step.

    pip install 'wmrl-gym[tianshou]'
    python examples/tianshou_ppo.py --seed 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rich.progress import track
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from wmrl_gym.integrations.tianshou import to_vector_env, weighted
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.vector import corrected


@dataclass(frozen=True)
class Config:
    seed: int = 0
    rollouts: int = 40
    num_envs: int = 16
    steps: int = 64  # of each environment in a rollout
    anchors: float = 0.05  # share of the episodes that are executed
    warmup: int = 1_000  # real steps that the dynamics are first learnt from
    horizon: int = 200  # steps after which an imagined episode is cut
    gradient_steps: int = 1_000  # of the dynamics, at most, each time that they learn
    learning_rate: float = 1e-3
    epochs: int = 6
    batch_size: int = 256
    evaluation_episodes: int = 10


def make_algorithm(space: gym.spaces.Discrete, config: Config) -> Any:
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=4, hidden_sizes=[64]), hidden_sizes=[], action_shape=int(space.n), softmax_output=False
    )
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=space,
        action_scaling=False,
        deterministic_eval=True,
    )
    return weighted(PPO)(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=Net(state_shape=4, hidden_sizes=[64]), hidden_sizes=[]),
        optim=AdamOptimizerFactory(lr=config.learning_rate),
        advantage_normalization=True,
        max_grad_norm=0.5,
    )


def train(config: Config) -> dict[str, float]:
    """Train, and play the untrained and the trained policy for real."""
    torch.manual_seed(config.seed)
    np.random.seed(config.seed)  # Tianshou draws minibatches from it
    envs = corrected(
        "CartPole-v1",
        EnsembleDynamics(max_gradient_steps=config.gradient_steps),
        num_envs=config.num_envs,
        anchors=config.anchors,
        warmup=config.warmup,
        max_model_steps=config.horizon,
        autoreset_mode=AutoresetMode.DISABLED,  # Tianshou resets what has ended
        seed=config.seed,
    )
    venv = to_vector_env(envs)
    algorithm = make_algorithm(envs.single_action_space, config)  # type: ignore[arg-type]
    before = evaluate(algorithm, config)
    buffer = VectorReplayBuffer(config.steps * config.num_envs, config.num_envs)
    collector = Collector[CollectStats](algorithm, venv, buffer)
    algorithm.policy.deterministic_eval = False  # collectors sample
    collector.reset(gym_reset_kwargs={"seed": config.seed})
    for _ in track(range(config.rollouts), description="PPO"):
        collector.collect(n_step=config.steps * config.num_envs)
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, batch_size=config.batch_size, repeat=config.epochs)
        collector.reset_buffer(keep_statistics=True)
    counts = diagnostics(envs)
    venv.close()
    return {
        "before": before,
        "after": evaluate(algorithm, config),
        "executions": counts["cost/executions"],
        "imagined": counts["cost/imagined"],
    }


def evaluate(algorithm: Any, config: Config) -> float:
    """Mean return of real episodes, by the likeliest actions."""
    algorithm.policy.deterministic_eval = True
    venv = DummyVectorEnv([lambda: gym.make("CartPole-v1")] * config.evaluation_episodes)
    collector = Collector[CollectStats](algorithm, venv)
    venv.seed(1)
    stats = collector.collect(n_episode=config.evaluation_episodes, reset_before_collect=True, gym_reset_kwargs={"seed": 1})
    venv.close()
    return float(stats.returns.mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        parser.add_argument(name, type=type(default), default=default, help="(default: %(default)s)")
    said = train(Config(**vars(parser.parse_args(argv))))
    print(f"mean return of real episodes: {said['before']:.0f} untrained, {said['after']:.0f} trained")
    print(f"{said['imagined']:,.0f} imagined steps, {said['executions']:,.0f} real ones")
    return said


if __name__ == "__main__":
    main()
