"""Writes small competitions in the layouts of other benchmarks."""

from __future__ import annotations

from pathlib import Path

from tests.autoresearch.small_tasks import write_csv

IDS = tuple(f"r{number}" for number in range(40))
TRUTH = {name: number % 7 for number, name in enumerate(IDS)}

MLE_BENCH = """
import pandas as pd
from mlebench.grade_helpers import InvalidSubmissionError


def grade(submission: pd.DataFrame, answers: pd.DataFrame) -> float:
    if (submission["y"] < 0).any():
        raise InvalidSubmissionError("y must not be negative")
    merged = answers.merge(submission, on="id", suffixes=("", "_submitted"))
    return float((merged["y"] - merged["y_submitted"]).abs().mean())
"""
MLE_DOJO = """
from typing import Any
import pandas as pd
from mledojo.metrics.base import CompetitionMetrics, InvalidSubmissionError
from sklearn.metrics import mean_absolute_error


class SmallMetrics(CompetitionMetrics):
    def __init__(self, value: str = "y", higher_is_better: bool = False):
        super().__init__(higher_is_better)
        self.value = value

    def evaluate(self, y_true: pd.DataFrame, y_pred: pd.DataFrame) -> float:
        print("prints while it scores")
        return mean_absolute_error(y_true[self.value], y_pred[self.value])

    def validate_submission(self, submission: Any, ground_truth: Any) -> str:
        if len(submission) != len(ground_truth):
            raise InvalidSubmissionError("Number of rows does not match.")
        if (submission["y"] < 0).any():
            raise InvalidSubmissionError("y must not be negative")
        return "Submission is valid."
"""
DSBENCH = """
import argparse
import os.path
import pandas as pd

parser = argparse.ArgumentParser()
for name in ("path", "name", "answer_file", "predict_file"):
    parser.add_argument(f"--{name}", type=str, required=True)
parser.add_argument("--value", type=str, default="y")
args = parser.parse_args()
answers, predictions = pd.read_csv(args.answer_file), pd.read_csv(args.predict_file)
performance = (answers[args.value] - predictions[args.value]).abs().mean()
with open(os.path.join(args.path, args.name, "result.txt"), "w") as file:
    file.write(str(performance))
"""


def _public(folder: Path) -> None:
    write_csv(folder / "train.csv", [("id", "x", "y"), *((f"t{number}", number, number % 7) for number in range(20))])
    write_csv(folder / "test.csv", [("id", "x"), *((name, number) for number, name in enumerate(IDS))])
    write_csv(folder / "sample_submission.csv", [("id", "y"), *((name, 0) for name in IDS)])


def _answers(path: Path) -> None:
    write_csv(path, [("id", "y"), *TRUTH.items()])


SCORES = [0.1 * place for place in range(1, 31)]


def write_mle_bench(root: Path) -> Path:
    """``prepared/public``, ``prepared/private``, grade.py, config.yaml, description.md and leaderboard.csv."""
    _public(root / "prepared/public")
    _answers(root / "prepared/private/test.csv")
    (root / "grade.py").write_text(MLE_BENCH)
    (root / "config.yaml").write_text(f"id: {root.name}\ngrader:\n  name: mean-absolute-error\n  grade_fn: x:grade\n")
    (root / "description.md").write_text("# Small\n\nSubmissions are scored by mean absolute error.\n")
    write_csv(root / "leaderboard.csv", [("scoreNullable", "teamId", "score"), *((s, i, s) for i, s in enumerate(SCORES))])
    return root


def write_mle_dojo(root: Path) -> Path:
    """``data/public``, ``data/private``, ``info`` and ``utils/metric.py``."""
    _public(root / "data/public")
    _answers(root / "data/private/test_answer.csv")
    for folder in ("info", "utils"):
        (root / folder).mkdir()
    (root / "utils/metric.py").write_text(MLE_DOJO)
    (root / "info/description.txt").write_text("Predict y. The metric is the mean absolute error.\n")
    write_csv(root / "info/private_leaderboard.csv", [("TeamName", "Score"), *((f"team {s}", s) for s in SCORES)])
    write_csv(root / "info/public_leaderboard.csv", [("TeamName", "Score"), ("nobody", 99)])
    return root


def write_dsbench(root: Path) -> Path:
    """The tree of DSBench's data modelling with one competition in it; returns the competition's folder."""
    folder = root / "data/data_resplit/small"
    _public(folder)
    _answers(root / "data/answers/small/test_answer.csv")
    for place, text in (
        ("data/task/small.txt", "Predict y, mean absolute error."),
        ("evaluation/small_eval.py", DSBENCH),
        ("save_performance/baseline/small/result.txt", "3.0"),
        ("save_performance/GT/small/result.txt", "0.0"),
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    return folder


LAYOUTS = {"mle-bench": write_mle_bench, "mle-dojo": write_mle_dojo, "dsbench": write_dsbench}
