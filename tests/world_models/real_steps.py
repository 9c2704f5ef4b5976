"""Real steps to compare world models with."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from tests.bandit import Bandit
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.engine.execution import FactoredExecution
from wmrl_gym.engine.gym_execution import EnvExecution


def bandit_steps(bandit: Bandit, episodes: int, *, seed: int = 5) -> Transitions:
    """Episodes of random designs."""
    real, rng = FactoredExecution(bandit, owned=False), np.random.default_rng(seed)
    steps = [step for number in range(episodes) for step in real.replay(number, None, list(rng.integers(0, 4, (9, 2))))]
    real.close()
    return batch.concatenate([step.transitions for step in steps])


def random_steps(env_id: str, steps: int, *, seed: int = 1_000) -> Transitions:
    """Episodes of random actions, at least so many steps."""
    env = gym.make(env_id)
    env.action_space.seed(seed)
    real = EnvExecution(first=env)
    parts: list[Transitions] = []
    while sum(len(part) for part in parts) < steps:
        actions = (env.action_space.sample() for _ in range(steps))
        parts += [step.transitions for step in real.replay(seed + len(parts), None, actions)]
    real.close()
    return batch.concatenate(parts)
