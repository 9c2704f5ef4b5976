"""Leaderboards: the real scores that others reached, and where a new score would stand among them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Scores to be measured against.

    Args:
        goodness: float64, shape (n,), ascending: scores, negated where smaller is better, so that larger is always better.
        larger_is_better: the direction of the scores themselves.
    """

    goodness: NDArray[np.float64]
    larger_is_better: bool

    @classmethod
    def of(cls, scores: Iterable[float], *, larger_is_better: bool) -> Leaderboard:
        """A leaderboard of these scores; entries that are not finite are dropped, as they beat nobody.

        Raises:
            ValueError: if no finite score is left.
        """
        values = np.asarray(list(scores), dtype=np.float64)
        finite = values[np.isfinite(values)]
        if len(finite) == 0:
            raise ValueError(f"a leaderboard needs at least one finite score, got {len(values)} entries, none finite")
        return cls(np.sort(finite if larger_is_better else -finite), larger_is_better)

    @classmethod
    def read(cls, path: Path, *, larger_is_better: bool) -> Leaderboard:
        """Read the column ``score`` of a csv file; an empty cell is a failed entry and is dropped.

        Raises:
            ValueError: if there is no such column, a cell is not a number, or no finite score is left.
        """
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "score" not in (reader.fieldnames or ()):
                raise ValueError(f"expected a column 'score', got columns {list(reader.fieldnames or ())}")
            scores = [float(row["score"] or "nan") for row in reader]
        return cls.of(scores, larger_is_better=larger_is_better)

    def percentile(self, scores: ArrayLike) -> NDArray[np.float64]:
        """The fraction of entries that each score beats, a tie counting one half.

        >>> Leaderboard.of([0.1, 0.2, 0.2, 0.4], larger_is_better=False).percentile([0.05, 0.2, 0.9])
        array([1. , 0.5, 0. ])

        Args:
            scores: finite scores of any shape.

        Returns:
            float64, the same shape, in [0, 1].
        """
        good = np.asarray(scores, dtype=np.float64) * (1.0 if self.larger_is_better else -1.0)
        below = np.searchsorted(self.goodness, good, side="left")
        not_above = np.searchsorted(self.goodness, good, side="right")
        return np.asarray((below + not_above) / (2.0 * len(self.goodness)), dtype=np.float64)

    def score_at(self, percentile: float) -> float:
        """The score that stands at a percentile in [0, 1]: what a predicted percentile would look like as a score.

        >>> Leaderboard.of([0.1, 0.2, 0.4], larger_is_better=False).score_at(0.5)
        0.2
        """
        # By hand, as np.quantile takes most of the time of describing a batch of predictions.
        place = percentile * (len(self.goodness) - 1)
        below = min(int(place), len(self.goodness) - 1)
        low, high = float(self.goodness[below]), float(self.goodness[min(below + 1, len(self.goodness) - 1)])
        good = low + (place - below) * (high - low)
        return good if self.larger_is_better else -good
