"""Each reward trusted by what its noise says."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym

from wmrl_gym.corrections import AnchorWeight
from wmrl_gym.wrappers.cores import Denoising
from wmrl_gym.wrappers.correction import CorrectionWrapper
from wmrl_gym.wrappers.residual_correction import check_late


class InverseVarianceDenoising(CorrectionWrapper):
    """Sets ``info["weight"]``: how much the advantage of each step should count (arXiv 2608.12564, "Inverse-Variance Denoising").

    In mode "paper" the steps of anchors get ``w = clip(1 + c s^2, 1, 4)``, where s^2 is the running disagreement of calibrated
    predictions and truths; all others 1. A trainer must use the weight; :class:`~wmrl_gym.integrations.sb3.WeightedRolloutBuffer`
    does.

    Args:
        env: an environment with a world model.
        mode: "paper".
        late: for background anchors: promises that the trainer joins late truths itself; a weight on an imagined reward in their
            place would trust the model more where it should be trusted less.

    Raises:
        OrderError: no world model below, or background anchors whose late truths nobody joins.
        ValueError: an unknown mode.
    """

    def __init__(self, env: gym.Env[Any, Any], mode: Literal["paper"] = "paper", *, late: bool = False) -> None:
        super().__init__(env, make_denoising(mode))
        check_late(self, late)


def make_denoising(mode: str) -> Denoising:
    """The core of a mode."""
    if mode != "paper":
        raise ValueError(f'mode must be "paper", got {mode!r}')
    return Denoising(AnchorWeight())
