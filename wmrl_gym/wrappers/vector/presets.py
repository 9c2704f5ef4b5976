"""The whole vector stack in one call, and the entry points of ``gymnasium.make_vec``."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa
from wmrl_gym.factored import Factored
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
    **world_model: Any,
) -> VectorEnv[Any, Any, NDArray[Any]]:
    """``num_envs`` imagined environments with a preset's corrections, in their order.

    Args:
        source: as :class:`WorldModelVectorEnv` takes it.
        model: the world model.
        num_envs: imagined environments.
        preset: see :func:`wmrl_gym.wrappers.corrected`.
        late: passed to ResidualCorrection: the trainer joins background anchors' late truths.
        **world_model: passed to WorldModelVectorEnv, such as ``anchors=0.1`` and ``max_real=2``.
    """
    choice = preset_of(preset)
    world_model.setdefault("group_size", choice.group_size)
    stack: VectorEnv[Any, Any, NDArray[Any]] = WorldModelVectorEnv(source, model, num_envs=num_envs, **world_model)
    stack = OnlineDebiasing(stack, choice.calibrator)
    if choice.residual is not False:
        stack = ResidualCorrection(stack, AdaptiveKappa() if choice.residual is None else choice.residual, late=late)
    return InverseVarianceDenoising(stack) if choice.weight else stack


def make_autoresearch(num_envs: int = 1, **options: Any) -> VectorEnv[Any, Any, NDArray[Any]]:
    """``gymnasium.make_vec("wmrl/AutoResearch-v0", num_envs=...)``: real, or imagined where ``world_model=`` is given."""
    from wmrl_gym.envs.autoresearch import AutoResearchText

    return _make(AutoResearchText, num_envs, options)


def make_autoresearch_design(num_envs: int = 1, **options: Any) -> VectorEnv[Any, Any, NDArray[Any]]:
    """``gymnasium.make_vec("wmrl/AutoResearchDesign-v0", num_envs=...)``: real, or imagined where ``world_model=`` is given."""
    from wmrl_gym.envs.autoresearch import AutoResearchDesign

    return _make(AutoResearchDesign, num_envs, options)


_IMAGINED = (
    "anchors",
    "group_size",
    "anchor_mode",
    "pairs",
    "warmup",
    "update_every",
    "max_model_steps",
    "max_in_flight",
    "seed",
)


def _make(factored: type[Factored[Any, Any]], num_envs: int, options: dict[str, Any]) -> VectorEnv[Any, Any, NDArray[Any]]:
    from wmrl_gym.envs.factored_env import FactoredVectorEnv

    model, preset, late = options.pop("world_model", None), options.pop("preset", None), options.pop("late", False)
    max_real = options.pop("max_real", 1)
    mode = options.pop("autoreset_mode", AutoresetMode.NEXT_STEP)
    imagined = {key: options.pop(key) for key in _IMAGINED if key in options}
    options.setdefault("workers", max_real)
    if model is None:
        if imagined or preset is not None:
            unusable = sorted(imagined) + (["preset"] if preset is not None else [])
            raise ValueError(f"{unusable} say how to imagine, which needs world_model=...")
        return FactoredVectorEnv(factored(**options), num_envs=num_envs, max_real=max_real, autoreset_mode=mode)
    shared = {"max_real": max_real, "autoreset_mode": mode, **imagined}
    if preset is None:
        return WorldModelVectorEnv(factored(**options), model, num_envs=num_envs, **shared)
    return corrected(factored(**options), model, num_envs=num_envs, preset=preset, late=late, **shared)
