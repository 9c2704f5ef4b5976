"""A task that is drawn, not simulated: a bar grows across the image. Progress is its length; the sentence says its colour."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from wmrl_gym.data.demonstrations import Episode, run_episode
from wmrl_gym.spaces import UnicodeText

SENTENCES = ("fill the red bar", "grow a blue column")
SIDE = 32


class Bars(gym.Env[Any, NDArray[np.float32]]):
    """An action above 0 lets the bar that was asked for grow; below 0, the other one. Full is success."""

    def __init__(self, *, length: int = 8) -> None:
        self.length = length
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.observation_space = Dict({"image": Box(0, 255, (SIDE, SIDE, 3), np.uint8), "instruction": UnicodeText(64)})
        self.bars, self.which, self.steps = np.zeros(2), 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bars, self.steps = np.zeros(2), 0
        self.which = int(self.np_random.integers(2))
        self.speed = 1.0 + 0.3 * self.np_random.random()
        return self._observe(), {"task": str(self.which), "is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        grows = self.which if float(action[0]) > 0 else 1 - self.which
        self.bars[grows] = min(1.0, self.bars[grows] + self.speed / self.length)
        self.steps += 1
        success = bool(self.bars[self.which] >= 1.0)
        info = {"task": str(self.which), "is_success": success}
        return self._observe(), float(success), success, not success and self.steps >= self.length, info

    def _observe(self) -> dict[str, Any]:
        image = np.full((SIDE, SIDE, 3), 90, np.uint8)
        image[4:14, : int(SIDE * self.bars[0])] = (220, 40, 40)
        image[18:28, : int(SIDE * self.bars[1])] = (40, 40, 220)
        return {"image": image, "instruction": SENTENCES[self.which]}


def demonstrations(count: int, *, good: bool = True) -> list[Episode]:
    """Episodes of a policy that does as it is told, or the opposite."""
    env = Bars()
    action = np.array([1.0 if good else -1.0], np.float32)
    return [run_episode(env, lambda env, observation: action, seed=seed) for seed in range(count)]
