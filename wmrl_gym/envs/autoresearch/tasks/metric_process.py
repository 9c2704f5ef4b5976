"""Scores a submission with a benchmark's own metric, in a process of its own, which reads its job as JSON from standard input.

A benchmark's metric is code that its owner trusts, but it may be slow, print, or end its process; and what it imports from its
benchmark need not be installed. Nothing of this package is imported here.
"""

from __future__ import annotations

import importlib.util
import json
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
    """Score both parts of a submission.

    Args:
        job: "style" is "mle-bench", "mle-dojo" or "dsbench"; "metric" the file of code; "answers" and "submission" csv files;
            "id" the column that names rows; "parts" lists of ids as text.

    Returns:
        "scores", a number for each part, with "higher_is_better" where the metric tells; or "invalid" or "error", in words.
    """
    import pandas as pd

    score, higher = _STYLES[job["style"]](Path(job["metric"]))
    answers = pd.read_csv(job["answers"])
    submission = pd.read_csv(job["submission"])
    name = job["id"]
    scores = []
    for part in job["parts"]:
        wanted = set(part)
        truth, answer = (
            frame[frame[name].astype(str).isin(wanted)].sort_values(name, kind="stable").reset_index(drop=True)
            for frame in (answers, submission)
        )
        scores.append(float(score(truth, answer)))
    return {"scores": scores, "higher_is_better": higher}


def _mle_bench(path: Path) -> tuple[Callable[[Any, Any], float], bool | None]:
    _stand_in("mlebench.grade_helpers", InvalidSubmissionError=InvalidSubmissionError)
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
    spec = importlib.util.spec_from_file_location(f"competition.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _verdict(job: dict[str, Any]) -> dict[str, Any]:
    try:
        with redirect_stdout(sys.stderr):
            return main(job)
    except Exception as error:
        kind = "invalid" if type(error).__name__ == "InvalidSubmissionError" else "error"
        return {kind: f"{type(error).__name__}: {error}"}
    except SystemExit as stop:
        return {"error": f"it ended its process with {stop.code!r}"}


if __name__ == "__main__":
    print(json.dumps(_verdict(json.load(sys.stdin))))
