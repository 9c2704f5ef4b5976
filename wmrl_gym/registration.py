"""The ids that ``import wmrl_gym`` registers. Entry points are strings: nothing is imported until an environment is made."""

from __future__ import annotations

import gymnasium as gym

IDS = ("wmrl/AutoResearch-v0", "wmrl/AutoResearchDesign-v0")


def register_environments() -> None:
    """Register all ids; ids that are registered already stay as they are."""
    if IDS[0] not in gym.registry:
        gym.register(
            id=IDS[0],
            entry_point="wmrl_gym.envs.autoresearch:AutoResearchEnv",
            vector_entry_point="wmrl_gym.wrappers.vector:make_autoresearch",
        )
    if IDS[1] not in gym.registry:
        gym.register(
            id=IDS[1],
            entry_point="wmrl_gym.envs.autoresearch:AutoResearchDesignEnv",
            vector_entry_point="wmrl_gym.wrappers.vector:make_autoresearch_design",
        )
