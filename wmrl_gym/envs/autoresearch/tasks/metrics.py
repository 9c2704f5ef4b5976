"""Metrics by name: what each one needs from a submission, and which direction is better. The arithmetic is scikit-learn's."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
