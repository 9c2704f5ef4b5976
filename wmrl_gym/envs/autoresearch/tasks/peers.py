"""Competitions in the directory layouts of MLE-bench, MLE-Dojo and DSBench, read as they are.

.. code-block:: text

    MLE-bench    prepared/public/, prepared/private/, leaderboard.csv, grade.py (and config.yaml, description.md), or those of an
                 installed ``mlebench`` for the competition of the directory's name
    MLE-Dojo     data/public/, data/private/, info/*leaderboard.csv, utils/metric.py, info/description.txt
    DSBench      data/data_resplit/<name>/ beside data/answers/<name>/, data/task/<name>.txt, evaluation/<name>_eval.py and
                 save_performance/{baseline,GT}/<name>/result.txt; the directory is the first of these

MLE-bench's ``config.yaml`` may say that the answers or the sample submission are elsewhere in the directory; answers may be JSON
lines. Rows are named by the first column, or two or three together, that the sample and the answers share. They are parted in two
by a keyed hash of their ids: one half's score is shown as feedback, the other's is the reward. When a competition is loaded, its
answers go the way that a submission goes: what could never be scored is refused then.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmrl_gym.envs.autoresearch.tasks.external import ExternalMetric, MetricFailed, Parts, Style, Unscorable, scores_in
from wmrl_gym.envs.autoresearch.tasks.format import Answers, Spec, Task, TaskError, keyed_hash, read_rows, read_text
from wmrl_gym.envs.autoresearch.tasks.reading import Rows, find_keys, spelling
from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard, Metric
from wmrl_gym.lazy import renamed

_SAMPLES = (
    "sample_submission.csv",
    "sampleSubmission.csv",
    "sample_submission*.csv",
    "*ample*ubmission*.csv",
    "*ample*ntry*.csv",
)
_ANSWERS = (
    *("test_answer.csv", "answers.csv", "test.csv", "gold_submission.csv", "*answer*.csv"),
    *("answers.jsonl", "test.jsonl", "*answer*.jsonl", "*.csv", "*.jsonl"),
)
_SPLITS = 8
"""Ways to part the rows that are tried, where a metric cannot score a half, such as one with a single class."""
_LINEAR = 101
"""Entries of the leaderboard that stands for DSBench's scale from its baseline to its ground truth."""


@dataclass(frozen=True, slots=True)
class CompetitionLayout:
    """Where a competition of another benchmark keeps its files.

    Args:
        style: whose layout it is.
        name: of the competition.
        public: the folder that code may see.
        answers: the file of answers.
        sample: the sample submission.
        code: the file with the metric.
        description: the file that describes it.
    """

    style: Style
    name: str
    public: Path
    answers: Path
    sample: Path
    code: Path
    description: Path | None


def find_layout(root: Path) -> CompetitionLayout | None:
    """Where the files are in a directory of another benchmark; None if it is none.

    Raises:
        TaskError: it is one of theirs, and something is missing.
    """
    name = root.resolve().name
    if (root / "prepared").is_dir():
        return _mle_bench(root, name)
    if (root / "data/public").is_dir():
        code = _first([root / "utils", root], ("metric.py",), f"{root} needs utils/metric.py")
        text = _maybe([root / "info", root / "data/public"], ("description.txt", "description.md"))
        return CompetitionLayout(
            "mle-dojo", name, root / "data/public", *_files(root / "data/public", root / "data/private"), code, text
        )
    if root.resolve().parent.name == "data_resplit":
        data = root.resolve().parent.parent
        code = _first([data.parent / "evaluation"], (f"{name}_eval.py",), f"{data.parent / 'evaluation'} needs {name}_eval.py")
        return CompetitionLayout(
            "dsbench", name, root, *_files(root, data / "answers" / name), code, _maybe([data / "task"], (f"{name}.txt",))
        )
    return None


