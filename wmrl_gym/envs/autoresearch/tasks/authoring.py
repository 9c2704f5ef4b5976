"""For authors of tasks: writes a small valid task to begin with, and finds faults in a task that loading does not find."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wmrl_gym.envs.autoresearch.tasks.format import Kind, Task, TaskError, read_rows
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.leaks import leaks_of_names_and_order
from wmrl_gym.envs.autoresearch.tasks.peers import find_layout
from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, parse_rows, to_csv
from wmrl_gym.envs.autoresearch.tasks.scores import metric
from wmrl_gym.files import folder_made_anew, write_text, writing

_BOUNDED = ("accuracy", "macro-f1", "auc")
_FEW = 20
_BYTES = 64 * 2**20
_LABELS = {"binary": ("no", "yes"), "multiclass": ("a", "b", "c"), "regression": ()}
_ROWS = 80


def write_scaffold(root: Path, *, kind: Kind, measure: str) -> None:
    """Write a task with made-up rows, named after its directory.

    Raises:
        TaskError: the directory exists, or the metric does not fit the kind.
        CannotWrite: the place cannot be written; nothing is left there.
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
    parts = ("validation", "test")
    part = rng.permutation(_ROWS) % 2
    hidden = [(rows[i][0], target[i], parts[part[i - _ROWS]]) for i in range(_ROWS, 2 * _ROWS)]
    with writing(root, advice="choose another directory"), folder_made_anew(root) as folder:
        (folder / "private").mkdir()
        (folder / "public").mkdir()
        _write(folder / "public/train.csv", [("id", "x1", "x2", "target"), *((*rows[i], target[i]) for i in range(_ROWS))])
        _write(folder / "public/test.csv", [("id", "x1", "x2"), *rows[_ROWS:]])
        _write(folder / "public/sample_submission.csv", [("id", *columns), *((row[0], *guess) for row in rows[_ROWS:])])
        _write(folder / "private/answers.csv", [("id", "target", "part"), *hidden])
        _write(folder / "leaderboard.csv", [("score",), ("1",)])
        write_text(folder / "task.toml", _toml(root.name, kind, measure, larger=chosen.larger_is_better))
        write_text(folder / "description.md", _DESCRIPTION.format(name=root.name, metric=measure))
        task = Task.load(folder)
        # All better than the sample submission, which is what a leaderboard should say of it.
        guess_score = grade(task, (folder / "public/sample_submission.csv").read_bytes()).test
        best = 0.95 if chosen.larger_is_better else 0.3 * guess_score
        scores = np.linspace(best, guess_score, 25, endpoint=False)
        _write(folder / "leaderboard.csv", [("score",), *((f"{score:.4f}",) for score in scores)])


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
    path.write_bytes(to_csv(rows[0], rows[1:]).encode("utf-8"))


def validate(task: Task) -> list[str]:
    """Everything that is wrong with a loaded task, a sentence each; empty if nothing was found."""
    found = [*_sample(task), *_leaderboard(task), *_description(task), *_leaks(task)]
    return found if task.grader is not None else [*found, *_columns(task)]


def warnings_of(task: Task) -> list[str]:
    """What may be wrong with a loaded task, unless it is intended; a sentence each."""
    return leaks_of_names_and_order(task) if task.grader is None else []


def _sample(task: Task) -> list[str]:
    path = _sample_path(task)
    graded = grade(task, path.read_bytes())
    if graded.problem is not None:
        return [f"{path.name} is not a valid submission: {graded.problem}"]
    percentile = float(task.leaderboard.percentile(graded.test))
    if percentile > 0.5:
        return [f"{path.name} beats {percentile:.0%} of the leaderboard: is it made of the answers, or is the leaderboard wrong?"]
    return []


def _sample_path(task: Task) -> Path:
    return task.public / "sample_submission.csv" if task.grader is None else task.grader.sample


def _leaderboard(task: Task) -> list[str]:
    scores, measure = task.leaderboard.goodness, task.spec.metric
    found = []
    if len(scores) < _FEW:
        found.append(f"the leaderboard has {len(scores)} scores, too few to tell solutions apart: expected {_FEW} or more")
    if len(np.unique(scores)) < 2:
        found.append("all scores of the leaderboard are the same")
    if task.grader is None:
        raw = scores if measure.larger_is_better else -scores
        low, high = 0.0, 1.0 if measure.name in _BOUNDED else np.inf
        if raw.min() < low or raw.max() > high:
            found.append(
                f"the leaderboard goes from {raw.min():g} to {raw.max():g}, but {measure.name} lies between {low:g} and {high:g}"
            )
    return found


def _description(task: Task) -> list[str]:
    def plain(text: str) -> str:
        return re.sub("[^a-z0-9]", "", text.lower())

    if plain(task.spec.metric.name) in plain(task.description) or task.spec.metric.name == "score":
        return []
    return [f"the description does not mention the metric, {task.spec.metric.name}"]


def _leaks(task: Task) -> list[str]:
    """Public files in which the answers can be read off."""
    truth = _answers(task)
    found = []
    for path in sorted(task.public.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(task.public.resolve()):
            found.append(f"{path.relative_to(task.public)} links to what is outside of the public folder")
        if not path.is_file() or path.stat().st_size > _BYTES or path.suffix.lower() not in (".csv", ".tsv", ".txt"):
            continue
        for column, share in _agreement(path, truth).items():
            if share > 0.99:
                found.append(f"{path.relative_to(task.public)}: its column {column!r} holds the answers")
    return found


def _agreement(path: Path, truth: dict[str, str]) -> dict[str, float]:
    """For each column of a file that has rows for the ids of the answers, the share of answers that it holds."""
    try:
        content = path.read_bytes().decode("utf-8-sig", "replace")
        table = parse_rows((content.replace("\t", ",") if path.suffix.lower() == ".tsv" else content).encode())
    except (OSError, BadTable):
        return {}
    header, rows = table.header, table.rows
    for place in range(len(header)):
        known = [row for row in rows if row[place] in truth]
        if len(known) >= 0.9 * len(truth) and len({row[place] for row in known}) == len(known):
            return {
                name: sum(_same(row[column], truth[row[place]]) for row in known) / len(known)
                for column, name in enumerate(header)
                if column != place
            }
    return {}


def _same(cell: str, answer: str) -> bool:
    if cell == answer:
        return True
    try:
        return float(cell) == float(answer)
    except ValueError:
        return False


def _answers(task: Task) -> dict[str, str]:
    layout = find_layout(task.directory) if task.grader is not None else None
    table = read_rows(task.directory / "private/answers.csv" if layout is None else layout.answers)
    if task.spec.target not in table.header or len(set(table.column(task.spec.target))) < 2:
        return {}
    return dict(zip(table.column(task.spec.id_column), table.column(task.spec.target), strict=True))


def _columns(task: Task) -> list[str]:
    """Features of the training data that are the target under another name."""
    table = read_rows(task.public / "train.csv")
    header, rows = table.header, table.rows
    target = header.index(task.spec.target)
    found = []
    for place, name in enumerate(header):
        if name not in (task.spec.target, task.spec.id_column) and all(_same(row[place], row[target]) for row in rows):
            found.append(f"train.csv: the column {name!r} is the target under another name")
    ids = {row[header.index(task.spec.id_column)] for row in rows}
    if ids & set(task.answers.ids):
        found.append(f"train.csv has {len(ids & set(task.answers.ids))} rows with ids of test.csv, with their targets")
    return found
