"""Checks of what a world model returns: a wrong prediction is caught where it is made, not three wrappers later."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from wmrl_gym.world_models import Prediction, WorldModelError


def check_prediction(prediction: Prediction, space: gym.Space[Any], n: int) -> None:
    """Check the shapes, the finiteness, and that each predicted observation lies in ``space``.

    Args:
        prediction: of ``n`` rollouts.
        space: the observation space of one environment.
        n: the number of rollouts.

    Raises:
        WorldModelError: naming what is wrong, with expected and actual.
    """
    for name in ("reward", "reward_std", "terminated", "truncated", "reward_due", "reward_valid"):
        shape = np.shape(getattr(prediction, name))
        if shape != (n,):
            raise WorldModelError(f"prediction.{name} must have shape ({n},), got {shape}")
    unusable = ~np.isfinite(prediction.reward) & prediction.reward_valid
    if unusable.any():
        row = int(np.flatnonzero(unusable)[0])
        raise WorldModelError(
            f"predicted reward of rollout {row} is {prediction.reward[row]}: "
            "an unknown reward has reward_valid=False and a finite placeholder"
        )
    _check_observation(prediction.observation, space, n, path="observation")


def _check_observation(value: Any, space: gym.Space[Any], n: int, *, path: str) -> None:
    if isinstance(space, gym.spaces.Dict):
        missing = set(space.keys()) ^ set(value.keys())
        if missing:
            raise WorldModelError(f"predicted {path} must have the keys {sorted(space.keys())}, got {sorted(value.keys())}")
        for key, sub in space.items():
            _check_observation(value[key], sub, n, path=f"{path}[{key!r}]")
    elif isinstance(space, gym.spaces.Box):
        _check_box(value, space, n, path=path)
    else:
        for row, item in enumerate(iterate(batch_space(space, n), value)):
            if not space.contains(item):
                raise WorldModelError(f"predicted {path} of rollout {row} is outside {space}: {item!r}")


def _check_box(value: Any, space: gym.spaces.Box, n: int, *, path: str) -> None:
    expected = (n, *space.shape)
    if not isinstance(value, np.ndarray) or value.shape != expected or value.dtype != space.dtype:
        found = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise WorldModelError(f"predicted {path} must be {space.dtype} of shape {expected}, got {found}")
    inside = (value >= space.low) & (value <= space.high)
    if not inside.all():
        where = tuple(int(i) for i in np.argwhere(~inside)[0])
        low, high = space.low[where[1:]], space.high[where[1:]]
        raise WorldModelError(
            f"predicted {path} of rollout {where[0]} is outside its space: "
            f"entry {list(where[1:])} is {value[where]}, expected [{low}, {high}]"
        )
