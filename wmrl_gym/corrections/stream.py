"""The anchor stream: the only ground truth in the loop, as pairs of a predicted and a real reward."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def _none() -> Pairs:
    integer, real = np.zeros(0, np.int64), np.zeros(0)
    return Pairs(integer, real, real, real, integer, integer, integer, integer, real)
