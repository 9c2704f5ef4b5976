"""Actions as they arrive from a policy: checked before they reach a simulator, which would take NaN and break later."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

OutOfRange = Literal["clip", "error"]


def checked_action(action: Any, space: Box, *, out_of_range: OutOfRange = "clip") -> NDArray[np.float32]:
    """``action`` as a float32 array inside ``space``.

    Args:
        action: numbers, of the space's shape.
        space: of actions.
        out_of_range: "clip": numbers outside are moved to the nearest inside, as Gaussian policies expect. "error": they raise.

    Raises:
        ValueError: another shape, a number that is not finite, or (with "error") one that is out of range; names the entry.

    >>> checked_action([0.5, 2.0], Box(-1, 1, (2,)))
    array([0.5, 1. ], dtype=float32)
    >>> checked_action([0.5, float("nan")], Box(-1, 1, (2,)))
    Traceback (most recent call last):
        ...
    ValueError: entry 1 of the action is nan, expected a number in [-1.0, 1.0]
    """
    values = np.asarray(action, dtype=np.float32)
    if values.shape != space.shape:
        raise ValueError(f"an action must have shape {space.shape}, got {values.shape}")
    wrong = ~np.isfinite(values)
    if out_of_range == "error":
        wrong |= (values < space.low) | (values > space.high)
    if wrong.any():
        entry = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"entry {entry} of the action is {values[entry]}, expected a number in [{space.low[entry]}, {space.high[entry]}]"
        )
    return np.clip(values, space.low, space.high)
