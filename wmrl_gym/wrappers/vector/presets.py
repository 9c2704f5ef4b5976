"""The whole vector stack in one call."""

from __future__ import annotations

from numbers import Real
from typing import Any

from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa
from wmrl_gym.world_models import WorldModel
from wmrl_gym.wrappers.presets import PresetName, preset_of
from wmrl_gym.wrappers.vector.correction import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv


def corrected(
    source: Any,
    model: WorldModel,
    *,
    num_envs: int,
    preset: PresetName = "recommended",
    late: bool = False,
    max_gain: float = 5.0,
    **world_model: Any,
) -> VectorEnv[Any, Any, NDArray[Any]]:
    """``num_envs`` imagined environments with a preset's corrections, in their order.

    Args:
        source: as :class:`WorldModelVectorEnv` takes it.
        model: the world model.
        num_envs: imagined environments.
        preset: see :func:`wmrl_gym.wrappers.corrected`.
        late: passed to ResidualCorrection and InverseVarianceDenoising: the trainer joins background anchors' late truths.
        max_gain: passed to ResidualCorrection.
        **world_model: passed to WorldModelVectorEnv, such as ``anchors=0.1`` and ``max_real=2``.
    """
    choice = preset_of(preset)
    if isinstance(world_model.get("anchors", 0.1), Real):  # a schedule has groups of its own
        world_model.setdefault("group_size", choice.group_size)
    stack: VectorEnv[Any, Any, NDArray[Any]] = WorldModelVectorEnv(source, model, num_envs=num_envs, **world_model)
    if choice.calibrator is not None:
        stack = OnlineDebiasing(stack, choice.calibrator)
    if choice.residual is not False:
        kappa = AdaptiveKappa() if choice.residual is None else choice.residual
        stack = ResidualCorrection(stack, kappa, late=late, max_gain=max_gain)
    return InverseVarianceDenoising(stack, late=late) if choice.weight else stack
