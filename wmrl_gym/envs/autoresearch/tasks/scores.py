"""Scores: metrics by name, whose arithmetic is scikit-learn's, and leaderboards, where a score stands among real ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, read_rows_of

Predicts = Literal["label", "probability", "number"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A score for predictions.

    Args:
        name: as in ``task.toml``.
        larger_is_better: the direction.
        predicts: what a submission holds: a label, a probability (of the second label, or of each label where there are more than
            two), or a number.
        score: ``score(truth, predictions, n_labels)``. Truth is int64 label numbers or float64, shape (n,); predictions are int64
            (n,) labels, float64 (n, n_labels) probabilities, or float64 (n,) numbers.
    """

    name: str
    larger_is_better: bool
    predicts: Predicts
    score: Callable[[NDArray[Any], NDArray[Any], int], float]


def _accuracy(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predictions))


def _macro_f1(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predictions, labels=np.arange(n_labels), average="macro", zero_division=0.0))


def _auc(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, predictions[:, 1]))


def _log_loss(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(truth, predictions / predictions.sum(axis=1, keepdims=True), labels=np.arange(n_labels)))


def _bits_per_byte(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    return _log_loss(truth, predictions, n_labels) / float(np.log(2.0))


def _rmse(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import mean_squared_error

    return float(np.sqrt(mean_squared_error(truth, predictions)))


def _mae(truth: NDArray[Any], predictions: NDArray[Any], n_labels: int) -> float:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(truth, predictions))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", True, "label", _accuracy),
        Metric("macro-f1", True, "label", _macro_f1),
        Metric("auc", True, "probability", _auc),
        Metric("log-loss", False, "probability", _log_loss),
        Metric("bits-per-byte", False, "probability", _bits_per_byte),
        Metric("rmse", False, "number", _rmse),
        Metric("mae", False, "number", _mae),
    )
}


def metric(name: str) -> Metric:
    """The metric of that name.

    >>> metric("rmse").larger_is_better
    False

    Raises:
        ValueError: for an unknown name, naming the closest.
    """
    if name not in METRICS:
        close = difflib.get_close_matches(name, METRICS, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown metric {name!r}{hint} Expected one of {', '.join(METRICS)}")
    return METRICS[name]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The scores of other solutions, among which a new score is ranked.

    Args:
        goodness: float64, shape (n,), ascending: scores, negated where smaller is better, so that larger is always better.
        larger_is_better: the direction of the scores themselves.
    """

    goodness: NDArray[np.float64]
    larger_is_better: bool

    @classmethod
    def of(cls, scores: Iterable[float], *, larger_is_better: bool) -> Leaderboard:
        """A leaderboard of these scores; entries that are not finite are dropped.

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
        try:
            table = read_rows_of(path)
        except BadTable as error:
            raise ValueError(f"it {error}") from error
        if "score" not in table.header:
            raise ValueError(f"expected a column 'score', got columns {list(table.header)}")
        scores = [float(cell or "nan") for cell in table.column("score")]
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

    def scores_at(self, percentiles: NDArray[np.float64]) -> NDArray[np.float64]:
        """:meth:`score_at` for each of some percentiles in [0, 1]: float64, shape (B,).

        >>> Leaderboard.of([0.1, 0.2, 0.4], larger_is_better=False).scores_at(np.array([0.5, 1.0]))
        array([0.2, 0.1])
        """
        good = np.interp(percentiles, np.linspace(0.0, 1.0, len(self.goodness)), self.goodness)
        return good if self.larger_is_better else -good
