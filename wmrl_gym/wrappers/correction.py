"""The base of the single-environment correction wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from wmrl_gym.wrappers.rewards import STEP_KEYS, Correction, OrderError
from wmrl_gym.wrappers.world_model import WorldModelWrapper


class CorrectionWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Applies a :class:`~wmrl_gym.wrappers.rewards.Correction` to every step of an environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    core: Correction
    """What is done to the rewards."""

    def __init__(self, env: gym.Env[Any, Any], core: Correction) -> None:
        super().__init__(env)
        below: list[Correction] = []
        layer: Any = env
        while isinstance(layer, gym.Wrapper) and not isinstance(layer, WorldModelWrapper):
            if isinstance(layer, CorrectionWrapper):
                below.append(layer.core)
            layer = layer.env
        if not isinstance(layer, WorldModelWrapper):
            raise no_world_model(core, env, vector=isinstance(env, gym.vector.VectorEnv))
        self.core = core
        core.attach(layer.engine, below)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and correct the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        rows = {key: np.asarray([info[key]]) for key in STEP_KEYS}
        corrected = self.core.correct(np.array([float(reward)]), rows, [action])
        for key in self.core.written:
            info[key] = rows[key][0].item()
        return observation, float(corrected[0]), terminated, truncated, info

    def stats(self) -> dict[str, float]:
        """What a log should say of this correction."""
        return self.core.stats()

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, for :meth:`load_state_dict`."""
        return self.core.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.core.load_state_dict(state)


def no_world_model(core: Correction, env: Any, *, vector: bool) -> OrderError:
    """The error of a correction with nothing to correct."""
    if vector:
        return OrderError(f"{core.name} got a vector environment: use wmrl_gym.wrappers.vector.{core.name}")
    return OrderError(
        f"{core.name} corrects the rewards that a world model predicts, and {env} has none: wrap it in WorldModelWrapper first"
    )
