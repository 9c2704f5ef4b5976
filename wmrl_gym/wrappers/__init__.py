"""Wrappers for one environment; their vector twins are in :mod:`wmrl_gym.wrappers.vector`."""

from wmrl_gym.wrappers.corrections import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection
from wmrl_gym.wrappers.diagnostics import StepInfo, WorldModelParts, diagnostics, step_info, world_model_parts
from wmrl_gym.wrappers.observations import EncodeInstruction, StackImages
from wmrl_gym.wrappers.presets import corrected
from wmrl_gym.wrappers.rewards import OrderError
from wmrl_gym.wrappers.world_model import WorldModelWrapper

__all__ = [
    "EncodeInstruction",
    "InverseVarianceDenoising",
    "OnlineDebiasing",
    "OrderError",
    "ResidualCorrection",
    "StackImages",
    "StepInfo",
    "WorldModelParts",
    "WorldModelWrapper",
    "corrected",
    "diagnostics",
    "step_info",
    "world_model_parts",
]
