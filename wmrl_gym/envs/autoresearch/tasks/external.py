"""Metrics that are somebody else's code: run outside of every sandbox and outside of this process, on checked csv files."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wmrl_gym.envs.autoresearch.tasks.format import TaskError

Style = Literal["mle-bench", "mle-dojo", "dsbench"]
_SCRIPT = Path(__file__).parent / "metric_process.py"
_SECONDS = 300.0


class Unscorable(ValueError):
    """The metric's own verdict on a submission that it does not accept."""


class MetricFailed(RuntimeError):
    """The metric did not score a submission, and did not say that the submission is at fault."""


@dataclass(frozen=True, slots=True)
class ExternalMetric:
    """A benchmark's metric and the answers that it compares with.

    Args:
        style: whose conventions the code follows.
        code: the file with the metric.
        answers: the csv file with the answers.
        sample: the csv file with a valid submission: its columns, its ids, and which cells are numbers.
        parts: ids of the validation and of the test part.
    """

    style: Style
    code: Path
    answers: Path
    sample: Path
    parts: tuple[tuple[str, ...], tuple[str, ...]]

    def check(self) -> bool | None:
        """Score the sample submission, to see whether the metric works at all; returns whether larger is better, if it tells.

        Raises:
            TaskError: the metric failed.
        """
        try:
            return self._ask(self.sample.read_bytes()).get("higher_is_better")
        except Unscorable:
            return None  # it works, and does not like its own sample
        except MetricFailed as error:
            raise TaskError(f"{self.code}: the metric does not score the sample submission {self.sample}: {error}") from error

    def scores(self, submission: bytes) -> tuple[float, float]:
        """The scores on the validation and on the test part.

        Raises:
            Unscorable: the submission is at fault.
        """
        self._check_form(submission)
        try:
            validation, test = self._ask(submission)["scores"]
        except MetricFailed as error:
            raise Unscorable(f"the metric could not score it: {error}") from error  # it scored the sample: see check()
        return float(validation), float(test)

    def _check_form(self, submission: bytes) -> None:
        expected, sample = _rows(self.sample.read_bytes())
        header, rows = _rows(submission)
        if sorted(header) != sorted(expected):
            raise Unscorable(f"wrong columns: expected {expected}, got {header}")
        order = [header.index(name) for name in expected]
        wanted = {row[0] for row in sample}
        ids = [row[order[0]] for row in rows]
        if len(ids) != len(set(ids)):
            raise Unscorable("an id appears more than once")
        if set(ids) != wanted:
            raise Unscorable(f"{len(wanted - set(ids))} ids are missing and {len(set(ids) - wanted)} are unknown")
        numbers = [all(_is_number(row[column]) for row in sample) for column in range(len(expected))]
        for row in rows:
            for column, place in enumerate(order[1:], start=1):
                if row[place] == "" or (numbers[column] and not _is_number(row[place])):
                    raise Unscorable(f"{row[place]!r} in column {expected[column]!r} is not a finite number, or is missing")

    def _ask(self, submission: bytes) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="wmrl-metric-") as folder:
            path = Path(folder, "submission.csv")
            path.write_bytes(submission)
            job = {
                "style": self.style,
                "metric": str(self.code.resolve()),
                "answers": str(self.answers.resolve()),
                "submission": str(path),
                "id": _rows(self.sample.read_bytes())[0][0],
                "parts": self.parts,
            }
            command = [sys.executable, "-B", str(_SCRIPT)]
            clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "OMP_NUM_THREADS")}
            try:
                done = subprocess.run(
                    command, input=json.dumps(job), capture_output=True, text=True, timeout=_SECONDS, cwd=folder, env=clean
                )
            except subprocess.TimeoutExpired as error:
                raise MetricFailed(f"no score within {_SECONDS:.0f} s") from error
        try:
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, json.JSONDecodeError) as error:
            raise MetricFailed(f"no score, but: {done.stderr.strip()[-500:]}") from error
        if "invalid" in answer:
            raise Unscorable(answer["invalid"].partition(": ")[2])
        if "error" in answer:
            raise MetricFailed(answer["error"])
        return answer


def _rows(content: bytes) -> tuple[list[str], list[list[str]]]:
    try:
        rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Unscorable(f"the submission is not valid csv: {error}") from error
    if not rows:
        raise Unscorable("the submission is empty")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise Unscorable(f"line {number} has {len(row)} fields, expected {len(rows[0])}")
    return rows[0], rows[1:]


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return value == value and abs(value) != float("inf")
