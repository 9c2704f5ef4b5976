"""Unknown rewards whose placeholder is told from outside: whoever learns from one of them learns something else with another."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from tests.bandit import Bandit
from tests.drifting import fitted
from wmrl_gym.wrappers import step_info
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


class Poisoned(VectorWrapper):
    """Pays ``placeholder`` where the reward is unknown, and counts those."""

    def __init__(self, env: VectorEnv[Any, Any, Any], placeholder: float) -> None:
        super().__init__(env)
        self.placeholder, self.unknown = placeholder, 0

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        valid = step_info(infos, terminated | truncated)["reward_valid"]
        self.unknown += int((~valid).sum())
        return observation, np.where(valid, reward, self.placeholder), terminated, truncated, infos


def poisoned(placeholder: float, *, num_envs: int = 16, mode: AutoresetMode = AutoresetMode.DISABLED) -> Poisoned:
    """Real episodes of a bandit that loses the designs with first part 2: on every step one in four rewards is unknown."""
    envs = WorldModelVectorEnv(
        Bandit(lose=2, reward="improvement"),
        fitted(Bandit(reward="improvement")),
        num_envs=num_envs,
        anchors=1.0,
        update_every=0,
        warmup=0,
        autoreset_mode=mode,
        seed=0,
    )
    return Poisoned(envs, placeholder)
