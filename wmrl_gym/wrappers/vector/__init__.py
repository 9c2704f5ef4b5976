"""Wrappers for vector environments, under the names of their twins in :mod:`wmrl_gym.wrappers`."""

from wmrl_gym.wrappers.vector.corrections import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection, corrected
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv

__all__ = [
    "InverseVarianceDenoising",
    "OnlineDebiasing",
    "ResidualCorrection",
    "WorldModelVectorEnv",
    "corrected",
]