def _mle_bench(root: Path, name: str) -> CompetitionLayout:
    folders = [folder for folder in (root, _installed(name)) if folder is not None]
    code = _first(folders, ("grade.py",), f"{root} needs its grade.py, or an installed mlebench that knows {name!r}")
    public, private = root / "prepared/public", root / "prepared/private"
    named = [_configured(root, name, "dataset", key) for key in ("answers", "sample_submission")]
    text = _maybe([root, public, *folders], ("description.md",))
    return CompetitionLayout("mle-bench", name, public, *_files(public, private, answers=named[0], sample=named[1]), code, text)


def _files(public: Path, private: Path, *, answers: Path | None = None, sample: Path | None = None) -> tuple[Path, Path]:
    """The answers and the sample submission, where they are not known already."""
    answers = answers or _first([private], _ANSWERS, f"{private} has no csv file with answers", but="*ample*ubmission*")
    return answers, sample or _first([public, private], _SAMPLES, f"{public} has no sample submission")


def _configured(root: Path, name: str, section: str, key: str) -> Path | None:
    """A file that ``config.yaml`` names, if it is there; its paths begin with the competition's name."""
    text = _config(root, name, section, key)
    path = root / Path(text).relative_to(name) if text.startswith(f"{name}/") else root / text
    return path if text and path.is_file() else None


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
    if layout.answers.resolve().is_relative_to(layout.public.resolve()):
        raise TaskError(f"{layout.answers}: the answers lie in the folder that code sees, {layout.public}: move them out of it")
    sample, answers = read_rows(layout.sample), read_rows(layout.answers)
    _check_names(layout, sample, answers)
    keys = _keys(layout, sample, answers)
    names = sample.keys(keys)
    splits = [_parted(layout.name, names, number) for number in range(_SPLITS)]
    grader = ExternalMetric(layout.style, layout.code, layout.answers, layout.sample, keys, splits[0])
    solved = _solvable(grader, splits, count=len(names))
    parts = solved.parts
    grader = ExternalMetric(layout.style, layout.code, layout.answers, layout.sample, keys, parts)
    board = _leaderboard(root, layout, solved.larger_is_better)
    _warn_unless_truth_wins(layout, solved, answers, larger=board.larger_is_better)
    predicted = [name for name in sample.header if name not in keys]
    spec = Spec(
        name=layout.name,
        title=layout.name.replace("-", " "),
        metric=Metric(_metric_name(root, layout), board.larger_is_better, "number", _no_score),
        id_column=keys[0],
        target=predicted[0] if predicted else sample.header[-1],
        kind="regression",
        labels=(),
        modality="tabular",
        source=f"a competition in the layout of {layout.style}",
        licence="the competition's own",
        limits=_roomy(grader),
        columns=tuple(name for name in sample.header if name != keys[0]),
    )
    test = np.zeros(len(names), dtype=np.bool_)
    test[list(parts[1])] = True
    ids = tuple(" ".join(name) for name in names)
    return Task(spec, root, read_text(layout.description), Answers(ids, np.zeros(len(ids)), test), board, layout.public, grader)


def _roomy(grader: ExternalMetric) -> dict[str, float]:
    """Limits of a run that let it write files of a few times the size of the sample submission; {} where the usual ones do."""
    wanted = -(-grader.max_bytes >> 20)
    return {"file_mb": wanted} if wanted > 64 else {}


def _keys(layout: CompetitionLayout, sample: Rows, answers: Rows) -> tuple[str, ...]:
    keys = find_keys(sample, answers)
    if keys is not None:
        return keys
    first = sample.header[0]
    if first not in answers.header:
        raise TaskError(f"{layout.answers}: expected the column {first!r} of the sample submission, got {list(answers.header)}")
    names, found = sample.keys([first]), {key for key in answers.keys([first])}
    if len(set(names)) < len(names):
        raise TaskError(f"{layout.sample}: no column, nor two or three together, name its rows as those of {layout.answers.name}")
    missing = len(set(names) - found)
    raise TaskError(
        f"{layout.answers}: its ids are not those of the sample submission: {missing} are missing and "
        f"{len(found - set(names))} are of no row there"
    )


