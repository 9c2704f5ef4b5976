"""Tests whether the names and the order of rows give answers away, by predicting the answers from nothing else.

A shuffle that can be guessed is no shuffle: where a source is sorted by label, its row numbers are as good as the answers. What
is tried: where a row stands, what its id looks like, and where it stood before a shuffle with a usual seed, or by a plain hash
of its number. Chance is told apart by permuting the answers, all the tries taken together.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.tasks.format import Task, read_rows

PERMUTATIONS = 1999
_ALPHA = 0.001
_ENDS = 8
"""Characters at either end of an id that are looked at."""


def leaks_of_names_and_order(task: Task) -> list[str]:
    """What the ids and the order of a task's rows say, a sentence each; empty if nothing better than chance."""
    found = []
    for what, p in (("the targets", target_chance(task)), ("which rows are scored for the reward", part_chance(task))):
        if p <= _ALPHA:
            found.append(f"the ids and the order of rows alone predict {what} (a chance of {p:.2g} that they do not)")
    return found


def target_chance(task: Task, *, source_rows: int | None = None) -> float:
    """The p-value of predicting the test rows' targets from ids and order: the chance that luck would do as well.

    Args:
        task: the task.
        source_rows: how many rows its source has, for an attacker who knows; None for those of both files.
    """
    train, test = read_rows(task.public / "train.csv"), read_rows(task.public / "test.csv")
    ids = train.column(task.spec.id_column), test.column(task.spec.id_column)
    place = {name: i for i, name in enumerate(task.answers.ids)}
    truth = task.answers.truth[[place[name.strip()] for name in ids[1]]]
    seen = train.column(task.spec.target)
    if task.spec.kind == "regression":
        edges = np.quantile(np.array(seen, np.float64), [0.2, 0.4, 0.6, 0.8])
        known, asked = np.searchsorted(edges, np.array(seen, np.float64)), np.searchsorted(edges, truth)
    else:
        labels = {label: number for number, label in enumerate(task.spec.labels)}
        known, asked = np.array([labels[each] for each in seen]), truth
    count = source_rows or len(ids[0]) + len(ids[1])
    before = _places_before(task.spec.name, count)
    views = [
        np.column_stack([_looks(names), before[start : start + len(names)]])
        for names, start in ((ids[0], 0), (ids[1], len(ids[0])))
    ]
    return _chance(views[0], known, views[1], asked)


def part_chance(task: Task) -> float:
    """The same for the part (validation or test) that each test row is in, learnt from one half of the rows."""
    ids = read_rows(task.public / "test.csv").column(task.spec.id_column)
    place = {name: i for i, name in enumerate(task.answers.ids)}
    part = task.answers.test[[place[name.strip()] for name in ids]].astype(np.int64)
    looks, half = _looks(ids), np.random.default_rng(0).permutation(len(ids)) % 2 == 0
    return _chance(looks[half], part[half], looks[~half], part[~half])


def _looks(ids: Sequence[str]) -> NDArray[np.float64]:
    """Features of ids and of their order: float64, shape (n, F)."""
    n = np.arange(len(ids))
    ranks = np.empty(len(ids))
    ranks[sorted(range(len(ids)), key=lambda i: ids[i])] = n
    numbers = np.array([int(digits[-15:]) if (digits := "".join(filter(str.isdecimal, name))) else -1 for name in ids])
    ends = [[ord(c) for c in (name[:_ENDS].ljust(_ENDS) + name[-_ENDS:].rjust(_ENDS))] for name in ids]
    seen = [n / len(ids), n % 2, n % 3, n % 10, ranks / len(ids), ranks % 2, numbers, numbers % 2, numbers % 3, numbers % 10]
    return np.column_stack([*seen, [len(name) for name in ids], np.array(ends)]).astype(np.float64)


def _places_before(name: str, count: int) -> NDArray[np.float64]:
    """Where each of the rows, train.csv's first, stood before a shuffle that many would make: float64, shape (count, S)."""
    shuffles: list[Sequence[int]] = []
    for seed in (0, 1, 42):
        plain = list(range(count))
        random.Random(seed).shuffle(plain)
        shuffles += [
            plain,
            np.random.RandomState(seed).permutation(count).tolist(),
            np.random.default_rng(seed).permutation(count).tolist(),
        ]
    for kind in (hashlib.md5, hashlib.sha1, hashlib.sha256):
        for text in (f"{name}|{{}}", f"{name}{{}}", f"{name}-{{}}", f"{name}_{{}}", "{}"):
            shuffles.append(sorted(range(count), key=lambda i, k=kind, t=text: k(t.format(i).encode()).digest()))  # type: ignore[misc]
    return np.array(shuffles, dtype=np.float64).T


def _chance(x: NDArray[np.float64], y: NDArray[np.int64], asked: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """The p-value of the best of many small predictors, each of one feature, and of neighbours being alike."""
    from sklearn.tree import DecisionTreeClassifier

    rng, classes = np.random.default_rng(0), np.unique(np.concatenate([y, truth]))
    codes, right = np.searchsorted(classes, y), np.searchsorted(classes, truth)
    scores = []
    for column in range(x.shape[1]):
        if np.ptp(x[:, column]) > 0:
            tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(y) // 40), random_state=0).fit(x[:, [column]], codes)
            chances = np.zeros((len(asked), len(classes)))
            chances[:, tree.classes_] = tree.predict_proba(asked[:, [column]])
            scores.append(chances)
    table = np.stack(scores) if scores else np.zeros((1, len(asked), len(classes)))
    rows = np.arange(len(right))

    def said(labels: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.append(table[:, rows, labels].sum(axis=1), (labels[1:] == labels[:-1]).sum())

    drawn = np.stack([said(rng.permutation(right)) for _ in range(PERMUTATIONS)])
    scale = np.maximum(drawn.std(axis=0), 1e-9)
    best = ((said(right) - drawn.mean(axis=0)) / scale).max()
    return float((1 + (((drawn - drawn.mean(axis=0)) / scale).max(axis=1) >= best).sum()) / (1 + PERMUTATIONS))
