"""Grades submissions: bytes that untrusted code wrote are parsed as csv, outside of its sandbox, and scored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.tasks.external import Unscorable
from wmrl_gym.envs.autoresearch.tasks.format import Spec, Task
from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, Keys, parse_rows

MAX_SUBMISSION_BYTES = 16 * 2**20
_LONGEST_NUMBER = 1000
"""Characters of what is read as a number."""
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")


class InvalidSubmission(ValueError):
    """The verdict on a submission that cannot be scored, in words for the agent."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The two scores of a submission, in the task's metric, or why it has none.

    Args:
        problem: why the submission is invalid; None if it is valid.
        validation: the score that the agent may see; NaN if invalid.
        test: the score that pays; never shown; NaN if invalid.
    """

    problem: str | None
    validation: float
    test: float


def grade(task: Task, submission: bytes | None, *, problem: str | None = None) -> Grade:
    """Score a submission on both parts of the hidden answers.

    Args:
        task: the task.
        submission: the bytes of the file; None if there was none.
        problem: what the sandbox found wrong with the file itself, such as that it is a directory.
    """
    try:
        if problem is not None:
            raise InvalidSubmission(problem)
        if task.grader is not None:
            return _grade_elsewhere(task, submission)
        predictions = parse(task, submission)
    except InvalidSubmission as error:
        return Grade(str(error), np.nan, np.nan)
    answers, measure = task.answers, task.spec.metric
    with np.errstate(over="ignore"):
        scores = [
            measure.score(answers.truth[part], predictions[part], len(task.spec.labels)) for part in (~answers.test, answers.test)
        ]
    if not np.isfinite(scores).all():
        return Grade("the predictions are too large to be scored", np.nan, np.nan)
    return Grade(None, scores[0], scores[1])


def parse(task: Task, submission: bytes | None) -> NDArray[Any]:
    """Read a submission's predictions in the order of the answers, matching rows by id.

    Returns:
        int64 (n,) label numbers, float64 (n, n_labels) probabilities, or float64 (n,) numbers.

    Raises:
        InvalidSubmission: with the verdict.
    """
    ordered = _rows_by_id(task, _present(submission, MAX_SUBMISSION_BYTES))
    if task.spec.metric.predicts == "label":
        return _labels(task.spec, [row[0] for row in ordered])
    numbers = _numbers(task.spec, ordered)
    return _probabilities(task, numbers) if task.spec.metric.predicts == "probability" else numbers[:, 0]


def _present(submission: bytes | None, most: int) -> bytes:
    if submission is None:
        raise InvalidSubmission("no submission was written to SUBMISSION_PATH")
    if len(submission) > most:
        raise InvalidSubmission(f"the submission has {len(submission)} bytes, at most {most} are read")
    return submission


def _grade_elsewhere(task: Task, submission: bytes | None) -> Grade:
    """By the task's own metric, in a process of its own."""
    assert task.grader is not None
    try:
        scores = task.grader.scores(_present(submission, task.grader.max_bytes))
    except Unscorable as error:
        raise InvalidSubmission(_brief_text(str(error))) from error
    return Grade(None, *scores)


def _brief_text(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."


def _rows_by_id(task: Task, submission: bytes) -> list[list[str]]:
    """Fields besides the id, in the order of the prediction columns, row by row in the order of the answers."""
    expected = [task.spec.id_column, *task.spec.prediction_columns]
    try:
        table = parse_rows(submission, columns=expected)
    except BadTable as error:
        raise InvalidSubmission(f"the submission {_brief_text(str(error))}") from error
    order = [table.header.index(name) for name in expected]
    keys, found = Keys([(name,) for name in task.answers.ids]), dict[int, list[str]]()
    for fields, line in zip(table.rows, table.lines, strict=True):
        name, *values = (fields[i] for i in order)
        place = keys.place((name.strip(),))
        if place is None:
            raise InvalidSubmission(f"line {line}: {_brief(name)} is not an id of test.csv")
        if place in found:
            raise InvalidSubmission(f"line {line}: id {_brief(name)} appears more than once")
        found[place] = values
    missing = [name for place, name in enumerate(task.answers.ids) if place not in found]
    if missing:
        raise InvalidSubmission(f"{len(missing)} of {keys.count} ids are missing, the first is {missing[0]!r}")
    return [found[place] for place in range(keys.count)]


def _labels(spec: Spec, values: list[str]) -> NDArray[np.int64]:
    numbers = {label: number for number, label in enumerate(spec.labels)}
    found = np.empty(len(values), dtype=np.int64)
    for i, value in enumerate(values):
        # pandas writes whole numbers as 3.0 when a column once held a missing value.
        label = value.strip().removesuffix(".0") if value.strip() not in numbers else value.strip()
        if label not in numbers:
            raise InvalidSubmission(
                f"unknown label {_brief(value)} in column {spec.target!r}: expected one of {_brief(spec.labels)}"
            )
        found[i] = numbers[label]
    return found


def _numbers(spec: Spec, rows: list[list[str]]) -> NDArray[np.float64]:
    found = np.empty((len(rows), len(spec.prediction_columns)), dtype=np.float64)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            number = float(value) if len(value) < _LONGEST_NUMBER and _NUMBER.fullmatch(value) else np.nan
            if not np.isfinite(number):
                raise InvalidSubmission(f"{_brief(value)} in column {spec.prediction_columns[j]!r} is not a finite number")
            found[i, j] = number
    return found


def _probabilities(task: Task, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    outside = (numbers < 0) | (numbers > 1)
    if outside.any():
        raise InvalidSubmission(f"probabilities must lie in [0, 1], got {numbers[outside][0]:.6g}")
    if numbers.shape[1] == 1:
        return np.hstack([1.0 - numbers, numbers])
    total = numbers.sum(axis=1)
    off = np.abs(total - 1.0) > 0.01
    if off.any():
        name = task.answers.ids[int(np.flatnonzero(off)[0])]
        raise InvalidSubmission(f"the probabilities of id {name!r} sum to {total[off][0]:.4g}, expected 1")
    return numbers


def _brief(value: Any) -> str:
    text = repr(list(value)) if isinstance(value, (list, tuple)) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
