"""Competitions in the directory layouts of MLE-bench, MLE-Dojo and DSBench, read as they are.

.. code-block:: text

    MLE-bench    prepared/public/, prepared/private/, leaderboard.csv, grade.py (and config.yaml, description.md), or those of an
                 installed ``mlebench`` for the competition of the directory's name
    MLE-Dojo     data/public/, data/private/, info/*leaderboard.csv, utils/metric.py, info/description.txt
    DSBench      data/data_resplit/<name>/ beside data/answers/<name>/, data/task/<name>.txt, evaluation/<name>_eval.py and
                 save_performance/{baseline,GT}/<name>/result.txt; the directory is the first of these

The rows to predict are parted in two by a hash of their ids: one half's score is shown as feedback, the other's is the reward.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmrl_gym.envs.autoresearch.tasks.external import ExternalMetric, Style
from wmrl_gym.envs.autoresearch.tasks.format import Answers, Spec, Task, TaskError, read_rows
from wmrl_gym.envs.autoresearch.tasks.leaderboard import Leaderboard
from wmrl_gym.envs.autoresearch.tasks.metrics import Metric

_SAMPLES = (
    "sample_submission.csv",
    "sampleSubmission.csv",
    "sample_submission*.csv",
    "*ample*ubmission*.csv",
    "*ample*ntry*.csv",
)
_ANSWERS = ("test_answer.csv", "answers.csv", "test.csv", "gold_submission.csv", "*answer*.csv", "*.csv")
_LINEAR = 101
"""Entries of the leaderboard that stands for DSBench's scale from its baseline to its ground truth."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a competition keeps what.

    Args:
        style: whose layout it is.
        name: of the competition.
        public: the folder that code may see.
        answers: the csv file of answers.
        code: the file with the metric.
        description: the file that describes it.
    """

    style: Style
    name: str
    public: Path
    answers: Path
    code: Path
    description: Path | None


def find_layout(root: Path) -> Layout | None:
    """Which benchmark's directory this is, and where it keeps what; None if it is of neither.

    Raises:
        TaskError: it is one of theirs, and something is missing.
    """
    name = root.resolve().name
    if (root / "prepared").is_dir():
        folders = [folder for folder in (root, _installed(name)) if folder is not None]
        code = _first(folders, ("grade.py",), f"{root} needs its grade.py, or an installed mlebench that knows {name!r}")
        answers = _first([root / "prepared/private"], _ANSWERS, f"{root / 'prepared/private'} has no csv file with answers")
        text = _maybe([root, root / "prepared/public", *folders], ("description.md",))
        return Layout("mle-bench", name, root / "prepared/public", answers, code, text)
    if (root / "data/public").is_dir():
        code = _first([root / "utils", root], ("metric.py",), f"{root} needs utils/metric.py")
        answers = _first([root / "data/private"], _ANSWERS, f"{root / 'data/private'} has no csv file with answers")
        text = _maybe([root / "info", root / "data/public"], ("description.txt", "description.md"))
        return Layout("mle-dojo", name, root / "data/public", answers, code, text)
    if root.resolve().parent.name == "data_resplit":
        data = root.resolve().parent.parent
        answers = _first([data / "answers" / name], _ANSWERS, f"{data / 'answers' / name} has no csv file with answers")
        code = _first([data.parent / "evaluation"], (f"{name}_eval.py",), f"{data.parent / 'evaluation'} needs {name}_eval.py")
        return Layout("dsbench", name, root, answers, code, _maybe([data / "task"], (f"{name}.txt",)))
    return None


def load_peer(root: Path) -> Task:
    """Load a competition of another benchmark.

    Raises:
        TaskError: the directory has none of the known layouts, or something in it is missing or contradicts the rest.
    """
    layout = find_layout(root)
    if layout is None:
        raise TaskError(
            f"{root} is no task: expected task.toml (`wmrl tasks new` makes one), or prepared/public as MLE-bench has it, "
            f"data/public as MLE-Dojo has it, or a folder in data_resplit as DSBench has it"
        )
    if layout.description is None:
        raise TaskError(f"{root} has no description")
    sample = _first([layout.public], _SAMPLES, f"{layout.public} has no sample submission")
    columns, rows = read_rows(sample)
    ids = tuple(row[0] for row in rows)
    _check_answers(layout, columns[0], ids)
    test = np.array([_is_test(layout.name, each) for each in ids])
    parts = (
        tuple(each for each, hidden in zip(ids, test, strict=True) if not hidden),
        tuple(each for each, hidden in zip(ids, test, strict=True) if hidden),
    )
    if not all(parts):
        raise TaskError(f"{sample} has too few rows to be parted in two: {len(ids)}")
    grader = ExternalMetric(layout.style, layout.code, layout.answers, sample, parts)
    board = _leaderboard(root, layout, grader.check())
    spec = Spec(
        name=layout.name,
        title=layout.name.replace("-", " "),
        metric=Metric(_metric_name(root, layout), board.larger_is_better, "number", _no_score),
        id_column=columns[0],
        target=columns[1],
        kind="regression",
        labels=(),
        modality="tabular",
        source=f"a competition in the layout of {layout.style}",
        licence="the competition's own",
        columns=tuple(columns[1:]),
    )
    text = layout.description.read_text(encoding="utf-8", errors="replace")
    return Task(spec, root, text, Answers(ids, np.zeros(len(ids)), test), board, layout.public, grader)


def _no_score(*_: object) -> float:
    raise AssertionError("the metric of this task is not ours to compute")


def _is_test(name: str, row: str) -> bool:
    return bool(hashlib.sha256(f"{name}|{row}".encode()).digest()[0] & 1)


def _check_answers(layout: Layout, id_column: str, ids: tuple[str, ...]) -> None:
    header, rows = read_rows(layout.answers)
    if id_column not in header:
        raise TaskError(f"{layout.answers}: expected the column {id_column!r} of the sample submission, got {header}")
    place = header.index(id_column)
    found = {row[place] for row in rows}
    if found != set(ids):
        raise TaskError(
            f"{layout.answers}: its ids are not those of the sample submission: {len(set(ids) - found)} are missing and "
            f"{len(found - set(ids))} are of no row there"
        )


def _leaderboard(root: Path, layout: Layout, larger: bool | None) -> Leaderboard:
    if layout.style == "dsbench":
        return _between(layout)
    own = [root, root / "info"]
    folders = own if layout.style == "mle-dojo" else [*own, *filter(None, [_installed(layout.name)])]
    names = ("private_leaderboard.csv", "leaderboard.csv", "public_leaderboard.csv", "*leaderboard.csv")
    path = _first(folders, names, f"{root} has no leaderboard")
    scores = _scores(path)
    falling = scores[0] > scores[-1]
    if larger is not None and scores[0] != scores[-1] and falling != larger:
        raise TaskError(
            f"{path}: it goes from {scores[0]:g} to {scores[-1]:g}, so {'larger' if falling else 'smaller'} seems to be better, "
            f"but {layout.code} says that {'larger' if larger else 'smaller'} is: turn one of them round"
        )
    return Leaderboard.of(scores, larger_is_better=falling if larger is None else larger)


def _scores(path: Path) -> list[float]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        column = next((name for name in reader.fieldnames or () if name.strip().lower() == "score"), None)
        if column is None:
            raise TaskError(f"{path}: expected a column 'score', got {reader.fieldnames}")
        try:
            scores = [float(row[column] or "nan") for row in reader]
        except ValueError as error:
            raise TaskError(f"{path}: {error}") from error
    finite = [score for score in scores if np.isfinite(score)]
    if not finite:
        raise TaskError(f"{path}: a leaderboard needs at least one finite score, got {len(scores)} entries, none finite")
    return finite


def _between(layout: Layout) -> Leaderboard:
    """DSBench scores linearly from a baseline to the truth: a leaderboard with its entries evenly in between does the same."""
    ends = []
    for kind in ("baseline", "GT"):
        path = layout.code.parent.parent / "save_performance" / kind / layout.name / "result.txt"
        if not path.is_file():
            raise TaskError(f"{layout.name} needs {path}: its scores are told relative to it")
        ends.append(float(path.read_text(encoding="utf-8")))
    if ends[0] == ends[1]:
        raise TaskError(f"{layout.name}: the baseline and the ground truth have the same score, {ends[0]:g}")
    return Leaderboard.of(np.linspace(ends[0], ends[1], _LINEAR), larger_is_better=ends[1] > ends[0])


def _metric_name(root: Path, layout: Layout) -> str:
    config = _maybe([folder for folder in (root, _installed(layout.name)) if folder is not None], ("config.yaml",))
    if layout.style == "mle-bench" and config is not None:
        lines = config.read_text(encoding="utf-8").splitlines()
        inside = lines[next((i for i, line in enumerate(lines) if line.startswith("grader:")), len(lines)) :]
        for line in inside:
            if line.strip().startswith("name:"):
                return line.partition(":")[2].strip().strip("\"'")
    return "score"


def _installed(name: str) -> Path | None:
    """The folder of a competition in an installed ``mlebench``, without importing it."""
    spec = importlib.util.find_spec("mlebench")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "competitions", name)
        if path.is_dir():
            return path
    return None


def _maybe(folders: Iterable[Path], patterns: tuple[str, ...]) -> Path | None:
    for folder in folders:
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                if path.is_file():
                    return path
    return None


def _first(folders: Iterable[Path], patterns: tuple[str, ...], otherwise: str) -> Path:
    found = _maybe(folders, patterns)
    if found is None:
        raise TaskError(otherwise)
    return found
