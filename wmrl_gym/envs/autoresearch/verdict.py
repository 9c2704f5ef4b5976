"""What a run in a sandbox comes to: status, scores, and the parts of the text that an agent reads back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmrl_gym.envs.autoresearch.feedback import report, score_line, stopped
from wmrl_gym.envs.autoresearch.rules import (
    NO_SUBMISSION,
    RUNTIME_ERROR,
    STATUS_VALUES,
    TIMEOUT,
    VALID,
    ladder_value,
    shown_value,
)
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import ExecutionResult, Limits


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one run came to, in the metric's own units, so that it outlives the leaderboard that ranks it.

    Args:
        status: index into :data:`~wmrl_gym.envs.autoresearch.rules.STATUSES`.
        validation: the score on the part that an agent may see; NaN unless valid.
        test: the score on the part that pays; NaN unless valid.
        ended: how the run ended, such as ``exit code: 1``.
        problem: what is wrong with the submission, "" where it is valid or the run did not come so far.
        stdout: what the run printed.
        stderr: likewise, tracebacks included.
    """

    status: int
    validation: float
    test: float
    ended: str
    problem: str
    stdout: str
    stderr: str

    def value(self, task: Task) -> float:
        """What it is worth: on the test part, by the task's leaderboard of today."""
        return self._worth(task, self.test)

    def shown(self, task: Task, part: str = "validation") -> float:
        """What it is worth by the part whose score an agent chooses by: "validation", or "test"."""
        return self._worth(task, self.test if part == "test" else self.validation)

    def feedback(self, task: Task, part: str = "validation") -> str:
        """The text that an agent reads; ``part`` is the one whose score it may see, "none" for neither."""
        text = f"invalid submission: {self.problem}" if self.problem else ""
        if self.status == VALID and part != "none":
            text = score_line(task, float(shown_value(np.array(self.shown(task, part)))), part=part)
        return report(self.status, ended=self.ended, verdict=text, stdout=self.stdout, stderr=self.stderr)

    def outcome(self, task: Task, part: str = "validation") -> Outcome:
        """It as a batch of one outcome, as the environment would have it; what it cost is not known."""
        zero = np.zeros(1)
        return Outcome(
            status=np.array([self.status], dtype=np.int64),
            value=np.array([self.value(task)]),
            shown=np.array([self.shown(task, part)]),
            feedback=np.array([self.feedback(task, part)], dtype=object),
            known=np.ones(1, dtype=np.bool_),
            cpu_s=zero,
            wall_s=zero.copy(),
            score=np.array([self.test]),
        )

    def _worth(self, task: Task, score: float) -> float:
        if self.status != VALID:
            return STATUS_VALUES[self.status]
        return float(ladder_value(task.leaderboard.percentile(score)))


def judge(task: Task, result: ExecutionResult, limits: Limits) -> Verdict:
    """Grade what a run left.

    Raises:
        ValueError: the sandbox itself failed, so that nothing is known.
    """
    if result.failed is not None:
        raise ValueError(f"a run of which nothing is known has no verdict: {result.failed}")
    if result.exceeded is not None or result.exit_code != 0:
        status = TIMEOUT if result.exceeded in ("wall", "cpu") else RUNTIME_ERROR
        ended = f"exit code: {result.exit_code}" if result.exceeded is None else stopped(result.exceeded, limits)
        return Verdict(status, np.nan, np.nan, ended, "", result.stdout, result.stderr)
    graded = grade(task, result.submission, problem=_problem(result))
    status = VALID if graded.problem is None else NO_SUBMISSION
    return Verdict(status, graded.validation, graded.test, "exit code: 0", graded.problem or "", result.stdout, result.stderr)


def _problem(result: ExecutionResult) -> str | None:
    if result.submission_problem is None:
        return None
    if result.submission_problem == "missing":
        return "no submission was written to SUBMISSION_PATH"
    return f"the file at SUBMISSION_PATH {result.submission_problem}"
