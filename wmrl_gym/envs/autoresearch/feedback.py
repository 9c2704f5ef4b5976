"""The text that comes back from an attempt: what a sandbox prints, bounded, and the score that may be shown."""

from __future__ import annotations

from wmrl_gym.envs.autoresearch.reply import MAX_REPLY
from wmrl_gym.envs.autoresearch.rules import NO_SUBMISSION, RUNTIME_ERROR, STATUSES, TIMEOUT, VALID, percentile_of
from wmrl_gym.envs.autoresearch.static.facts import SCRIPT
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.factored import Printed
from wmrl_gym.sandbox import Limits

MAX_FEEDBACK = 8192
"""The longest feedback, in characters."""
_TAIL = 2000

UNREAD_FEEDBACK = "unknown: the process that reads scripts was lost"
MALFORMED_FEEDBACK = (
    "status: malformed\nThe reply holds neither a complete ```python code block nor a line that says DESCRIBE, or it is longer "
    f"than {MAX_REPLY} characters: nothing was run."
)


def tail(text: str, length: int = _TAIL) -> str:
    """The end of a text, marked where it was cut.

    >>> tail("abcdef", 3)
    '[3 characters cut]\\ndef'
    """
    text = text.rstrip()
    return text if len(text) <= length else f"[{len(text) - length} characters cut]\n{text[-length:]}"


def head(text: str, length: int) -> str:
    """The beginning of a text, marked where it was cut.

    >>> head("abcdef", 3)
    'abc\\n[3 characters cut]'
    """
    text = text.rstrip()
    return text if len(text) <= length else f"{text[:length]}\n[{len(text) - length} characters cut]"


def bounded(text: str) -> str:
    """A text that fits into :data:`MAX_FEEDBACK`: its end, if it is too long."""
    return text if len(text) <= MAX_FEEDBACK else tail(text, MAX_FEEDBACK - 64)


def score_line(task: Task, shown: float, *, part: str = "validation") -> str:
    """One line about a score on a part of the answers: the share of the leaderboard, in steps, and the score that stands there.

    Args:
        task: the task.
        shown: the value that the agent may see, of the ladder.
        part: which part of the answers it is of.
    """
    measure, percentile = task.spec.metric, percentile_of(shown)
    direction = "larger" if measure.larger_is_better else "smaller"
    score = task.leaderboard.score_at(percentile)
    return f"{part} {measure.name}: about {score:.4f} ({direction} is better), beats {percentile:.0%} of the leaderboard"


def stopped(limit: str, limits: Limits) -> str:
    """Words for a run that was stopped at a limit, given the limit's name in the result.

    >>> stopped("wall", Limits(wall_s=3))
    'stopped at the limit of 3 s of wall-clock time'
    """
    return f"stopped at the limit of {limits.describe(limit)}"


def report(status: int, *, ended: str, verdict: str = "", stdout: str = "", stderr: str = "") -> str:
    """Feedback on code that ran.

    Args:
        status: index into the statuses.
        ended: how the run ended, such as ``exit code: 1``.
        verdict: the score, or what is wrong with the submission.
        stdout: what the run printed.
        stderr: likewise, tracebacks included.
    """
    parts = [f"status: {STATUSES[status]}", ended]
    if verdict:
        parts.append(verdict)
    if stdout.strip():
        parts.append(f"stdout:\n{tail(stdout)}")
    if stderr.strip():
        parts.append(f"stderr:\n{tail(stderr)}")
    return "\n".join(parts)


def expected_traceback(code: str, printed: Printed) -> str:
    r"""What an exception would print, where a model expects one.

    >>> print(expected_traceback("x = 1\nfit(x)\n", Printed("TypeError", 2, "fit() takes no arguments")))
    Traceback (most recent call last):
      File "/workspace/solution.py", line 2, in <module>
        fit(x)
    TypeError: fit() takes no arguments
    """
    lines = code.splitlines()
    parts = ["Traceback (most recent call last):"]
    if 1 <= printed.line <= len(lines):
        parts += [f'  File "{SCRIPT}", line {printed.line}, in <module>', f"    {lines[printed.line - 1].strip()}"]
    name = printed.error_type or "Exception"
    return "\n".join([*parts, f"{name}: {printed.message}" if printed.message else name])


def expected_report(
    task: Task,
    status: int,
    shown: float,
    *,
    limits: Limits,
    part: str = "validation",
    code: str = "",
    printed: Printed | None = None,
) -> str:
    """Feedback in the same form, for an outcome that a model predicts.

    Args:
        task: the task.
        status: index into the statuses.
        shown: the value that the agent may see, of the ladder; NaN shows no score.
        part: which part of the answers the shown value is of.
        limits: the bounds of an execution; code that computes without pause reaches the shorter of the two time limits first.
        code: the script.
        printed: what it is expected to print; None says nothing of that.
    """
    said = "" if printed is None or status == RUNTIME_ERROR else printed.message
    if status == TIMEOUT:
        return report(status, ended=stopped("cpu" if limits.cpu_s < limits.wall_s else "wall", limits), stdout=said)
    if status == VALID:
        verdict = "" if shown != shown else score_line(task, shown, part=part)
        return report(status, ended="exit code: 0", verdict=verdict, stdout=said)
    if status == NO_SUBMISSION:
        return report(status, ended="exit code: 0", verdict="invalid submission", stdout=said)
    return report(status, ended="exit code: 1", stderr="" if printed is None else expected_traceback(code, printed))
