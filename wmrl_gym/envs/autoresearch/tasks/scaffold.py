"""A task to begin with: every file of the format, small, valid, and to be replaced."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wmrl_gym.envs.autoresearch.tasks.format import Kind, Task, TaskError
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.metrics import metric

_LABELS = {"binary": ("no", "yes"), "multiclass": ("a", "b", "c"), "regression": ()}
_ROWS = 80


def write_scaffold(root: Path, *, kind: Kind, measure: str) -> None:
    """Write a task with made-up rows, named after its directory.

    Raises:
        TaskError: the directory exists, or the metric does not fit the kind.
        ValueError: the metric is unknown.
    """
    chosen = metric(measure)
    if root.exists():
        raise TaskError(f"{root} exists already: choose another directory")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * _ROWS, 2)).round(4)
    signal = x[:, 0] - 0.5 * x[:, 1] + rng.normal(scale=0.5, size=len(x))
    labels = _LABELS[kind]
    if kind == "regression":
        target = [f"{value:.4f}" for value in signal]
    else:
        ranks = signal.argsort().argsort()
        target = [labels[rank * len(labels) // len(signal)] for rank in ranks]
    many = chosen.predicts == "probability" and len(labels) > 2
    columns = [f"prob_{label}" for label in labels] if many else ["target"]
    guess = [str(round(1 / len(labels), 4))] * len(labels) if many else ["0.5"]
    guess = [labels[0]] if chosen.predicts == "label" else guess
    rows = [(f"row{i:03d}", *map(str, x[i])) for i in range(len(x))]
    (root / "private").mkdir(parents=True)
    (root / "public").mkdir()
    _write(root / "public/train.csv", [("id", "x1", "x2", "target"), *((*rows[i], target[i]) for i in range(_ROWS))])
    _write(root / "public/test.csv", [("id", "x1", "x2"), *rows[_ROWS:]])
    _write(root / "public/sample_submission.csv", [("id", *columns), *((row[0], *guess) for row in rows[_ROWS:])])
    parts = ("validation", "test")
    hidden = [(rows[i][0], target[i], parts[i % 2]) for i in range(_ROWS, 2 * _ROWS)]
    _write(root / "private/answers.csv", [("id", "target", "part"), *hidden])
    _write(root / "leaderboard.csv", [("score",), ("1",)])
    (root / "task.toml").write_text(_toml(root.name, kind, measure, larger=chosen.larger_is_better), encoding="utf-8")
    (root / "description.md").write_text(_DESCRIPTION.format(name=root.name, metric=measure), encoding="utf-8")
    try:
        task = Task.load(root)
    except TaskError:  # such as a metric that does not fit the kind
        shutil.rmtree(root)
        raise
    # All better than the sample submission, which is what a leaderboard should say of it.
    guess_score = grade(task, (root / "public/sample_submission.csv").read_bytes()).test
    best = 0.95 if chosen.larger_is_better else 0.3 * guess_score
    scores = np.linspace(best, guess_score, 25, endpoint=False)
    _write(root / "leaderboard.csv", [("score",), *((f"{score:.4f}",) for score in scores)])


_DESCRIPTION = """\
# {name}

Say here what each row is, what the columns mean, and where the data come from.

## Files in the folder DATA_DIR
- train.csv: columns id, x1, x2, target
- test.csv: the same columns without target
- sample_submission.csv: a valid submission

## Metric
{metric}
"""


def _toml(name: str, kind: Kind, measure: str, *, larger: bool) -> str:
    labels = ", ".join(f'"{label}"' for label in _LABELS[kind])
    return (
        f'name = "{name}"\ntitle = "One line that says what is asked"\nmetric = "{measure}"\n'
        f"larger_is_better = {str(larger).lower()}\n"
        f'id_column = "id"\ntarget = "target"\nkind = "{kind}"\nlabels = [{labels}]\nmodality = "tabular"\n'
        f'source = "made up, to be replaced"\nlicence = "say whose data it is, and under which licence"\n\n'
        f"[limits]\nwall_s = 30\ncpu_s = 30\nmemory_mb = 2048\n"
    )


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
