"""How far an episode has come, and what each outcome pays: the bookkeeping that real and imagined episodes share.

Everything is an array over B rollouts, and pure, as a world model calls it thousands of times with B = 256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.factored import Outcome

RewardMode = Literal["final", "improvement", "best_test"]

LADDER = {
    "malformed": 0.0,
    "syntax_error": 0.0,
    "runtime_error": 0.1,
    "timeout": 0.1,
    "no_submission": 0.2,
    "valid": float("nan"),
    "described": 0.0,
}
"""What each outcome is worth (the ladder of arXiv 2608.12564); that of a valid submission lies within :data:`VALID_VALUES`."""
VALID_VALUES = (0.5, 1.0)
"""The worth of a valid submission that beats no entry, and of one that beats the whole leaderboard."""
STATUSES, STATUS_VALUES = tuple(LADDER), tuple(LADDER.values())
MALFORMED, SYNTAX_ERROR, RUNTIME_ERROR, TIMEOUT, NO_SUBMISSION, VALID, DESCRIBED = range(len(STATUSES))
STATUS_MEANINGS = {
    "runtime_error": "the script raises an exception, or uses too much memory",
    "timeout": "the script runs longer than it may",
    "no_submission": "the script ends by itself, but leaves no submission of the right form",
    "valid": "the script ends by itself and leaves a submission that can be scored",
}
"""What the outcomes of an execution mean; the others need none."""
NO_STATUS = -1
"""What ``info["status"]`` holds at reset, and after a failure of infrastructure."""


def ladder_value(percentile: ArrayLike) -> NDArray[np.float64]:
    """The worth of a valid submission, by the share of the leaderboard that it beats.

    >>> ladder_value([0.0, 1.0])
    array([0.5, 1. ])
    """
    low, high = VALID_VALUES
    return low + (high - low) * np.asarray(percentile, dtype=np.float64)


SHOWN_STEPS = 20
"""Steps of the share of the leaderboard that an agent sees: a turn tells it no more than log2(21) = 4.4 bits of the answers."""


def shown_value(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an agent sees of values: those of valid submissions in steps, the others as they are; NaN stays NaN.

    >>> shown_value(np.array([0.2, 0.51, 0.777, 1.0]))
    array([0.2  , 0.5  , 0.775, 1.   ])
    """
    low, high = VALID_VALUES
    steps = np.round((value - low) / (high - low) * SHOWN_STEPS) / SHOWN_STEPS
    return np.where(value >= low, low + (high - low) * steps, value)


def percentile_of(value: float) -> float:
    """The share of the leaderboard that a valid submission of this worth beats.

    >>> percentile_of(0.75), percentile_of(0.1)
    (0.5, 0.0)
    """
    low, high = VALID_VALUES
    return min(max((value - low) / (high - low), 0.0), 1.0)


