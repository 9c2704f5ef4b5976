"""Several vector environments, one for each task, as one: so that one call of a trainer serves all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

KEYS = ("weight", "reward_valid", "real_reward", "pair")
"""What a trainer needs to know of a step besides its reward."""


class SideBySide(VectorEnv[NDArray[np.float32], Any, NDArray[Any]]):
    """T vector environments of n slots each, stepped together; what is observed is which of them a slot belongs to.

    Each has wrappers, world model and corrections of its own. Since a task has one attempt, on an observation that is always
    the same, which task it is says all that there is to observe.

    Args:
        parts: vector environments in the autoreset mode "same step", with equal slots and actions; closed with it.

    Raises:
        ValueError: they differ.
    """

    def __init__(self, parts: Sequence[VectorEnv[Any, Any, Any]]) -> None:
        first = parts[0]
        for part in parts:
            mode = part.metadata.get("autoreset_mode")
            if (part.num_envs, part.single_action_space) != (first.num_envs, first.single_action_space) or (
                mode != AutoresetMode.SAME_STEP
            ):
                raise ValueError(f"parts must have the same slots and actions and reset in the same step, got {part} in {mode}")
        self.parts = list(parts)
        self.each = first.num_envs
        self.num_envs = self.each * len(parts)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = Box(0.0, 1.0, (len(parts),), np.float32)
        self.single_action_space = first.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observed = np.repeat(np.eye(len(parts), dtype=np.float32), self.each, axis=0)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start all; each part from a seed of its own."""
        if seed is not None and not isinstance(seed, int):
            raise ValueError(f"seed must be one number or None, got {seed!r}")
        for at, part in enumerate(self.parts):
            part.reset(seed=None if seed is None else int(np.random.SeedSequence([seed, at]).generate_state(1)[0] >> 1))
        return self._observed.copy(), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all parts.

        Raises:
            RuntimeError: an episode goes on: its observations would not be what is said here.
        """
        chunks = [actions[at * self.each : (at + 1) * self.each] for at in range(len(self.parts))]
        steps = [part.step(chunk) for part, chunk in zip(self.parts, chunks, strict=True)]
        reward, terminated, truncated = (np.concatenate([step[at] for step in steps]) for at in (1, 2, 3))
        if not (terminated | truncated).all():
            raise RuntimeError("episodes of one attempt must end with it")
        final = [step[4]["final_info"] for step in steps]
        known = [key for key in KEYS if all(key in each for each in final)]
        joined = {name: np.concatenate([each[name] for each in final]) for key in known for name in (key, f"_{key}")}
        infos = {"final_info": joined, "final_obs": self._observed.copy()}
        return self._observed.copy(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close the parts."""
        for part in self.parts:
            part.close()
