"""Scores submissions with a benchmark's own metric, in a process of its own, which reads its job as JSON from standard input.

A benchmark's metric is code that its owner trusts, but it may be slow, print, or end its process; and what it imports from its
benchmark need not be installed. Of this package only the reader of tables is used here, so that a metric sees what was checked.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import logging
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


class InvalidSubmissionError(Exception):
    """What both benchmarks call the verdict on a submission that cannot be scored."""


class CompetitionMetrics:
    """The base class of MLE-Dojo's metrics, as far as they rely on it."""

    def __init__(self, higher_is_better: bool = True) -> None:
        self.higher_is_better = higher_is_better


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Score submissions.

    Args:
        job: "style" is "mle-bench", "mle-dojo" or "dsbench"; "metric" the file of code; "answers", "sample" and "submissions"
            files of rows; "keys" the columns that name rows; "candidates" ways to part the rows of the sample in two.

    Returns:
        "found": for each candidate, up to the first by which the last submission has scores, what was found of each submission:
        "scores" with "higher_is_better" (None where the metric does not tell), or "invalid" or "error", in words. If it has no
        scores by the first candidate, the others are not tried.
    """
    score, higher = _STYLES[job["style"]](Path(job["metric"]))
    reading = _module("wmrl_reading", Path(__file__).parent / "reading.py")
    keys, sample = job["keys"], reading.read_rows_of(Path(job["sample"]))
    wanted = reading.Keys(sample.keys(keys))
    answers = _table(reading, Path(job["answers"]), keys, wanted=wanted, names=sample.keys(keys))
    tables = [_table(reading, Path(path), keys, wanted=wanted, names=sample.keys(keys)) for path in job["submissions"]]
    found: list[list[dict[str, Any]]] = []
    for number, parts in enumerate(job["candidates"]):
        found.append([_verdict(functools.partial(_scores, score, answers, table, parts)) for table in tables])
        for each in found[-1]:
            each["higher_is_better"] = higher
        if ("scores" in found[-1][-1]) == (number > 0):  # the first candidate fails, or another one does not
            break
    return {"found": found}


def _scores(score: Callable[[Any, Any], float], answers: Any, submission: Any, parts: list[list[int]]) -> dict[str, Any]:
    return {"scores": [float(score(_taken(answers, rows), _taken(submission, rows))) for rows in parts]}


def _taken(table: Any, rows: list[int]) -> Any:
    return [table[row] for row in rows] if isinstance(table, list) else table.iloc[rows].reset_index(drop=True)


def _table(reading: Any, path: Path, keys: list[str], *, wanted: Any, names: list[tuple[str, ...]]) -> Any:
    """A file as a frame in the order of the sample, whose keys are text and spelt as there; JSON lines as a list of objects."""
    import pandas as pd

    table = reading.read_rows_of(path)
    order = wanted.order(table.keys(keys))
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        return [lines[place] for place in order]
    rows = [list(table.rows[place]) for place in order]
    for column, name in enumerate(keys):
        for row, key in zip(rows, names, strict=True):
            row[table.header.index(name)] = key[column]
    text = reading.to_csv(table.header, rows)
    frame = pd.read_csv(io.StringIO(text), converters=dict.fromkeys(keys, str), skip_blank_lines=False)
    if len(frame) != len(rows):
        raise RuntimeError(f"{path.name}: pandas reads {len(frame)} of {len(rows)} rows")
    return frame


def _mle_bench(path: Path) -> tuple[Callable[[Any, Any], float], bool | None]:
    helpers = _module("wmrl_mlebench_helpers", Path(__file__).parent / "mlebench_helpers.py")
    public = {name: value for name, value in vars(helpers).items() if getattr(value, "__module__", "") == helpers.__name__}
    _stand_in("mlebench.grade_helpers", InvalidSubmissionError=helpers.InvalidSubmissionError)
    _stand_in("mlebench.utils", get_logger=logging.getLogger)
    _stand_in("mlebench.competitions.utils", **public)
    grade = _load(path).grade
    return lambda truth, answer: grade(answer, truth), None


def _mle_dojo(path: Path) -> tuple[Callable[[Any, Any], float], bool | None]:
    names = {"InvalidSubmissionError": InvalidSubmissionError, "CompetitionMetrics": CompetitionMetrics}
    _stand_in("mledojo.metrics.base", **names)
    _stand_in("mledojo.metrics", **names)
    module = _load(path)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "evaluate")
    ]
    if len(found) != 1:
        raise RuntimeError(f"{path} must define one class with a method `evaluate`, it defines {len(found)}")
    metric = found[0]()

    def score(truth: Any, answer: Any) -> float:
        metric.validate_submission(answer.copy(), truth.copy())
        return float(metric.evaluate(truth.copy(), answer.copy()))

    return score, bool(metric.higher_is_better)


def _dsbench(path: Path) -> tuple[Callable[[Any, Any], float], bool | None]:
    def score(truth: Any, answer: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            truth.to_csv(f"{folder}/answers.csv", index=False)
            answer.to_csv(f"{folder}/predictions.csv", index=False)
            os.mkdir(f"{folder}/part")
            sys.argv = [str(path), "--path", folder, "--name", "part"]
            sys.argv += ["--answer_file", f"{folder}/answers.csv", "--predict_file", f"{folder}/predictions.csv"]
            runpy.run_path(str(path), run_name="__main__")
            return float(Path(folder, "part", "result.txt").read_text(encoding="utf-8"))

    return score, None


_STYLES = {"mle-bench": _mle_bench, "mle-dojo": _mle_dojo, "dsbench": _dsbench}


def _stand_in(name: str, **values: Any) -> None:
    """Let ``name`` be imported where its package is not installed."""
    if importlib.util.find_spec(name.split(".")[0]) is not None and name.split(".")[0] not in _ours:
        return
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        part = ".".join(parts[:depth])
        _ours.add(parts[0])
        module = sys.modules.setdefault(part, types.ModuleType(part))
        module.__spec__ = importlib.util.spec_from_loader(part, None)
        module.__path__ = []
    vars(sys.modules[name]).update(values)


_ours: set[str] = set()


def _load(path: Path) -> Any:
    """The module in a file; its package is the folder, so that it can import what lies beside it."""
    package = types.ModuleType("competition")
    package.__path__ = [str(path.parent)]
    sys.modules["competition"] = package
    return _module(f"competition.{path.stem}", path)


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _verdict(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        with redirect_stdout(sys.stderr):
            return job()
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("mlebench", "mledojo"):
            return {"error": f"it imports {error.name}, of which only a part is stood in for: install {missing} ({error})"}
        return {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:
        kind = "invalid" if type(error).__name__ == "InvalidSubmissionError" else "error"
        return {kind: f"{type(error).__name__}: {error}"}
    except SystemExit as stop:
        return {"error": f"it ended its process with {stop.code!r}"}


if __name__ == "__main__":
    _job = json.load(sys.stdin)
    _answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the metric prints, by whatever way and however late, is no answer
    print(json.dumps(_verdict(lambda: main(_job))), file=_answer, flush=True)
