"""Metrics that are another benchmark's code: run outside of every sandbox and outside of this process, on checked tables."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, Keys, Rows, parse_rows, read_rows_of, to_csv

Style = Literal["mle-bench", "mle-dojo", "dsbench"]
Parts = tuple[tuple[int, ...], tuple[int, ...]]
"""Rows of the sample submission that are scored as the validation and as the test part."""
_SCRIPT = Path(__file__).parent / "metric_process.py"
_SECONDS = 300.0


class Unscorable(ValueError):
    """The verdict on a submission that the metric does not accept."""


class MetricFailed(RuntimeError):
    """The metric did not score a submission, and did not say that the submission is at fault."""


@dataclass(frozen=True)
class ExternalMetric:
    """A benchmark's metric and the answers that it compares with.

    Args:
        style: whose conventions the code follows.
        code: the file with the metric.
        answers: the file with the answers, csv or JSON lines.
        sample: the csv file with a valid submission: its columns, its ids, and which cells are numbers.
        keys: the columns that name rows.
        parts: which rows are scored together.
    """

    style: Style
    code: Path
    answers: Path
    sample: Path
    keys: tuple[str, ...]
    parts: Parts

    @functools.cached_property
    def max_bytes(self) -> int:
        """The largest submission that is read: four times the sample, and 16 MiB at least."""
        return max(16 << 20, 4 * self.sample.stat().st_size)

    @functools.cached_property
    def _form(self) -> tuple[Rows, Keys, list[bool]]:
        """The sample, its keys, and which columns must hold numbers: those that do so in the sample and in the answers."""
        sample, answers = read_rows_of(self.sample), read_rows_of(self.answers)
        numbers = [
            all(map(_is_number, sample.column(name)))
            and (name not in answers.header or all(map(_is_number, answers.column(name))))
            for name in sample.header
        ]
        return sample, Keys(sample.keys(self.keys)), numbers

    def truth(self) -> bytes | None:
        """The answers as a submission; None where they have other columns than one."""
        sample, answers = read_rows_of(self.sample), read_rows_of(self.answers)
        if not set(sample.header) <= set(answers.header):
            return None
        columns = [answers.column(name) for name in sample.header]
        return to_csv(sample.header, zip(*columns, strict=True)).encode("utf-8")

    def scores(self, submission: bytes) -> tuple[float, float]:
        """The scores on the validation and on the test part.

        Raises:
            Unscorable: the submission is at fault.
        """
        self.check_form(submission)
        try:
            (found,) = self.ask([submission], [self.parts])[0]
            validation, test = scores_in(found)
        except MetricFailed as error:
            raise Unscorable(f"the metric could not score it: {error}") from error  # it was tried when the task was loaded
        return validation, test

    def check_form(self, submission: bytes) -> None:
        """Check columns, ids and numbers.

        Raises:
            Unscorable: something is wrong, in words.
        """
        sample, keys, numbers = self._form
        try:
            given = parse_rows(submission, columns=sample.header)
        except BadTable as error:
            raise Unscorable(f"the submission {error}") from error
        try:
            keys.order(given.keys(self.keys))
        except BadTable as error:
            raise Unscorable(str(error)) from error
        for name, number in zip(sample.header, numbers, strict=True):
            wrong = next((cell for cell in given.column(name) if not _is_number(cell)), None) if number else None
            if wrong is not None and name not in self.keys:
                raise Unscorable(f"{wrong[:100]!r} in column {name!r} is not a finite number, or is missing")

    def ask(self, submissions: Sequence[bytes], candidates: Sequence[Parts]) -> list[list[dict[str, Any]]]:
        """What the metric says of each submission, for each way to part the rows, up to the first that it can score.

        Raises:
            MetricFailed: the process gives no answer.
        """
        with tempfile.TemporaryDirectory(prefix="wmrl-metric-") as folder:
            paths = [Path(folder, f"submission{number}.csv") for number in range(len(submissions))]
            for path, submission in zip(paths, submissions, strict=True):
                path.write_bytes(submission)
            job = {
                "style": self.style,
                "metric": str(self.code.resolve()),
                "answers": str(self.answers.resolve()),
                "sample": str(self.sample.resolve()),
                "submissions": list(map(str, paths)),
                "keys": self.keys,
                "candidates": candidates,
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
        if "error" in answer:
            raise MetricFailed(answer["error"])
        found: list[list[dict[str, Any]]] = answer["found"]
        return found


def scores_in(found: dict[str, Any]) -> tuple[float, float]:
    """The two scores in what the metric said of a submission.

    Raises:
        Unscorable: it said that the submission is at fault.
        MetricFailed: it failed.
    """
    if "invalid" in found:
        raise Unscorable(found["invalid"].partition(": ")[2])
    if "error" in found:
        raise MetricFailed(found["error"])
    validation, test = map(float, found["scores"])
    if not (math.isfinite(validation) and math.isfinite(test)):
        raise Unscorable("the metric gives no finite score")
    return validation, test


def _is_number(text: str) -> bool:
    """Whether a cell is a finite number to the metric as well: it reads no digits of other scripts, and no ``1_000``."""
    try:
        return text.isascii() and "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False
