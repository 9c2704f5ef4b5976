"""Each reward trusted by what its noise says."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from wmrl_gym.wrappers.correction import CorrectionWrapper
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.residual_correction import check_late


class InverseVarianceDenoising(CorrectionWrapper):
    """Trusts each reward by what its noise says (arXiv 2608.12564, "Inverse-Variance Denoising").

    Mode "paper" sets ``info["weight"]``, how much the advantage of a step should count: ``w = clip(1 + c s^2, 1, 4)`` on anchors,
    where s^2 is the running disagreement of calibrated predictions and truths, and 1 elsewhere. Mode "gradient" sets it too, to
    the ratio of the variances of the two streams as they are measured (:class:`~wmrl_gym.corrections.RewardFusion`). A trainer
    must use the weight; :class:`~wmrl_gym.integrations.sb3.WeightedRolloutBuffer` does. Mode "reward" changes the reward instead,
    for any
    trainer: each predicted one is shrunk towards its group's mean by its own ``wm_reward_std``
    (:class:`~wmrl_gym.corrections.RewardShrinkage`).

    Args:
        env: an environment with a world model.
        mode: "paper", "gradient" or "reward".
        method: of mode "gradient": variances by the "delta" method or by "bootstrap".
        late: for background anchors: promises that the trainer joins late truths itself; a weight on an imagined reward in their
            place would trust the model more where it should be trusted less. Mode "reward" does not need it.

    Raises:
        OrderError: no world model below, or background anchors whose late truths nobody joins.
        ValueError: an unknown mode, or a method for a mode that has none.
    """

    def __init__(self, env: gym.Env[Any, Any], mode: Mode = "paper", *, method: Method = "delta", late: bool = False) -> None:
        core = make_denoising(mode, method)
        super().__init__(env, core)
        check_late(self, late or not core.joins_late)
