"""Descriptors of a task: what its training data say about which scripts will do well, for models that know other tasks.

They stand beside the meta-features of :mod:`~wmrl_gym.envs.autoresearch.tasks.profile`, which policies observe and which
therefore stay as they are. Beside plain statistics of the target and of the columns there are landmarks: how well a few quick
learners predict held-out training rows (Pfahringer, Bensusan and Giraud-Carrier, 2000). They read the public training file alone.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.tasks.format import Task, read_rows
from wmrl_gym.envs.autoresearch.tasks.profile import Profile, profile

_LANDMARKS = ("linear", "neighbours", "stump", "tree", "trees", "log_target", "few_columns")
DESCRIPTORS = (
    "target_skew",
    "target_tails",
    "target_negative",
    "target_distinct",
    "label_entropy",
    "negative_columns",
    "column_skew",
    "column_scales",
    "constant_cells",
    "strongest_column",
    "mean_column",
    "redundant_columns",
    *(f"landmark_{name}" for name in _LANDMARKS),
    "linear_against_trees",
    "neighbours_against_trees",
)
"""What each descriptor is. Those after ``landmark_`` are the share of the spread of the target (of its labels' indicators) that a
quick learner explains on rows that it did not see, at least -1."""

_ROWS, _COLUMNS, _CATEGORIES, _WORDS = 500, 160, 12, 128
"""Rows and columns that landmarks look at, categories of a column, and columns that documents are hashed into."""
_FOLDS = 3


def descriptors(task: Task) -> NDArray[np.float32]:
    """The descriptors of a task: float32, shape (len(DESCRIPTORS),), each in [-1, 1].

    All 0 for a task of another benchmark, whose files have any form.
    """
    if task.grader is not None:
        return np.zeros(len(DESCRIPTORS), np.float32)
    return _descriptors(task.public / "train.csv", task)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows for the landmarks: float64 ``x`` (N, F) without gaps and standardised, ``plain`` before that, and ``y`` (N, K)."""

    x: NDArray[np.float64]
    plain: NDArray[np.float64]
    y: NDArray[np.float64]


@functools.lru_cache(maxsize=256)
def _described(path: Path, modified: int, regression: bool, task_key: _Key) -> NDArray[np.float32]:
    has, spec = task_key.profile, task_key.task.spec
    table = read_rows(path)
    columns = {name: table.column(name) for name in table.header}
    every = np.arange(len(table.rows))
    kept = np.random.default_rng(0).permutation(every)[:_ROWS]
    rows = _rows(columns, has, spec.target, regression=regression, kept=kept)
    values = _of_target(columns[spec.target], regression=regression) | _of_columns(rows) | _landmarks(rows, regression=regression)
    found = np.clip(np.array([values[name] for name in DESCRIPTORS]), -1.0, 1.0).astype(np.float32)
    found.flags.writeable = False
    return found


class _Key:
    """A task as an argument that is remembered by its folder."""

    __slots__ = ("profile", "task")

    def __init__(self, task: Task, has: Profile) -> None:
        self.task, self.profile = task, has

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.task.directory == self.task.directory

    def __hash__(self) -> int:
        return hash(self.task.directory)


def _descriptors(path: Path, task: Task) -> NDArray[np.float32]:
    return _described(path, path.stat().st_mtime_ns, task.spec.kind == "regression", _Key(task, profile(task)))


def _rows(columns: dict[str, list[str]], has: Profile, target: str, *, regression: bool, kept: NDArray[np.int64]) -> _Rows:
    parts = [_numeric([columns[name][row] for row in kept]) for name in has.numeric[:_COLUMNS]]
    for name in has.categorical:
        cells = np.array([columns[name][row] for row in kept])
        levels, counts = np.unique(cells, return_counts=True)
        parts.extend(
            (cells == level).astype(float)[:, None] for level in levels[np.argsort(-counts, kind="stable")][:_CATEGORIES]
        )
    if has.text:
        parts.append(_hashed([columns[has.text][row] for row in kept]))
    plain = np.hstack(parts)[:, : 2 * _COLUMNS] if parts else np.zeros((len(kept), 1))
    spread = plain.std(axis=0)
    x = (plain - plain.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    cells = np.array([columns[target][row] for row in kept])
    y = cells.astype(float)[:, None] if regression else (cells[:, None] == np.unique(cells)).astype(float)
    return _Rows(x, plain, y)


def _numeric(cells: list[str]) -> NDArray[np.float64]:
    values = np.array([float(cell) if cell else np.nan for cell in cells])
    known = np.isfinite(values)
    values[~known] = values[known].mean() if known.any() else 0.0
    return values[:, None]


def _hashed(texts: list[str]) -> NDArray[np.float64]:
    from sklearn.feature_extraction.text import HashingVectorizer

    letters = max(map(len, texts)) < 30  # a name rather than a document
    vectorizer = HashingVectorizer(
        n_features=_WORDS,
        analyzer="char_wb" if letters else "word",
        ngram_range=(1, 3) if letters else (1, 1),
        alternate_sign=False,
    )
    hashed: NDArray[np.float64] = vectorizer.transform(texts).toarray()
    return hashed


def _of_target(cells: list[str], *, regression: bool) -> dict[str, float]:
    if not regression:
        shares = np.unique(cells, return_counts=True)[1] / len(cells)
        entropy = float(-(shares * np.log(shares)).sum() / np.log(max(len(shares), 2)))
        return {"target_skew": 0.0, "target_tails": 0.0, "target_negative": 0.0, "target_distinct": 0.0, "label_entropy": entropy}
    values = np.array(cells, float)
    z = (values - values.mean()) / (values.std() or 1.0)
    return {
        "target_skew": float(np.tanh((z**3).mean() / 3)),
        "target_tails": float(np.tanh(((z**4).mean() - 3.0) / 6)),
        "target_negative": float((values <= -1).any()),
        "target_distinct": len(set(cells)) / len(cells),
        "label_entropy": 0.0,
    }


def _of_columns(rows: _Rows) -> dict[str, float]:
    spread = rows.plain.std(axis=0)
    varied = rows.x[:, spread > 0]
    if not varied.shape[1]:
        names = ("negative_columns", "column_skew", "column_scales", "strongest_column", "mean_column", "redundant_columns")
        return dict.fromkeys(names, 0.0) | {"constant_cells": 1.0}
    y = rows.y - rows.y.mean(axis=0)
    y = y / np.where(y.std(axis=0) > 0, y.std(axis=0), 1.0)
    with_target = np.abs(varied.T @ y / len(y)).max(axis=1)
    strength = np.linalg.svd(varied, compute_uv=False) ** 2
    share = strength / strength.sum()
    effective = float(np.exp(-(share[share > 0] * np.log(share[share > 0])).sum()))
    most = (rows.plain == np.median(rows.plain, axis=0)).mean()
    return {
        "negative_columns": float((rows.plain.min(axis=0) < 0).mean()),
        "column_skew": float(np.tanh(np.abs((varied**3).mean(axis=0)).mean() / 3)),
        "column_scales": float(min(np.ptp(np.log10(spread[spread > 0])) / 6, 1.0)),
        "constant_cells": float(most),
        "strongest_column": float(with_target.max()),
        "mean_column": float(with_target.mean()),
        "redundant_columns": 1.0 - effective / varied.shape[1],
    }


def _landmarks(rows: _Rows, *, regression: bool) -> dict[str, float]:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.tree import DecisionTreeRegressor

    def grown(depth: int | None) -> Callable[..., Any]:
        return lambda x, y, new: DecisionTreeRegressor(max_depth=depth, min_samples_leaf=3, random_state=0).fit(x, y).predict(new)

    def forest(x: Any, y: Any, new: Any) -> Any:
        return ExtraTreesRegressor(20, min_samples_leaf=2, max_features=0.5, random_state=0).fit(x, y).predict(new)

    def few(x: Any, y: Any, new: Any) -> Any:
        best = np.argsort(-np.abs((x - x.mean(axis=0)).T @ (y - y.mean(axis=0))).max(axis=1), kind="stable")[:5]
        return _ridge(x[:, best], y, new[:, best])

    learners = {
        "linear": _ridge,
        "neighbours": _neighbours,
        "stump": grown(2),
        "tree": grown(8),
        "trees": forest,
        "few_columns": few,
    }
    skill = {name: _skill(learner, rows.x, rows.y) for name, learner in learners.items()}
    logarithmic = regression and bool((rows.y > -1).all())
    in_log = _skill(_ridge, rows.x, np.log1p(rows.y)) if logarithmic else skill["linear"]
    skill["log_target"] = in_log - skill["linear"]
    return {f"landmark_{name}": value for name, value in skill.items()} | {
        "linear_against_trees": skill["linear"] - skill["trees"],
        "neighbours_against_trees": skill["neighbours"] - skill["trees"],
    }


def _skill(learner: Callable[..., Any], x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """The share of the spread of y that a learner explains on rows that it did not see."""
    fold = np.arange(len(x)) % _FOLDS
    left, whole = 0.0, 0.0
    for number in range(_FOLDS):
        held, known = fold == number, fold != number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = np.asarray(learner(x[known], y[known], x[held])).reshape(int(held.sum()), -1)
        left += float(((y[held] - predicted) ** 2).sum())
        whole += float(((y[held] - y[known].mean(axis=0)) ** 2).sum())
    return max(1.0 - left / whole, -1.0) if whole > 0 else 0.0


def _ridge(x: NDArray[np.float64], y: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ridge regression with a penalty of a twentieth of a row for each row."""
    middle, centre = x.mean(axis=0), y.mean(axis=0)
    gram = (x - middle).T @ (x - middle) + 0.05 * len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, (x - middle).T @ (y - centre))
    predicted: NDArray[np.float64] = (new - middle) @ weights + centre
    return predicted


def _neighbours(x: NDArray[np.float64], y: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the seven nearest."""
    squared = (new**2).sum(axis=1)[:, None] + (x**2).sum(axis=1) - 2.0 * new @ x.T
    nearest = np.argsort(squared, axis=1, kind="stable")[:, :7]
    found: NDArray[np.float64] = y[nearest].mean(axis=1)
    return found
