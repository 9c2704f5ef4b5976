"""Anchor pairs: what was predicted, what was really paid, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def as_floats(name: str, values: ArrayLike, *, size: int | None = None) -> Floats:
    """``values`` as a float64 vector (a scalar becomes a vector of one).

    Raises:
        ValueError: if it is not a vector, or not of length ``size``.
    """
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
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = int(capacity)
        self._predicted = np.zeros(0)
        self._real = np.zeros(0)
        self._context = np.zeros(0, dtype=np.int64)
        self._next = 0

    def __len__(self) -> int:
        return int(self._predicted.size)

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Add pairs in order of arrival.

        Args:
            predicted: float64, shape (B,).
            real: float64, shape (B,).
            context: int64, shape (B,); None is context 0.
        """
        x = as_floats("predicted", predicted)
        y = as_floats("real", real, size=x.size)
        c = as_ints("context", context, size=x.size)
        room = self.capacity - len(self)
        if room > 0:
            self._predicted = np.concatenate([self._predicted, x[:room]])
            self._real = np.concatenate([self._real, y[:room]])
            self._context = np.concatenate([self._context, c[:room]])
            x, y, c = x[room:], y[room:], c[room:]
        if x.size > self.capacity:
            self._next = (self._next + x.size - self.capacity) % self.capacity
            x, y, c = x[-self.capacity :], y[-self.capacity :], c[-self.capacity :]
        where = (self._next + np.arange(x.size)) % self.capacity
        self._predicted[where], self._real[where], self._context[where] = x, y, c
        self._next = (self._next + x.size) % self.capacity

    def arrays(self) -> tuple[Floats, Floats, Ints]:
        """Predicted, real and context of the kept pairs, oldest first; each of shape (n,)."""
        turn = -self._next
        return np.roll(self._predicted, turn), np.roll(self._real, turn), np.roll(self._context, turn)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here."""
        predicted, real, context = self.arrays()
        return {"predicted": predicted, "real": real, "context": context}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._predicted, self._real = np.zeros(0), np.zeros(0)
        self._context, self._next = np.zeros(0, dtype=np.int64), 0
        self.push(np.asarray(state["predicted"], float), np.asarray(state["real"], float), np.asarray(state["context"], np.int64))
