"""Anchor pairs: what was predicted, what was really paid, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.batch import Ring

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def as_floats(name: str, values: ArrayLike, *, size: int | None = None) -> Floats:
    """``values`` as a float64 vector (a scalar becomes a vector of one).

    Raises:
        ValueError: if it is not a vector, or not of length ``size``.
    """
    if type(values) is np.ndarray and values.dtype == np.float64 and values.ndim == 1 and size in (None, values.size):
        return values
    out = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if out.ndim != 1:
        raise ValueError(f"{name} must be a vector of shape (B,), got shape {out.shape}")
    if size is not None and out.size != size:
        raise ValueError(f"{name} must have shape ({size},), got {out.shape}")
    return out


def as_ints(name: str, values: ArrayLike | None, *, size: int) -> Ints:
    """``values`` as an int64 vector of length ``size``; None is all zeros.

    Raises:
        ValueError: if it does not hold integers, or is not of length ``size``.
    """
    if values is None:
        return np.zeros(size, dtype=np.int64)
    if type(values) is np.ndarray and values.dtype == np.int64 and values.shape == (size,):
        return values
    out = np.atleast_1d(np.asarray(values))
    if out.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {out.shape}")
    if not (np.issubdtype(out.dtype, np.integer) or out.dtype == np.bool_) and size > 0:
        raise ValueError(f"{name} must hold integers, got dtype {out.dtype}")
    return out.astype(np.int64)


def check_range(reward_range: tuple[float, float]) -> tuple[float, float]:
    """``reward_range`` as two finite floats, the smaller first.

    Raises:
        ValueError: if it is anything else.
    """
    low, high = (float(end) for end in reward_range)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"reward_range must be (low, high) with finite low < high, got {reward_range!r}")
    return low, high


class PairWindow:
    """The newest anchor pairs, in a ring of fixed size.

    Args:
        capacity: how many pairs are kept; the oldest make room.

    >>> window = PairWindow(capacity=2)
    >>> window.push([0.1, 0.2, 0.3], [0.0, 0.5, 1.0], [0, 0, 1])
    >>> window.arrays()
    (array([0.2, 0.3]), array([0.5, 1. ]), array([0, 1]))
    """

    def __init__(self, capacity: int = 5000) -> None:
        self._rows = Ring[dict[str, NDArray[Any]]](capacity)

    def __len__(self) -> int:
        return len(self._rows)

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Add pairs in order of arrival.

        Args:
            predicted: float64, shape (B,).
            real: float64, shape (B,).
            context: int64, shape (B,); None is context 0.
        """
        x = as_floats("predicted", predicted)
        y = as_floats("real", real, size=x.size)
        self._rows.add({"predicted": x, "real": y, "context": as_ints("context", context, size=x.size)})

    def arrays(self) -> tuple[Floats, Floats, Ints]:
        """Predicted, real and context of the kept pairs, oldest first; each of shape (n,)."""
        rows = self.state_dict()
        return rows["predicted"], rows["real"], rows["context"]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here."""
        nothing = {"predicted": np.zeros(0), "real": np.zeros(0), "context": np.zeros(0, np.int64)}
        return self._rows.everything() or nothing

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        kinds = {"predicted": np.float64, "real": np.float64, "context": np.int64}
        self._rows.restore({name: np.asarray(state[name], kind) for name, kind in kinds.items()}, len(state["real"]))
