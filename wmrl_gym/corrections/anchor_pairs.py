"""The anchor stream: the only ground truth in the loop, as pairs of a predicted and a real reward."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.batch import Ring


@dataclass(frozen=True, slots=True)
class Pairs:
    """N steps whose reward was both predicted and really measured.

    Args:
        pair: int64, shape (N,). Number of the pair, unique in a run; a late truth is joined to its step by it.
        predicted: float64, shape (N,). The world model's raw reward.
        predicted_std: float64, shape (N,). Its own standard deviation; NaN where it does not know.
        real: float64, shape (N,). The truth.
        group: int64, shape (N,). Rollouts of one group answer the same question.
        episode: int64, shape (N,).
        step: int64, shape (N,). Steps since the episode's start: the depth at which an open-loop prediction was made.
        context: int64, shape (N,). Which task.
        propensity: float64, shape (N,). The probability with which this episode was chosen to be executed.
        features: float64, shape (N, F). What was done, in numbers; rows of NaN where that is not known, F = 0 where nobody asks.
    """

    pair: NDArray[np.int64]
    predicted: NDArray[np.float64]
    predicted_std: NDArray[np.float64]
    real: NDArray[np.float64]
    group: NDArray[np.int64]
    episode: NDArray[np.int64]
    step: NDArray[np.int64]
    context: NDArray[np.int64]
    propensity: NDArray[np.float64]
    features: NDArray[np.float64] = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        """Without features there are no columns of them."""
        if self.features is None:
            object.__setattr__(self, "features", np.zeros((len(self.real), 0)))

    def __len__(self) -> int:
        return len(self.real)


class AnchorStream(Ring[Pairs]):
    """Pairs in order of arrival; each reader keeps its own cursor, so that several wrappers read the same stream.

    Args:
        capacity: the most pairs kept; the oldest go first. A reader that falls behind by more loses what went.

    >>> stream = AnchorStream()
    >>> one, zero = np.array([1]), np.array([0])
    >>> stream.add(Pairs(zero, one * 0.7, one * 0.1, one * 0.5, zero, zero, zero, zero, one * 0.1))
    >>> pairs, cursor = stream.since(0)
    >>> float(pairs.real[0]), cursor
    (0.5, 1)
    """

    def add(self, rows: Pairs) -> None:
        """Append pairs; features that some have and others do not are NaN in those."""
        before = 0 if self._rows is None else self._rows.features.shape[1]
        width = max(before, rows.features.shape[1])
        kept = self.everything() if before < width else None
        if kept is not None:
            self.restore(_described(kept, width), self.added)
        rows = _described(rows, width)
        super().add(rows)

    def since(self, cursor: int) -> tuple[Pairs, int]:
        """The pairs that arrived after ``cursor``, and the cursor to ask with next time.

        Raises:
            ValueError: the cursor lies in the future.
        """
        pairs = self.newer(cursor)
        return (_none() if pairs is None else pairs), self.added

    def state_dict(self) -> dict[str, Any]:
        """Everything, as arrays and numbers."""
        everything, _ = self.since(self.added - len(self))
        return {"added": self.added, "pairs": {f.name: getattr(everything, f.name) for f in fields(Pairs)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to what :meth:`state_dict` described."""
        self.restore(Pairs(**{name: np.asarray(value) for name, value in state["pairs"].items()}), int(state["added"]))


def _described(pairs: Pairs, width: int) -> Pairs:
    """``pairs`` with that many features, unknown where there are none.

    Raises:
        ValueError: there are others.
    """
    if pairs.features.shape[1] not in (0, width):
        raise ValueError(f"pairs must have {width} features as before, got {pairs.features.shape[1]}")
    unknown = np.full((len(pairs), width), np.nan)
    return pairs if pairs.features.shape[1] == width else replace(pairs, features=unknown)


def _none() -> Pairs:
    integer, real = np.zeros(0, np.int64), np.zeros(0)
    return Pairs(integer, real, real, real, integer, integer, integer, integer, real)


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
