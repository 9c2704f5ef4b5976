"""TorchRL's PPO on CartPole inside learned dynamics, with real episodes among the imagined ones.

The parts are TorchRL's own: its wrapper, its collector, GAE and the clipped loss. Two lines make the difference: ``to_env``,
whose data has ``weight`` and ``reward_valid``, and ``Weighted``, which uses them.

    pip install 'wmrl-gym[torchrl]'
    python examples/torchrl_ppo.py --seed 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from rich.progress import track
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import set_exploration_type
from torchrl.envs.libs.gym import GymWrapper
from torchrl.envs.utils import ExplorationType
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from wmrl_gym.integrations.torchrl import Weighted, to_env
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
    minibatches: int = 4
    evaluation_episodes: int = 10


def actor_critic() -> tuple[ProbabilisticTensorDictSequential, TensorDictModule]:
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    chosen = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    policy = ProbabilisticTensorDictSequential(TensorDictModule(actor, ["observation"], ["logits"]), chosen)
    return policy, TensorDictModule(critic, ["observation"], ["state_value"])


def train(config: Config) -> dict[str, float]:
    """Train, and play the untrained and the trained policy for real."""
    torch.manual_seed(config.seed)
    envs = corrected(
        "CartPole-v1",
        EnsembleDynamics(max_gradient_steps=config.gradient_steps),
        num_envs=config.num_envs,
        anchors=config.anchors,
        warmup=config.warmup,
        max_model_steps=config.horizon,
        autoreset_mode=AutoresetMode.DISABLED,  # TorchRL resets what has ended
        seed=config.seed,
    )
    env = to_env(envs, keys=("weight", "reward_valid"), categorical_action_encoding=True)
    env.set_seed(config.seed)
    policy, critic = actor_critic()
    before = evaluate(policy, config)
    advantage = Weighted(GAE(gamma=0.99, lmbda=0.95, value_network=critic))
    loss = ClipPPOLoss(policy, critic, entropy_coeff=0.01, normalize_advantage=True)
    optimiser = torch.optim.Adam(loss.parameters(), lr=config.learning_rate)
    frames = config.steps * config.num_envs
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames * config.rollouts)
    for data in track(collector, total=config.rollouts, description="PPO"):
        ready = advantage(data)  # a flat batch of the steps that may be learnt from
        for _ in range(config.epochs):
            for rows in torch.randperm(len(ready)).chunk(config.minibatches):
                said = loss(ready[rows])
                optimiser.zero_grad()
                (said["loss_objective"] + said["loss_critic"] + said["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
    counts = diagnostics(envs)
    collector.shutdown()
    return {
        "before": before,
        "after": evaluate(policy, config),
        "executions": counts["cost/executions"],
        "imagined": counts["cost/imagined"],
    }


def evaluate(policy: ProbabilisticTensorDictSequential, config: Config) -> float:
    """Mean return of real episodes, by the likeliest actions."""
    env = GymWrapper(gym.make("CartPole-v1"), categorical_action_encoding=True)
    env.set_seed(1)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        returns = [env.rollout(500, policy)["next", "reward"].sum().item() for _ in range(config.evaluation_episodes)]
    return sum(returns) / len(returns)


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
