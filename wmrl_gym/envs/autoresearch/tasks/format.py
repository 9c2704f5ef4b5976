"""The format of a task: a directory with data, hidden answers and a leaderboard.

.. code-block:: text

    my-task/
      task.toml               name, title, metric, columns, licence and source of the data, limits
      description.md          what is in the files, the metric, the columns of a submission
      public/train.csv        what the code reads: DATA_DIR is this folder
      public/test.csv
      public/sample_submission.csv
      private/answers.csv     id, target, part: "validation" (the agent sees its score) or "test" (the reward)
      leaderboard.csv         the column "score": real scores on the "test" part
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.tasks.external import ExternalMetric
from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, Key, Keys, Rows, read_rows_of
from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard, Metric, metric
from wmrl_gym.sandbox import Limits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal["binary", "multiclass", "regression"]
FILES = (
    "task.toml",
    "description.md",
    "public/train.csv",
    "public/test.csv",
    "public/sample_submission.csv",
    "private/answers.csv",
    "leaderboard.csv",
)
PARTS = ("validation", "test")
LIMITS = tuple(each.name for each in fields(Limits))
"""What a task may bound: whatever a run of the sandbox may be."""
_TEXT_KEYS = ("name", "title", "metric", "id_column", "target", "kind", "modality", "source", "licence")


_SALT = bytes.fromhex("731669e31a83697d751d083be42f03ee5e2f4401479314a75d3ce3b077c236af")


def keyed_hash(*parts: str) -> bytes:
    """A hash that only this package can compute, 32 bytes, the same on every machine; no sandbox shows the package's files."""
    return hmac.new(_SALT, "\0".join(parts).encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


class TaskError(ValueError):
    """A task directory is not what the format asks for; the message names the file, what was expected, and what was found."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What ``task.toml`` says.

    Args:
        name: short, such as ``breast-cancer``.
        title: one line for people.
        metric: see :mod:`wmrl_gym.envs.autoresearch.tasks.metrics`.
        id_column: the column that names rows.
        target: the column to predict.
        kind: binary, multiclass or regression.
        labels: the classes; the second one is the positive class of a binary task. Empty for regression.
        modality: tabular, image, text, series or language; for people, and for the meta-features of a task.
        source: where the data come from.
        licence: of the data.
        text_column: the column that holds documents, "" where there is none.
        limits: bounds of one execution that differ from the sandbox's defaults, such as ``{"wall_s": 10.0}``.
        columns: the columns of a submission besides the id, where they do not follow from the rest.
    """

    name: str
    title: str
    metric: Metric
    id_column: str
    target: str
    kind: Kind
    labels: tuple[str, ...]
    modality: str
    source: str
    licence: str
    text_column: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    columns: tuple[str, ...] = ()

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The columns of a submission besides the id.

        One for each label (``prob_<label>``) where probabilities of more than two labels are asked for, else the target's name.
        """
        if self.columns:
            return self.columns
        if self.metric.predicts == "probability" and len(self.labels) > 2:
            return tuple(f"prob_{label}" for label in self.labels)
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Answers:
    """The hidden answers to a task's test rows.

    Args:
        ids: n row names.
        truth: int64 label numbers, or float64 numbers, shape (n,).
        test: bool, shape (n,): True for the part that pays the reward, False for the part whose score the agent sees.
    """

    ids: tuple[str, ...]
    truth: NDArray[Any]
    test: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Task:
    """One task, loaded and checked.

    Args:
        spec: what it asks.
        directory: where it is.
        description: what an agent reads when it asks for it.
        answers: the hidden answers; only ids and parts where the metric is another benchmark's code.
        leaderboard: what others reached.
        folder: the only folder that a sandbox may see; None for ``public`` in the directory.
        grader: the metric, where it is another benchmark's code.
    """

    spec: Spec
    directory: Path
    description: str
    answers: Answers
    leaderboard: Leaderboard
    folder: Path | None = None
    grader: ExternalMetric | None = None

    @property
    def public(self) -> Path:
        """The only folder that a sandbox may see."""
        return self.directory / "public" if self.folder is None else self.folder

    @classmethod
    def load(cls, directory: str | Path) -> Task:
        """Load a task directory and check that it hangs together.

        Raises:
            TaskError: for a missing or ill-formed file, or files that contradict each other.
        """
        root = Path(directory)
        if not root.is_dir():
            raise TaskError(f"task directory {root} does not exist")
        missing = [name for name in FILES if not (root / name).is_file()]
        if missing:
            raise TaskError(f"task directory {root} lacks {', '.join(missing)}")
        spec = read_spec(root / "task.toml")
        answers = _read_answers(root / "private/answers.csv", spec)
        _check_public(root, spec, answers)
        try:
            board = Leaderboard.read(root / "leaderboard.csv", larger_is_better=spec.metric.larger_is_better)
        except ValueError as error:
            raise TaskError(f"{root / 'leaderboard.csv'}: {error}") from error
        return cls(spec, root, read_text(root / "description.md"), answers, board)


def read_text(path: Path) -> str:
    """A text of a task; what is no UTF-8 in it is replaced.

    Raises:
        TaskError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error


def read_spec(path: Path) -> Spec:
    """Read a ``task.toml``.

    Raises:
        TaskError: for a missing, unknown or ill-typed key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{path}: not valid TOML: {error}") from error
    for key in _TEXT_KEYS:
        if not isinstance(table.get(key), str) or not table[key]:
            raise TaskError(f"{path}: expected a text for {key!r}, got {table.get(key)!r}")
    try:
        measure = metric(table["metric"])
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from error
    if table.get("larger_is_better", measure.larger_is_better) is not measure.larger_is_better:
        raise TaskError(
            f"{path}: larger_is_better of {measure.name} is {measure.larger_is_better}, got {table['larger_is_better']}"
        )
    if not isinstance(table.get("labels", []), list):
        raise TaskError(f"{path}: labels must be a list, got {table['labels']!r}")
    labels = tuple(str(label) for label in table.get("labels", ()))
    _check_kind(path, table["kind"], measure, labels)
    return Spec(
        **{key: table[key] for key in _TEXT_KEYS if key != "metric"},
        metric=measure,
        labels=labels,
        text_column=str(table.get("text_column", "")),
        limits=_limits(path, table.get("limits", {})),
    )


def _check_kind(path: Path, kind: str, measure: Metric, labels: tuple[str, ...]) -> None:
    least = {"binary": 2, "multiclass": 3, "regression": 0}
    if kind not in least:
        raise TaskError(f"{path}: kind must be one of {', '.join(least)}, got {kind!r}")
    wrong = len(labels) != least[kind] if kind != "multiclass" else len(labels) < 3
    if wrong or len(set(labels)) != len(labels):
        raise TaskError(f"{path}: {kind} needs {least[kind]}{' or more' if kind == 'multiclass' else ''} labels, got {labels}")
    if (measure.predicts == "number") != (kind == "regression") or (measure.name == "auc" and kind != "binary"):
        raise TaskError(f"{path}: metric {measure.name!r} does not fit kind {kind!r}")


def _limits(path: Path, table: Any) -> dict[str, float]:
    if not isinstance(table, dict):
        raise TaskError(f"{path}: limits must be a table, got {table!r}")
    for key, value in table.items():
        if key not in LIMITS or isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise TaskError(f"{path}: limits take positive numbers for {', '.join(LIMITS)}, got {key} = {value!r}")
    return dict(table)


def read_rows(path: Path) -> Rows:
    """A table of a task.

    Raises:
        TaskError: if it cannot be read, is empty, not csv, or has rows of another length than the header.
    """
    try:
        rows = read_rows_of(path)
    except BadTable as error:
        raise TaskError(f"{path} {error}") from error
    if not rows.rows:
        raise TaskError(f"{path}: expected a header and at least one row, got a header alone")
    return rows


def run_limits(spec: Spec) -> Limits:
    """The bounds of one execution that a task asks for."""
    whole = {each.name for each in fields(Limits) if isinstance(each.default, int)}
    asked = {name: int(value) if name in whole else float(value) for name, value in spec.limits.items()}
    return replace(Limits(), **asked)  # type: ignore[arg-type]


def _read_answers(path: Path, spec: Spec) -> Answers:
    table = read_rows(path)
    expected = [spec.id_column, spec.target, "part"]
    if list(table.header) != expected:
        raise TaskError(f"{path}: expected columns {expected}, got {list(table.header)}")
    ids, targets, parts = zip(*table.rows, strict=True)
    ids = tuple(name.strip() for name in ids)
    if len(set(ids)) != len(ids):
        raise TaskError(f"{path}: ids are not unique")
    if set(parts) != set(PARTS):
        raise TaskError(f"{path}: part must take the values {PARTS}, got {sorted(set(parts))}")
    truth, test = _truth(path, spec, targets), np.array([part == "test" for part in parts])
    if spec.metric.name == "auc" and any(len(np.unique(truth[part])) < 2 for part in (test, ~test)):
        raise TaskError(f"{path}: auc cannot be computed on a part with one label only, as one of {', '.join(PARTS)} is")
    return Answers(tuple(ids), truth, test)


def _truth(path: Path, spec: Spec, targets: Iterable[str]) -> NDArray[Any]:
    if spec.kind != "regression":
        numbers = {label: number for number, label in enumerate(spec.labels)}
        unknown = sorted({target for target in targets if target not in numbers})
        if unknown:
            raise TaskError(f"{path}: labels {unknown[:5]} are not among those of task.toml, {spec.labels}")
        return np.array([numbers[target] for target in targets], dtype=np.int64)
    try:
        truth = np.array([float(target) for target in targets], dtype=np.float64)
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from error
    if not np.isfinite(truth).all():
        raise TaskError(f"{path}: the target must be finite everywhere")
    return truth


def _check_public(root: Path, spec: Spec, answers: Answers) -> None:
    train = list(read_rows(root / "public/train.csv").header)
    if spec.id_column not in train or spec.target not in train:
        raise TaskError(f"{root / 'public/train.csv'}: expected columns {spec.id_column!r} and {spec.target!r}, got {train}")
    test = read_rows(root / "public/test.csv")
    features = [column for column in train if column != spec.target]
    if list(test.header) != features:
        wanted = f"the columns of train.csv without the target, {features}"
        raise TaskError(f"{root / 'public/test.csv'}: expected {wanted}, got {list(test.header)}")
    known: list[Key] = [(name,) for name in answers.ids]
    _check_ids(root / "public/test.csv", test, spec.id_column, known=known)
    sample = read_rows(root / "public/sample_submission.csv")
    expected = [spec.id_column, *spec.prediction_columns]
    if list(sample.header) != expected:
        raise TaskError(f"{root / 'public/sample_submission.csv'}: expected columns {expected}, got {list(sample.header)}")
    _check_ids(root / "public/sample_submission.csv", sample, spec.id_column, known=known)
    if spec.text_column and spec.text_column not in features:
        raise TaskError(f"{root / 'task.toml'}: text_column {spec.text_column!r} is not a column of train.csv")


def _check_ids(path: Path, table: Rows, column: str, *, known: list[Key]) -> None:
    """Ids must be those of the answers, spelt as there: what code reads and what it is matched with are the same text."""
    try:
        Keys(known).order(table.keys([column]))
    except BadTable as error:
        raise TaskError(f"{path}: its ids are not those of private/answers.csv: {error}") from error