def _parted(name: str, rows: list[tuple[str, ...]], number: int) -> Parts:
    """The rows of each part, by a keyed hash of what names them."""
    test = [bool(keyed_hash("part", str(number), name, *row)[0] & 1) for row in rows]
    return (
        tuple(place for place, hidden in enumerate(test) if not hidden),
        tuple(place for place, hidden in enumerate(test) if hidden),
    )


@dataclass(frozen=True, slots=True)
class Solved:
    """What the metric says of a competition's own files.

    Args:
        parts: the first way to part the rows in which the answers themselves can be scored.
        larger_is_better: None where the metric does not tell.
        sample: the sample submission's score on all rows; None where it has none.
        truth: the answers' score; None where they have other columns than a submission.
    """

    parts: Parts
    larger_is_better: bool | None
    sample: float | None = None
    truth: float | None = None


def _check_names(layout: CompetitionLayout, sample: Rows, answers: Rows) -> None:
    """Check that every column of a submission can be called by its name."""
    if "" in sample.header:
        place = sample.header.index("") + 1
        raise TaskError(
            f"{layout.sample}: column {place} has no name: give it one, or leave it out (pandas writes one such for its index)"
        )
    for path, table in ((layout.sample, sample), (layout.answers, answers)):
        twice = next((name for name in sample.header if table.header.count(name) > 1), None)
        if twice is not None:
            raise TaskError(f"{path}: two columns are called {twice!r}: rename one")


def _warn_unless_truth_wins(layout: CompetitionLayout, solved: Solved, answers: Rows, *, larger: bool) -> None:
    """Warn where the metric does not rate the answers above the sample submission, so that rewards may mean nothing."""
    if solved.truth is None or solved.sample is None:
        return
    if solved.truth > solved.sample if larger else solved.truth < solved.sample:
        return
    missing = {cell for name in answers.header for cell in answers.column(name) if spelling(cell) == ""}
    why = f" (among them is {sorted(missing)[-1]!r}, which pandas reads as a missing value)" if missing else ""
    warnings.warn(
        f"{layout.name}: the metric gives the answers in {layout.answers.name}{why} {solved.truth:g}, and the sample submission "
        f"{solved.sample:g}, where {'larger' if larger else 'smaller'} scores are better: no attempt can be right",
        DoubtfulTask,
        stacklevel=5,
    )


class DoubtfulTask(UserWarning):
    """A task can be played, and its rewards may not mean what they should."""


def _solvable(grader: ExternalMetric, splits: list[Parts], *, count: int) -> Solved:
    """How the competition's own files fare.

    Where the answers have other columns than a submission, the sample submission stands for them.

    Raises:
        TaskError: there is none, as the metric fails, or the competition's own files cannot pass.
    """
    splits = [parts for parts in splits if all(parts)]
    if not splits:
        raise TaskError(f"{grader.sample} has too few rows to be parted in two: {count}")
    sample, truth = grader.sample.read_bytes(), grader.truth()
    whole = tuple(range(count))
    which = f"the sample submission {grader.sample}" if truth is None else f"the answers {grader.answers}"
    try:
        grader.check_form(sample if truth is None else truth)
        found = grader.ask([sample] if truth is None else [sample, truth], [(whole, whole), *splits])
    except (Unscorable, MetricFailed) as error:
        raise TaskError(f"{grader.code}: {which} cannot be scored: {error}") from error
    for parts, results in zip(splits, found[1:], strict=False):
        if "scores" in results[-1]:
            whole_scores = [each["scores"][0] if "scores" in each else None for each in found[0]]
            of_truth = None if truth is None else whole_scores[-1]
            return Solved(parts, results[-1]["higher_is_better"], whole_scores[0], of_truth)
    if truth is None and "invalid" in found[0][-1]:
        return Solved(splits[0], found[0][-1]["higher_is_better"])  # it works, and does not like its own sample
    half = " half by half" if len(found) > 1 else ""
    try:
        scores_in(found[-1][-1])
    except (Unscorable, MetricFailed) as error:
        raise TaskError(f"{grader.code}: the metric does not score {which}{half}: {error}") from error
    raise AssertionError("a metric that gives scores was taken for one that does not")


def _no_score(*_: object) -> float:
    raise AssertionError("the metric of this task is not ours to compute")


