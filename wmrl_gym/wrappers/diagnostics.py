"""What is known of a wrapped environment: for logs, and for trainers that use weights, validity or late truths themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.engine.engine import Engine
from wmrl_gym.engine.info import StepInfo
from wmrl_gym.world_models import WorldModel
from wmrl_gym.wrappers.rewards import Correction, Debiasing, Denoising, Residual
from wmrl_gym.wrappers.vector.corrections import VectorStepInfo

__all__ = ["StepInfo", "WorldModelParts", "diagnostics", "layers", "step_info", "world_model_parts"]


def diagnostics(env: Any) -> dict[str, float]:
    """The ``stats()`` of every layer of ``env``, single or vector, under common names such as ``cost/executions``."""
    collected: dict[str, float] = {}
    for layer in layers(env):
        # Looked up on the class: wrappers forward unknown attributes, and a layer must not be asked twice.
        if hasattr(type(layer), "stats"):
            collected |= layer.stats()
    return collected


def layers(env: Any) -> Iterator[Any]:
    """``env`` and everything that it wraps, outermost first."""
    while env is not None:
        yield env
        env = vars(env).get("env")


@dataclass(frozen=True, slots=True)
class WorldModelParts:
    """What a trainer may want of an environment with a world model; see :func:`world_model_parts`.

    Args:
        engine: steps, executes and counts: ``engine.stream`` has the pairs, ``engine.buffer`` the real transitions,
            ``engine.collect_late()`` the truths of background anchors.
        model: the world model.
        corrections: those around it, innermost first.
    """

    engine: Engine
    model: WorldModel
    corrections: tuple[Correction, ...]

    @property
    def debiasing(self) -> Debiasing | None:
        """What OnlineDebiasing does to rewards; ``debiasing.calibrated(...)`` is f as it is now."""
        return next((each for each in self.corrections if isinstance(each, Debiasing)), None)

    @property
    def residual(self) -> Residual | None:
        """What ResidualCorrection does to them; ``residual.late_reward(pair, truth)`` is a late anchor's."""
        return next((each for each in self.corrections if isinstance(each, Residual)), None)

    @property
    def denoising(self) -> Denoising | None:
        """What InverseVarianceDenoising does."""
        return next((each for each in self.corrections if isinstance(each, Denoising)), None)


def world_model_parts(env: Any) -> WorldModelParts | None:
    """The engine, the model and the corrections of a wrapped environment, single or vector; None where there is no world model.

    >>> import gymnasium as gym
    >>> world_model_parts(gym.make("CartPole-v1")) is None
    True
    """
    corrections: list[Correction] = []
    for layer in layers(env):
        held = vars(layer)
        if isinstance(held.get("correction"), Correction):
            corrections.insert(0, held["correction"])
        if isinstance(held.get("engine"), Engine):
            return WorldModelParts(held["engine"], held["engine"].model, tuple(corrections))
    return None


def step_info(infos: dict[str, Any], over: NDArray[np.bool_]) -> StepInfo:
    """The info of a vector environment's step by key: ``step_info(infos, terminated | truncated)["weight"]``.

    Each key that an environment with a world model has is an array of ``num_envs`` rows, in any autoreset mode: that of an ended
    step is taken from ``final_info``; a number that nobody knows is NaN; what is not there has its default.

    Args:
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended.

    >>> step_info({"weight": np.array([1.0, 2.0])}, np.zeros(2, bool))["weight"]
    array([1., 2.])
    """
    return VectorStepInfo(infos, over)
