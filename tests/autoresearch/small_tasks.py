"""Writes small task directories of every kind, to be graded, damaged and run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

LABELS = {"binary": ("no", "yes"), "multiclass": ("ant", "bee", "cow"), "regression": ()}
IDS = tuple(f"t{number}" for number in range(8))
NUMBERS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def truth_of(kind: str) -> tuple[str, ...]:
    """The hidden targets, in the order of :data:`IDS`; every label is in both parts."""
    if kind == "regression":
        return tuple(str(number) for number in NUMBERS)
    labels = LABELS[kind]
    return tuple(labels[(number // 2) % len(labels)] for number in range(8))


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows to a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def write_small_task(
    root: Path, *, metric: str, kind: str, larger_is_better: bool, scores: Sequence[object] = (0.2, 0.4, 0.6, 0.8)
) -> Path:
    """A task of eight test rows, named after its folder."""
    root.mkdir(parents=True)
    labels = ", ".join(f'"{label}"' for label in LABELS[kind])
    (root / "task.toml").write_text(
        f'name = "{root.name}"\ntitle = "A small task"\nmetric = "{metric}"\nlarger_is_better = {str(larger_is_better).lower()}\n'
        f'id_column = "id"\ntarget = "y"\nkind = "{kind}"\nlabels = [{labels}]\nmodality = "tabular"\nsource = "these tests"\n'
        f'licence = "MIT"\n\n[limits]\nwall_s = 5\n'
    )
    (root / "description.md").write_text("# A small task\n\nPredict y from x.\n")
    many = metric == "log-loss" and kind == "multiclass"
    columns = [f"prob_{label}" for label in LABELS[kind]] if many else ["y"]
    guess = [0.4, 0.3, 0.3] if many else [LABELS[kind][0] if metric in ("accuracy", "macro-f1") else 0.5]
    truth = truth_of(kind)
    write_csv(root / "public/train.csv", [("id", "x", "y"), *((f"r{i}", i, truth[i]) for i in range(8))])
    write_csv(root / "public/test.csv", [("id", "x"), *((name, i) for i, name in enumerate(IDS))])
    write_csv(root / "public/sample_submission.csv", [("id", *columns), *((name, *guess) for name in IDS)])
    parts = ("validation", "test")
    write_csv(root / "private/answers.csv", [("id", "y", "part"), *((IDS[i], truth[i], parts[i % 2]) for i in range(8))])
    write_csv(root / "leaderboard.csv", [("score",), *((score,) for score in scores)])
    return root


# Designs, as the design environment takes them.
# tree, and nothing else: quick on eight rows
QUICK = np.array([0, 0, 0, 0, 2, 0, 0, 0, 0])
# a naive Bayes that needs counts, after scaling: fails
BROKEN = np.array([0, 1, 0, 0, 7, 0, 0, 1, 0])
