"""Wrappers for one environment; their vector twins are in :mod:`wmrl_gym.wrappers.vector`."""

from wmrl_gym.wrappers.diagnostics import diagnostics
from wmrl_gym.wrappers.encode_instruction import EncodeInstruction
from wmrl_gym.wrappers.inverse_variance_denoising import InverseVarianceDenoising
from wmrl_gym.wrappers.online_debiasing import OnlineDebiasing
from wmrl_gym.wrappers.presets import corrected
from wmrl_gym.wrappers.residual_correction import ResidualCorrection
from wmrl_gym.wrappers.rewards import OrderError
from wmrl_gym.wrappers.stack_images import StackImages
from wmrl_gym.wrappers.world_model import WorldModelWrapper

__all__ = [
    "EncodeInstruction",
    "InverseVarianceDenoising",
    "OnlineDebiasing",
    "OrderError",
    "ResidualCorrection",
    "StackImages",
    "WorldModelWrapper",
    "corrected",
    "diagnostics",
]
