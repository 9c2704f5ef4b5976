"""Wrappers for vector environments, under the names of their twins in :mod:`wmrl_gym.wrappers`."""

from wmrl_gym.wrappers.vector.correction import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection
from wmrl_gym.wrappers.vector.presets import corrected
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv

__all__ = [
    "InverseVarianceDenoising",
    "OnlineDebiasing",
    "ResidualCorrection",
    "WorldModelVectorEnv",
    "corrected",
]