def _leaderboard(root: Path, layout: CompetitionLayout, larger: bool | None) -> Leaderboard:
    if layout.style == "dsbench":
        return _between(layout)
    own = [root, root / "info"]
    folders = own if layout.style == "mle-dojo" else [*own, *filter(None, [_installed(layout.name)])]
    names = ("private_leaderboard.csv", "leaderboard.csv", "public_leaderboard.csv", "*leaderboard.csv")
    path = _first(folders, names, f"{root} has no leaderboard")
    scores = _scores(path)
    falling = scores[0] > scores[-1]
    if larger is None and (scores[0] == scores[-1] or scores != sorted(scores, reverse=falling)):
        raise TaskError(
            f"{path}: nothing but its order says whether larger or smaller scores are better, and its scores are not sorted from "
            "best to worst: sort them"
        )
    if larger is not None and scores[0] != scores[-1] and falling != larger:
        raise TaskError(
            f"{path}: it goes from {scores[0]:g} to {scores[-1]:g}, so {'larger' if falling else 'smaller'} seems to be better, "
            f"but {layout.code} says that {'larger' if larger else 'smaller'} is: turn one of them round"
        )
    return Leaderboard.of(scores, larger_is_better=falling if larger is None else larger)


def _scores(path: Path) -> list[float]:
    table = read_rows(path)
    column = next((name for name in table.header if name.lower() == "score"), None)
    if column is None:
        raise TaskError(f"{path}: expected a column 'score', got {list(table.header)}")
    try:
        scores = [float(cell or "nan") for cell in table.column(column)]
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from error
    finite = [score for score in scores if np.isfinite(score)]
    if not finite:
        raise TaskError(f"{path}: a leaderboard needs at least one finite score, got {len(scores)} entries, none finite")
    return finite


def _between(layout: CompetitionLayout) -> Leaderboard:
    """DSBench scores linearly from a baseline to the truth: a leaderboard with its entries evenly in between does the same."""
    ends = []
    for kind in ("baseline", "GT"):
        path = layout.code.parent.parent / "save_performance" / kind / layout.name / "result.txt"
        if not path.is_file():
            raise TaskError(f"{layout.name} needs {path}: its scores are given relative to it")
        try:
            ends.append(float(read_text(path)))
        except ValueError as error:
            raise TaskError(f"{path}: {error}") from error
    if ends[0] == ends[1]:
        raise TaskError(f"{layout.name}: the baseline and the ground truth have the same score, {ends[0]:g}")
    return Leaderboard.of(np.linspace(ends[0], ends[1], _LINEAR), larger_is_better=ends[1] > ends[0])


def _metric_name(root: Path, layout: CompetitionLayout) -> str:
    return (_config(root, layout.name, "grader", "name") if layout.style == "mle-bench" else "") or "score"


def _config(root: Path, name: str, section: str, key: str) -> str:
    """An entry of a section of ``config.yaml``, "" where there is none."""
    path = _maybe([folder for folder in (root, _installed(name)) if folder is not None], ("config.yaml",))
    lines = [] if path is None else read_text(path).splitlines()
    inside = False
    for line in lines:
        if line.strip() and not line[0].isspace():
            inside = line.startswith(f"{section}:")
        elif inside and line.strip().startswith(f"{key}:"):
            return line.partition(":")[2].strip().strip("\"'")
    return ""


def _installed(name: str) -> Path | None:
    """The folder of a competition in an installed ``mlebench``, without importing it."""
    spec = importlib.util.find_spec("mlebench")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "competitions", name)
        if path.is_dir():
            return path
    return None


def _maybe(folders: Iterable[Path], patterns: tuple[str, ...], but: str = "") -> Path | None:
    for folder in folders:
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and not (but and path.match(but)):
                    return path
    return None


def _first(folders: Iterable[Path], patterns: tuple[str, ...], otherwise: str, but: str = "") -> Path:
    found = _maybe(folders, patterns, but)
    if found is None:
        raise TaskError(otherwise)
    return found


__getattr__ = renamed(__name__, {"Layout": "CompetitionLayout"})
