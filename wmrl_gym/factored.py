"""An expensive environment, cut at its one expensive call.

Many environments are ``outcome = execute(attempt)`` plus bookkeeping. Writing the bookkeeping once, as a pure function that the
real environment and a world model share, leaves a world model exactly one thing to be wrong about: the outcome.

Every value here is a *batch* over B rollouts (see :mod:`wmrl_gym.batch`); a single environment is B = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch

StateT = TypeVar("StateT")
AttemptT = TypeVar("AttemptT")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What executing a batch of attempts returned, or what a model expects it to return.

    Args:
        status: int64, shape (B,). Index into :attr:`Factored.statuses`.
        value: float64, shape (B,). What the attempt is worth, in the reward's units: the graded truth where it was executed,
            its expectation where it was predicted. Hidden from the agent until it is paid as a reward.
        shown: float64, shape (B,). The value that the agent may see (measured on validation data), NaN where there is none.
        feedback: object, shape (B,). The text that the agent reads.
        known: bool, shape (B,). False where infrastructure failed and nothing is known; every other field is then a placeholder.
        cpu_s: float64, shape (B,). CPU seconds that execution cost; 0 where nothing was executed.
        wall_s: float64, shape (B,). Wall-clock seconds that execution cost; 0 where nothing was executed.
        peak_memory_mb: float64, shape (B,). MiB of memory that execution used at most; 0 where it is not said.
        score: float64, shape (B,). What ``value`` was graded from, in the task's own units, such as an RMSE; NaN where there is
            none, as of every prediction.
    """

    status: NDArray[np.int64]
    value: NDArray[np.float64]
    shown: NDArray[np.float64]
    feedback: NDArray[np.object_]
    known: NDArray[np.bool_]
    cpu_s: NDArray[np.float64]
    wall_s: NDArray[np.float64]
    peak_memory_mb: NDArray[np.float64] = None  # type: ignore[assignment]  # filled in below
    score: NDArray[np.float64] = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        """Set memory to 0, and scores to NaN, where they were not given."""
        if self.peak_memory_mb is None:
            object.__setattr__(self, "peak_memory_mb", np.zeros(len(self.cpu_s)))
        if self.score is None:
            object.__setattr__(self, "score", np.full(len(self.cpu_s), np.nan))


@dataclass(frozen=True, slots=True)
class Step:
    """The bookkeeping's answer to a batch of outcomes: what ``env.step`` returns, before any wrapper.

    Args:
        observation: a batch of observations, as :func:`gymnasium.vector.utils.batch_space` describes it.
        reward: float64, shape (B,). 0 where ``reward_due`` is False.
        terminated: bool, shape (B,).
        truncated: bool, shape (B,).
        reward_due: bool, shape (B,). False where the reward is 0 by construction, such as the turns before the last.
        reward_valid: bool, shape (B,). False where infrastructure failed: the reward is a placeholder, not to be learnt from.
        info: arrays of length B.
    """

    observation: Any
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    reward_due: NDArray[np.bool_]
    reward_valid: NDArray[np.bool_]
    info: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Printed:
    """What one execution is expected to print, by a model that writes text.

    Args:
        error_type: the exception's name, "" where there is none.
        line: the line of the attempt's text that raises it, from 1; 0 where it is not known.
        message: the exception's message, or what is printed otherwise.
    """

    error_type: str = ""
    line: int = 0
    message: str = ""


