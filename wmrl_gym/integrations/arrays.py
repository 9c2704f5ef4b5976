"""Trainers that keep a rollout as arrays, such as CleanRL's files: what is known of it, and late truths.

>>> valid = np.array([[True], [True], [False], [True]])
>>> ends = np.array([[True], [False], [True], [False]])
>>> known_to_the_end(valid, ends).ravel()
array([ True, False, False,  True])
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.wrappers import world_model_parts

__all__ = ["LateTruths", "known_to_the_end"]


def known_to_the_end(valid: NDArray[np.bool_], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which steps have a known return: no unknown reward at them, or after them in the same episode.

    Args:
        valid: bool, shape (n_steps, ...): ``info["reward_valid"]`` of each step.
        ends: bool, the same shape: the steps at which an episode ended.

    Returns:
        Bool, the same shape. All other steps have to be left out of the loss: an unknown reward makes the returns of its whole
        episode so far unknown.

    Raises:
        ValueError: the shapes differ.
    """
    if valid.shape != ends.shape:
        raise ValueError(f"valid and ends must have one shape, got {valid.shape} and {ends.shape}")
    known = valid.astype(np.bool_)
    for step in reversed(range(len(known) - 1)):
        known[step] &= known[step + 1] | ends[step]
    return known


class LateTruths:
    """The late truths of background anchors, for the rollouts that their rewards were paid in.

    With ResidualCorrection (``late=True``) a reward becomes f plus its share of what f missed, else the truth. A truth that does
    not arrive leaves its step unknown, and the propensity of the others is corrected for it.

    Args:
        envs: with a world model and background anchors; made before their first rollout, since truths are collected from now on.
        name: what asks for them, in errors.

    Raises:
        TypeError: there is no world model in ``envs``, or its anchors are there at once.
    """

    def __init__(self, envs: Any, *, name: str = "LateTruths") -> None:
        parts = world_model_parts(envs)
        if parts is None:
            raise TypeError(f"{name} needs an environment with a world model, {type(envs).__name__} has none")
        if parts.engine.options.anchor_mode != "background":
            raise TypeError(f"{name} joins background anchors; {parts.engine.options.anchor_mode} ones need no joining")
        self.engine, self.residual = parts.engine, parts.residual
        self.arrived, self.missing = 0, 0
        self.engine.collect_late()

    def join(self, rewards: NDArray[Any], valid: NDArray[np.bool_], *, pairs: NDArray[np.int64], timeout_s: float = 60.0) -> None:
        """Wait for the anchors of a rollout and put what their truths are worth in its rewards, before advantages are computed.

        Args:
            rewards: float, any shape, as the environment returned them; changed in place.
            valid: bool, the same shape; changed in place.
            pairs: int64, the same shape: ``info["pair"]``, and -1 where the truth is there already or none comes.
            timeout_s: the longest wait, in seconds.

        Raises:
            ValueError: the shapes differ.
        """
        if not rewards.shape == valid.shape == pairs.shape:
            raise ValueError(
                f"rewards, valid and pairs must have one shape, got {rewards.shape}, {valid.shape} and {pairs.shape}"
            )
        self.engine.wait(timeout_s)
        truths, _ = self.engine.collect_late()
        waiting = [(tuple(at), int(pairs[tuple(at)])) for at in np.argwhere(pairs >= 0)]
        arrived = sum(number in truths for _, number in waiting)
        for at, number in waiting:
            if number not in truths:
                valid[at] = False
                if self.residual is not None:
                    self.residual.forget(number)
            elif self.residual is None:
                rewards[at] = truths[number]
            else:
                rewards[at] = self.residual.late_reward(number, truths[number], completion=arrived / len(waiting))
        self.arrived, self.missing = self.arrived + arrived, self.missing + len(waiting) - arrived
