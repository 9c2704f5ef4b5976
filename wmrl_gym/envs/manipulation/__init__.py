"""Manipulation: a robot arm, cameras, and a sentence that says what to do, in Meta-World and LIBERO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.envs.manipulation.env import EpisodeRules, ManipulationEnv, VisionLanguageEnv
    from wmrl_gym.envs.manipulation.instructions import instruction_table
    from wmrl_gym.envs.manipulation.libero import LiberoEnv
    from wmrl_gym.envs.manipulation.rendering import RenderingUnavailable
    from wmrl_gym.envs.manipulation.vla import VLAManipulationEnv, VLAManipulationStateEnv

__all__ = [
    "EpisodeRules",
    "LiberoEnv",
    "ManipulationEnv",
    "RenderingUnavailable",
    "VLAManipulationEnv",
    "VLAManipulationStateEnv",
    "VisionLanguageEnv",
    "instruction_table",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EpisodeRules": "env",
        "LiberoEnv": "libero",
        "ManipulationEnv": "env",
        "RenderingUnavailable": "rendering",
        "VLAManipulationEnv": "vla",
        "VLAManipulationStateEnv": "vla",
        "VisionLanguageEnv": "env",
        "instruction_table": "instructions",
    },
)