def percentiles_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """:func:`percentile_of` for each of some worths: float64, the same shape; NaN where one is."""
    low, high = VALID_VALUES
    share: NDArray[np.float64] = (values - low) / (high - low)
    return np.minimum(np.maximum(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When an episode ends and when it pays.

    Args:
        max_turns: the number of attempts after which the task is over: its own end, so ``terminated``.
        reward: "final" pays once, at the episode's end, the test value of the attempt that is best on the part whose score is
            feedback (validation, unless the option ``feedback`` is "test"); "improvement" pays at each turn by how much this
            changes, which may be down, and has the same return; "best_test" pays, at the end, the best test value of all
            attempts, which many noisy attempts raise by luck.
        terminate_on: end the episode as soon as the value that the agent may see reaches this; None never does.

    Raises:
        ValueError: for fewer than one turn, an unknown reward mode, or a threshold outside (0, 1].
        TypeError: an option is of another type.
    """

    max_turns: int
    reward: RewardMode = "final"
    terminate_on: float | None = None

    def __post_init__(self) -> None:
        """Check each rule."""
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int):
            raise TypeError(f"max_turns must be a whole number, got {self.max_turns!r}")
        if self.terminate_on is not None and (
            isinstance(self.terminate_on, bool) or not isinstance(self.terminate_on, (int, float))
        ):
            raise TypeError(f"terminate_on must be a number or None, got {self.terminate_on!r}")
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, got {self.max_turns}")
        if self.reward not in get_args(RewardMode):
            raise ValueError(f"reward must be one of {', '.join(map(repr, get_args(RewardMode)))}, got {self.reward!r}")
        if self.terminate_on is not None and not 0 < self.terminate_on <= 1:
            raise ValueError(f"terminate_on must lie in (0, 1] or be None, got {self.terminate_on}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of B episodes.

    Args:
        task: int64, shape (B,). Which task.
        turn: int64, shape (B,). Attempts made.
        best: float64, shape (B,). Test value of the attempt that the reward is for, hidden from the agent; 0 before any.
        best_shown: float64, shape (B,). The best value that the agent has seen; 0 before any.
        chosen_by: float64, shape (B,). What that attempt was chosen by: the largest so far; 0 before any.
        best_score: float64, shape (B,). Its score on the hidden test part, in the task's own units; NaN where it has none.
    """

    task: NDArray[np.int64]
    turn: NDArray[np.int64]
    best: NDArray[np.float64]
    best_shown: NDArray[np.float64]
    chosen_by: NDArray[np.float64]
    best_score: NDArray[np.float64] = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        """No score is known where none was given."""
        if self.best_score is None:
            object.__setattr__(self, "best_score", np.full(len(self.task), np.nan))

    @classmethod
    def start(cls, task: NDArray[np.int64]) -> Progress:
        """Episodes in which nothing has been tried yet."""
        task = np.asarray(task, dtype=np.int64)
        return cls(task, np.zeros_like(task), *(np.zeros(len(task)) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class Payment:
    """What a turn returns: reward float64; terminated, truncated, due and valid bool; each of shape (B,)."""

    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    due: NDArray[np.bool_]
    valid: NDArray[np.bool_]


def settle(progress: Progress, outcome: Outcome, rules: Rules, *, seen: NDArray[np.float64]) -> tuple[Progress, Payment]:
    """Go on by one outcome in each of B episodes, and say what each pays.

    Args:
        progress: how far each has come.
        outcome: the outcomes; an attempt without a value on validation, which is NaN in ``shown``, is never chosen by it.
        rules: when an episode ends and when it pays.
        seen: float64, shape (B,). Of each outcome, the value that the agent sees; NaN where it sees none.

    An unknown outcome changes nothing but ends its episode: the reward is a placeholder, and invalid.

    Raises:
        ValueError: if a known outcome has no finite value.
    """
    known = outcome.known
    if not np.isfinite(outcome.value[known]).all():
        raise ValueError(f"every known outcome needs a finite value, got {outcome.value[known]}")
    by = outcome.value if rules.reward == "best_test" else np.nan_to_num(outcome.shown, nan=-np.inf)
    better = known & (by > progress.chosen_by)
    best, chosen_by = np.where(better, outcome.value, progress.best), np.where(better, by, progress.chosen_by)
    best_score = np.where(better, outcome.score, progress.best_score)
    best_shown = np.where(known, np.fmax(progress.best_shown, seen), progress.best_shown)
    turn = progress.turn + 1
    over = turn >= rules.max_turns
    if rules.terminate_on is not None:
        over = over | (best_shown >= rules.terminate_on)
    terminated = over & known
    if rules.reward != "improvement":
        due, reward = terminated, np.where(terminated, best, 0.0)
    else:
        # A description, no code or a syntax error adds nothing, whatever the state: there is nothing to predict.
        free = np.isin(outcome.status, (MALFORMED, SYNTAX_ERROR, DESCRIBED))
        due, reward = known & ~free, np.where(known, best - progress.best, 0.0)
    payment = Payment(reward, terminated, ~known, due, known.copy())
    return Progress(progress.task, turn, best, best_shown, chosen_by, best_score), payment