class Factored(ABC, Generic[StateT, AttemptT]):
    """The parts of a factored environment.

    :meth:`attempt`, :meth:`gate`, :meth:`advance` and :meth:`begin` are pure: same input, same output, no I/O. Only
    :meth:`execute` touches the world; it is blocking and thread-safe.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    statuses: ClassVar[tuple[str, ...]]
    """Names of the possible outcomes."""
    status_values: ClassVar[tuple[float, ...]]
    """The value that each status always has; NaN where it varies (a valid submission's depends on its quality)."""
    shows_text: ClassVar[bool] = True
    """Whether observations hold ``Outcome.feedback``; where they do not, a model need not write it."""
    needs_outcomes: ClassVar[bool] = True
    """Whether an attempt depends on the outcomes before it. Where it does not, an episode's attempts can run side by side."""
    chosen_by: Literal["value", "shown"] = "value"
    """Which number of the outcomes chooses the attempt whose value an episode pays: the one for which it is largest."""
    reward_range: tuple[float, float]
    contexts: tuple[str, ...]
    """Names of the contexts (tasks) that ``info["context"]`` indexes."""
    status_meanings: ClassVar[Mapping[str, str]] = {}
    """What each status means, for a model that reads; a status without an entry speaks for itself."""
    gated_statuses: ClassVar[frozenset[str]] = frozenset()
    """The statuses that only the gate gives, so that no execution ends in one."""
    known_as: ClassVar[str] = ""
    """What world models that come fitted call environments with these features; "" where none of them knows such."""
    open_values: ClassVar[tuple[float, float] | None] = None
    """(low, high) of the value where its status leaves it open; None where only the reward's range is known."""

    @abstractmethod
    def start(self, seed: NDArray[np.int64], options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, NDArray[Any]]]:
        """The starts of B episodes: a pure function of each one's seed, so that a start can be taken again.

        Args:
            seed: int64, shape (B,), not negative; :func:`draw` makes choices of it.
            options: as ``env.reset`` takes them.

        Returns:
            B observations as a batch, and their infos, arrays of length B, with at least ``context`` (int64).
        """

    @abstractmethod
    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]]) -> StateT:
        """The batch of states that a batch of start observations, and their infos, stands for."""

    @abstractmethod
    def attempt(self, state: StateT, action: Any) -> AttemptT:
        """What a batch of actions asks to be executed."""

    @abstractmethod
    def gate(self, attempt: AttemptT) -> tuple[NDArray[np.bool_], Outcome]:
        """The outcomes that need no execution, such as a syntax error.

        Returns:
            bool, shape (B,): where the answer is certain; and the outcomes, placeholders elsewhere.
        """

    @abstractmethod
    def execute(self, attempt: AttemptT) -> Outcome:
        """Execute a batch of attempts, one after the other, and grade what they left."""

    @abstractmethod
    def advance(self, state: StateT, attempt: AttemptT, outcome: Outcome) -> tuple[StateT, Step]:
        """The bookkeeping: the next states, and what each step returns, given the outcomes."""

    @abstractmethod
    def features(self, attempt: AttemptT) -> NDArray[np.float32]:
        """What a model may know of each attempt before it runs: float32, shape (B, F), finite."""

    def descriptors(self, attempt: AttemptT) -> NDArray[np.float32]:
        """What carries over to contexts never seen, beyond :meth:`features`, for a model that knows other contexts.

        Unlike the columns of :attr:`context_columns` these say in what contexts, and attempts at them, are alike. Optional, and
        no part of the features: a model asks for them if it is told to.

        Returns:
            float32, shape (B, D), finite; no columns where there are none.
        """
        return np.zeros((len(self.text(attempt)), 0), np.float32)

    @abstractmethod
    def text(self, attempt: AttemptT) -> Sequence[str]:
        """Each attempt as text (its code), or "" where the features already say everything."""

    @abstractmethod
    def describe(self, attempt: AttemptT, outcome: Outcome) -> Outcome:
        """Fill ``feedback`` of predicted outcomes in the form that a real execution would have it."""

    def report(self, attempt: AttemptT, outcome: Outcome, printed: Sequence[Printed]) -> Outcome:
        """Like :meth:`describe`, where a model also expects each execution to print something."""
        return self.describe(attempt, outcome)

    def briefing(self, context: int) -> str:
        """What can be said of a context before anything is tried, for a model that reads; "" where there is nothing."""
        return ""

    @property
    def context_columns(self) -> slice | None:
        """Which columns of :meth:`features` say by zeros and ones which context it is; None where none do.

        They mean nothing in an environment with other contexts, so that a model which is carried there replaces them by name.
        """
        return None

    def close(self) -> None:
        """Release sandboxes and everything else that :meth:`execute` opened."""


def resolve(factored: Factored[Any, AttemptT], attempt: AttemptT, *, pool: Executor | None = None) -> Outcome:
    """The true outcomes of a batch of attempts: from the gate where it is certain, else by executing them.

    Args:
        factored: the environment's parts.
        attempt: a batch of B attempts.
        pool: executes each attempt on one of its threads; without it they run one after the other.
    """
    certain, outcome = factored.gate(attempt)
    open_ = np.flatnonzero(~certain)
    if len(open_) == 0:
        return outcome
    if pool is None or len(open_) == 1:
        executed = factored.execute(batch.take(attempt, open_))
    else:
        executed = batch.concatenate(list(pool.map(factored.execute, [batch.take(attempt, [int(row)]) for row in open_])))
    return batch.put(outcome, open_, executed)
