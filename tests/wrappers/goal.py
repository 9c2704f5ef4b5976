"""A small environment that tells more than it must, a model that predicts what it tells, and CartPole."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.wrappers.nothing import Nothing


class Goal(gym.Env[Any, Any]):
    """Five steps; says whether it succeeded, which actions are legal, and breaks when it is told to."""

    observation_space = gym.spaces.Box(-1, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, breaks_at: int = 0) -> None:
        self.breaks_at = breaks_at
        self.number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = 0
        return np.zeros(1, np.float32), {"is_success": False}

    def action_masks(self) -> Any:
        return np.array([self.x > 0, self.x < 9, True])

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action], f"illegal action {action} at {self.x}"
        self.x += 1
        self.number += 1
        seen = np.full(1, np.nan if self.number == self.breaks_at else self.x, np.float32)
        return seen, 1.0, self.x >= 5, False, {"is_success": self.x >= 5, "where": {"x": self.x}}


class Told(Nothing):
    """Predicts what it is told of masks and of the environment's own info."""

    def action_masks(self, state: Any) -> Any:
        return np.tile([False, True, True], (len(state), 1))

    def step(self, state: Any, action: Any, rng: Any) -> Any:
        after, prediction = super().step(state, action, rng)
        prediction.info["is_success"] = np.ones(len(state), bool)
        return after, prediction


def cart_pole(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **options)
