"""What can be said about a task before anything is tried: its columns, and meta-features for a policy or a world model."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.tasks.format import Task, read_rows

_FLAGGED = ("accuracy", "macro-f1", "auc", "log-loss", "rmse", "mae")
"""Metrics with a feature of their own. The list does not grow with the metrics, or policies and models that were saved would no
longer fit."""

_FAMILY = {"bits-per-byte": "log-loss"}

META_FEATURES = (
    "log_train_rows",
    "log_test_rows",
    "log_numeric_columns",
    "log_categorical_columns",
    "log_categories",
    "text",
    "image",
    "missing_rows",
    "missing_cells",
    "rows_per_column",
    "regression",
    "log_labels",
    "rarest_label",
    "commonest_label",
    "larger_is_better",
    *(f"metric_{name}" for name in _FLAGGED),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """Columns and meta-features of a task.

    Args:
        numeric: feature columns whose every cell is a number or missing.
        categorical: the other feature columns, without the text column.
        text: the column of documents, "" where there is none.
        missing: True if any feature cell of the training or test data is empty.
        meta: float32, shape (len(META_FEATURES),), each in [0, 1].
    """

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    text: str
    missing: bool
    meta: NDArray[np.float32]


def profile(task: Task) -> Profile:
    """The profile of a task, from its public files.

    A task of another benchmark names its files and columns as it likes: only what its metric tells is known of it.
    """
    if task.grader is not None:
        values = {"larger_is_better": float(task.spec.metric.larger_is_better)}
        meta = np.array([values.get(name, 0.0) for name in META_FEATURES], dtype=np.float32)
        return Profile((), (), "", False, meta)
    return _profile(task.public / "train.csv", task.public / "test.csv", task)


@functools.lru_cache(maxsize=256)
def _read(path: Path) -> dict[str, list[str]]:
    table = read_rows(path)
    return {name: table.column(name) for name in table.header}


def _profile(train_csv: Path, test_csv: Path, task: Task) -> Profile:
    spec = task.spec
    train, test = _read(train_csv), _read(test_csv)
    features = [name for name in train if name not in (spec.id_column, spec.target, spec.text_column)]
    numeric = tuple(name for name in features if all(map(_is_number, train[name] + test[name])))
    categorical = tuple(name for name in features if name not in numeric)
    rows = len(train[spec.id_column])
    empty = np.array([[cell == "" for cell in train[name]] for name in features], dtype=np.bool_).reshape(-1, rows)
    missing = bool(empty.any()) or any("" in test[name] for name in features)
    categories = sum(len(set(train[name])) for name in categorical)
    shares = _label_shares(train[spec.target]) if spec.kind != "regression" else [0.0, 0.0]
    values = {
        "log_train_rows": _log(rows, 5),
        "log_test_rows": _log(len(test[spec.id_column]), 5),
        "log_numeric_columns": _log(len(numeric), 3),
        "log_categorical_columns": _log(len(categorical), 3),
        "log_categories": _log(categories, 4),
        "text": float(spec.modality in ("text", "language")),
        "image": float(spec.modality == "image"),
        "missing_rows": float(empty.any(axis=0).mean()) if features else 0.0,
        "missing_cells": float(empty.mean()) if features else 0.0,
        "rows_per_column": _log(rows / max(len(numeric) + categories, 1), 4),
        "regression": float(spec.kind == "regression"),
        "log_labels": _log(len(spec.labels), 2),
        "rarest_label": min(shares),
        "commonest_label": max(shares),
        "larger_is_better": float(spec.metric.larger_is_better),
        **{f"metric_{name}": float(_FAMILY.get(spec.metric.name, spec.metric.name) == name) for name in _FLAGGED},
    }
    meta = np.array([values[name] for name in META_FEATURES], dtype=np.float32)
    return Profile(numeric, categorical, spec.text_column, missing, meta)


def _log(count: float, decades: float) -> float:
    """log10(1 + count) as a fraction of so many decades, at most 1."""
    return float(min(np.log10(1.0 + count) / decades, 1.0))


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True


def _label_shares(target: list[str]) -> list[float]:
    counts = Counter(target)
    return [count / len(target) for count in counts.values()]
