"""Predicted rewards, calibrated on anchors as they arrive."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym

from wmrl_gym.corrections import Calibrator, OnlineCalibration, RewardGuard
from wmrl_gym.wrappers.correction import CorrectionWrapper
from wmrl_gym.wrappers.rewards import Debiasing

RewardRange = tuple[float, float] | None | Literal["environment"]


class OnlineDebiasing(CorrectionWrapper):
    """Replaces each predicted reward by f(reward), the real reward to be expected of it ("Online Debiasing", arXiv 2608.12564).

    f is monotone, so that the ranking which the model got right stays, and is fitted on the anchors' pairs; with none it is the
    identity. The truth in a blocking anchor's reward is left alone. ``info["calibrated_reward"]`` is f of the prediction in every
    episode, ``info["residual_var"]`` the running mean square of what f misses.

    Args:
        env: an environment with a world model.
        calibrator: "smooth", the paper's "binned", or an instance.
        reward_range: of one step's reward. "environment" is what the environment itself declares, and a running range where it
            declares none; None is a running range.

    Raises:
        OrderError: no world model below, or a correction that needs this one is.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        calibrator: Literal["smooth", "binned"] | Calibrator = "smooth",
        *,
        reward_range: RewardRange = "environment",
        pessimism: float | None = None,
    ) -> None:
        super().__init__(env, make_debiasing(env, calibrator, reward_range=reward_range, pessimism=pessimism))


def make_debiasing(
    env: Any, calibrator: Literal["smooth", "binned"] | Calibrator, *, reward_range: RewardRange, pessimism: float | None
) -> Debiasing:
    """The core for ``env``, single or vector."""
    guard = None if pessimism is None else RewardGuard(pessimism)
    if not isinstance(calibrator, str):
        return Debiasing(OnlineCalibration(calibrator, reward_range=calibrator.reward_range), guard=guard)
    if reward_range == "environment":
        reward_range = declared_range(env)
    return Debiasing(OnlineCalibration(calibrator, reward_range=reward_range), guard=guard)


def declared_range(env: Any) -> tuple[float, float] | None:
    """The reward range of the environment below, None where it is not finite or there is no world model."""
    layer = env
    while layer is not None and not hasattr(layer, "engine"):
        layer = getattr(layer, "env", None)
    if layer is None:
        return None
    low, high = layer.engine.real.interface.reward_range
    return (low, high) if abs(low) < float("inf") and abs(high) < float("inf") else None
