"""Anchors' truths as a correction of their own rewards, for any algorithm."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from wmrl_gym.corrections import AdaptiveKappa
from wmrl_gym.wrappers.correction import CorrectionWrapper
from wmrl_gym.wrappers.rewards import OrderError, Residual


class ResidualCorrection(CorrectionWrapper):
    """Pays anchors ``f + (kappa / p)(r - f)``: on average over episodes that is f plus kappa times what f misses.

    An algorithm that knows nothing of weights, such as plain PPO, so profits from anchors. The rewards of anchors span about
    kappa / p times the reward's range: do not clip them outside this wrapper, and do not divide them by each group's own
    standard deviation, which would undo the correction.

    Args:
        env: an environment with a world model and :class:`OnlineDebiasing`.
        kappa: share of the residual that is passed on, in [0, 1], or an :class:`~wmrl_gym.corrections.AdaptiveKappa`.
        late: for background anchors: promises that the trainer joins late truths itself (``LateAnchors`` for Stable-Baselines3).
        max_gain: the most that kappa / p may be. With very few anchors a single one would otherwise outweigh a whole batch; where
            there is about one a batch, 1 to 2 serves better than the default, which suits ten and more.

    Raises:
        OrderError: no world model or no OnlineDebiasing below, or background anchors whose late truths nobody joins.
    """

    def __init__(
        self, env: gym.Env[Any, Any], kappa: float | AdaptiveKappa = 0.5, *, late: bool = False, max_gain: float = 5.0
    ) -> None:
        super().__init__(env, Residual(kappa, late=late, max_gain=max_gain))
        check_late(self, late)


def check_late(wrapper: Any, late: bool) -> None:
    """Refuse background anchors unless the trainer has promised to join their truths."""
    layer = wrapper
    while not hasattr(layer, "engine"):
        layer = layer.env
    if layer.engine.options.anchor_mode == "background" and not late:
        raise OrderError(
            f"{wrapper.core.name} cannot change rewards that step() has already returned, and background anchors' truths arrive "
            "later: use anchor_mode='blocking', or pass late=True and let the trainer join them "
            "(wmrl_gym.integrations.sb3.LateAnchors does it for Stable-Baselines3)"
        )
