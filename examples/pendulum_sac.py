"""SAC on a pendulum, trained mostly in a world model that learns from few real steps, against plain SAC with as many.

An ensemble learns the pendulum's dynamics from real episodes: observations, rewards, and where episodes end. Sixteen imagined
pendulums start at states that really occurred and go on for some steps, more of them as the model gets better; one slot in
sixteen is real, with the policy as it is then (branched rollouts, as in MBPO, arXiv 1906.08253). Two plain SACs execute just as
many real steps: one learns as often from each as the first arm does, one once. On tasks as small as these, learning often from
each step is worth about as much as imagining more.

    python examples/pendulum_sac.py --seed 1 --real-steps 900
    python examples/pendulum_sac.py --env InvertedPendulum-v5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from wmrl_gym.corrections import OneRealSlot
from wmrl_gym.integrations.sb3 import GymnasiumVecEnv, to_vec_env
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@dataclass(frozen=True)
class Config:
    env: str = "Pendulum-v1"
    seed: int = 0
    real_steps: int = 900  # that each arm may execute, warm-up included
    warmup: int = 400  # of them, with random actions
    num_envs: int = 16  # imagined side by side
    first_horizon: int = 20  # steps of an imagined episode after the warm-up ...
    last_horizon: int = 40  # ... and at the end
    update_every: int = 100  # real steps between two fits of the model
    gradient_steps: int = 12  # of SAC, for each real step on average
    evaluation_episodes: int = 20


SAC_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch_size": 128,
    "gamma": 0.98,
    "tau": 0.02,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}


def imagined_pendulums(config: Config) -> GymnasiumVecEnv:
    """Many pendulums in one world model."""

    def horizon(transitions: int) -> int:
        done = np.clip((transitions - config.warmup) / (config.real_steps - config.warmup), 0.0, 1.0)
        return round(config.first_horizon + done * (config.last_horizon - config.first_horizon))

    envs = WorldModelVectorEnv(
        config.env,
        EnsembleDynamics(min_transitions=config.warmup),
        num_envs=config.num_envs,
        anchors=OneRealSlot(config.num_envs),
        start_states="buffer",
        max_model_steps=horizon,
        update_every=config.update_every,
        warmup=config.warmup,
        autoreset_mode="SameStep",
        seed=config.seed,
    )
    return to_vec_env(envs)


class UntilRealSteps(BaseCallback):
    """Stops training when so many real steps were executed, and shows how many there have been."""

    def __init__(self, real_steps: int, title: str) -> None:
        super().__init__()
        self.real_steps = real_steps
        columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TextColumn("real steps"))
        self.bar = Progress(*columns, TimeElapsedColumn())
        self.task = self.bar.add_task(title, total=real_steps)

    @property
    def executed(self) -> int:
        envs = getattr(self.training_env, "envs", None)
        return int(envs.last_cost["executions"]) if isinstance(envs, WorldModelVectorEnv) else self.num_timesteps

    def _on_training_start(self) -> None:
        self.bar.start()

    def _on_step(self) -> bool:
        self.bar.update(self.task, completed=min(self.executed, self.real_steps))
        return self.executed < self.real_steps

    def _on_training_end(self) -> None:
        self.bar.stop()


def in_world_model(config: Config) -> tuple[SAC, int]:
    """SAC in the world model; returns it and the real steps executed."""
    venv = imagined_pendulums(config)
    # The replay is short: what an old policy did in an old model is forgotten.
    agent = SAC(
        "MlpPolicy",
        venv,
        seed=config.seed,
        train_freq=1,
        gradient_steps=config.gradient_steps,
        learning_starts=20 * config.num_envs,
        buffer_size=400 * config.num_envs,
        **SAC_SETTINGS,
    )
    until = UntilRealSteps(config.real_steps, "SAC in a world model")
    agent.learn(10**9, callback=until)
    venv.close()
    return agent, until.executed


def for_real(config: Config, gradient_steps: int) -> tuple[SAC, int]:
    """Plain SAC, with ``gradient_steps`` for each real step; returns it and the real steps executed."""
    agent = SAC(
        "MlpPolicy",
        gym.make(config.env),
        seed=config.seed,
        gradient_steps=gradient_steps,
        learning_starts=config.warmup,
        **SAC_SETTINGS,
    )
    until = UntilRealSteps(config.real_steps, f"plain SAC, {gradient_steps} gradient steps")
    agent.learn(config.real_steps, callback=until)
    return agent, until.executed


def evaluate(agent: SAC, config: Config) -> tuple[float, float]:
    """Mean return of real episodes with the policy's best action, and its standard error."""
    env = gym.make(config.env)
    returns = []
    for episode in range(config.evaluation_episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            action, _ = agent.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns)), float(np.std(returns) / len(returns) ** 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="SAC on a pendulum in a world model, against plain SAC.")
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    config = Config(**vars(parser.parse_args(arguments)))
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    arms = {
        "SAC in a world model": lambda: in_world_model(config),
        f"plain SAC, {config.gradient_steps} gradient steps": lambda: for_real(config, config.gradient_steps),
        "plain SAC, 1 gradient step": lambda: for_real(config, 1),
    }
    print(f"{'arm':<30} {'real steps':>10} {'return':>8} {'+-':>6} {'seconds':>8}")
    for name, train in arms.items():
        began = time.perf_counter()
        agent, executed = train()
        seconds = time.perf_counter() - began
        mean, error = evaluate(agent, config)
        print(f"{name:<30} {executed:>10} {mean:>8.0f} {error:>6.0f} {seconds:>8.0f}")


if __name__ == "__main__":
    main()
