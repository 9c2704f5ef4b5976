"""What the text and the design environment share: tasks, execution in a sandbox, grading, and the rules of an episode."""

from __future__ import annotations

import difflib
import functools
import os
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch import rules as rules_of
from wmrl_gym.envs.autoresearch.embedded.catalogue import list_tasks, load_task
from wmrl_gym.envs.autoresearch.options import Options
from wmrl_gym.envs.autoresearch.rules import NO_STATUS, VALID_VALUES, Payment, Progress, shown_value
from wmrl_gym.envs.autoresearch.tasks.descriptors import descriptors
from wmrl_gym.envs.autoresearch.tasks.format import Task, run_limits
from wmrl_gym.envs.autoresearch.tasks.profile import META_FEATURES
from wmrl_gym.envs.autoresearch.verdict import judge
from wmrl_gym.factored import Factored, Outcome, Step
from wmrl_gym.randomness import draw
from wmrl_gym.sandbox import ExecutionResult, Limits, Sandbox, make_sandbox
from wmrl_gym.threads import tell_when_forked

AttemptT = TypeVar("AttemptT")
TaskChoice: TypeAlias = str | Path | Sequence[str | Path] | None
"""A task's name or directory, several of them, or None for all that are embedded."""


class AutoResearch(Factored[Progress, AttemptT]):
    """The factored logic of AutoResearch; a subclass says what an attempt is and what the agent observes.

    Args:
        task: a name, a directory, a list of these, or None for all embedded tasks.
        **options: those of :class:`~wmrl_gym.envs.autoresearch.options.Options`.

    Raises:
        ValueError: for an unknown task, an empty list, or senseless rules.
        TaskError: for a directory that is not a task.
        gymnasium.error.DependencyNotInstalled: if a task's data are not installed.
    """

    statuses: ClassVar[tuple[str, ...]] = rules_of.STATUSES
    status_values: ClassVar[tuple[float, ...]] = rules_of.STATUS_VALUES
    status_meanings: ClassVar[Mapping[str, str]] = rules_of.STATUS_MEANINGS
    gated_statuses: ClassVar[frozenset[str]] = frozenset({"malformed", "syntax_error", "described"})
    open_values: ClassVar[tuple[float, float] | None] = VALID_VALUES
    reward_range = (0.0, 1.0)

    needs_outcomes: ClassVar[bool] = False
    default_turns: ClassVar[int]
    """Attempts in an episode, where the option ``max_turns`` is not given."""

    def __init__(self, task: TaskChoice = None, **options: Any) -> None:
        self.options = Options.of(options, max_turns=self.default_turns)
        self.rules, self.feedback, self.workers = self.options, self.options.feedback, self.options.workers
        self.chosen_by = "value" if self.rules.reward == "best_test" else "shown"
        if self.rules.reward == "improvement":  # what an attempt is worth on validation may be less on the test part
            self.reward_range = (VALID_VALUES[0] - VALID_VALUES[1], 1.0)
        self.tasks = _load(task)
        self.contexts = tuple(loaded.spec.name for loaded in self.tasks)
        if len(set(self.contexts)) != len(self.contexts):
            raise ValueError(f"tasks must have different names, got {self.contexts}")
        given = self.options.limits
        self.limits = tuple(self.default_limits(loaded) if given is None else given for loaded in self.tasks)
        sandbox = self.options.sandbox
        self._sandbox: Sandbox | None = None if isinstance(sandbox, str) else sandbox
        self._sandbox_kind = sandbox if isinstance(sandbox, str) else None
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: a thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """A copy opens a sandbox of its own, unless it was given from outside."""
        return {**vars(self), "_lock": None, "_sandbox": self._sandbox if self._sandbox_kind is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.forked()
        tell_when_forked(self)

    def default_limits(self, task: Task) -> Limits:
        """The bounds of one execution that the task asks for."""
        return run_limits(task.spec)

    def start(self, seed: NDArray[np.int64], options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Draw a task for each seed, or take ``options["task"]``, and give the first observations.

        Raises:
            ValueError: for an option other than "task", or a task that is not one of this environment's.
        """
        chosen = dict(options or {})
        name = chosen.pop("task", None)
        if chosen:
            raise ValueError(f"the only option is 'task', got {sorted(chosen)}")
        context = draw(seed, len(self.tasks)) if name is None else np.full(len(seed), self._context(name), dtype=np.int64)
        status = np.full(len(seed), NO_STATUS)
        return self._first_observations(context), {"context": context, "status": status, **self._names(context, status)}

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]]) -> Progress:
        """Fresh episodes of the tasks in ``info["context"]``."""
        return Progress.start(np.asarray(info["context"], dtype=np.int64))

    def advance(self, state: Progress, attempt: AttemptT, outcome: Outcome) -> tuple[Progress, Step]:
        """Book the outcomes: see :func:`~wmrl_gym.envs.autoresearch.rules.settle`."""
        seen = self.visible(outcome)
        after, paid = rules_of.settle(state, outcome, self.rules, seen=seen.shown)
        return after, self._step(self._observation(after, attempt, seen), after, seen, paid)

    def execute(self, attempt: AttemptT) -> Outcome:
        """Run each attempt's code in the sandbox, one after the other, and grade what it left."""
        sandbox = self._opened()
        runs = []
        for context, code in self._programs(attempt):
            result = sandbox.run(code, data_dir=self.tasks[context].public, limits=self.limits[context])
            runs.append((*self._judge(context, result), result.cpu_s, result.wall_s, result.peak_memory_mb))
        status, value, shown, feedback, known, score, cpu_s, wall_s, memory = zip(*runs, strict=True)
        return Outcome(
            status=np.array(status, dtype=np.int64),
            value=np.array(value, dtype=np.float64),
            shown=np.array(shown, dtype=np.float64),
            feedback=np.array(feedback, dtype=object),
            known=np.array(known, dtype=np.bool_),
            cpu_s=np.array(cpu_s, dtype=np.float64),
            wall_s=np.array(wall_s, dtype=np.float64),
            peak_memory_mb=np.array(memory, dtype=np.float64),
            score=np.array(score, dtype=np.float64),
        )

    def visible(self, outcome: Outcome) -> Outcome:
        """The outcome with what the agent may see of it: a score in steps, or none, though one is measured or predicted."""
        valid = outcome.status == rules_of.VALID
        seen = np.nan if self.feedback == "none" else shown_value(outcome.shown)
        return replace(outcome, shown=np.where(valid, seen, outcome.shown))

    @functools.cached_property
    def _descriptors(self) -> NDArray[np.float32]:
        """The descriptors of every task, which are computed when they are first asked for."""
        return np.stack([descriptors(task) for task in self.tasks])

    @property
    def context_columns(self) -> slice:
        """The task as zeros and ones stands after the meta-features."""
        return slice(len(META_FEATURES), len(META_FEATURES) + len(self.tasks))

    def close(self) -> None:
        """Close the sandbox, unless it was given from outside."""
        with self._lock:
            if self._sandbox_kind is not None and self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None

    @abstractmethod
    def _programs(self, attempt: AttemptT) -> Sequence[tuple[int, str]]:
        """The context and the code of each attempt in a batch."""

    @abstractmethod
    def _first_observations(self, context: NDArray[np.int64]) -> Any:
        """The batch of observations of fresh episodes of these tasks."""

    @abstractmethod
    def _observation(self, state: Progress, attempt: AttemptT, outcome: Outcome) -> Any:
        """The batch of observations after these outcomes."""

    def _step(self, observation: Any, state: Progress, seen: Outcome, paid: Payment) -> Step:
        status = np.where(seen.known, seen.status, NO_STATUS)
        numbers = {"validation_score": self._validation_scores(state.task, seen)}
        if paid.terminated.any():
            standing = self.standing(state)
            numbers |= {name: np.where(paid.terminated, standing[name], np.nan) for name in ("test_score", "percentile")}
        return Step(
            observation=observation,
            reward=paid.reward,
            terminated=paid.terminated,
            truncated=paid.truncated,
            reward_due=paid.due,
            reward_valid=paid.valid,
            info={
                "context": state.task,
                "status": status,
                **self._names(state.task, status),
                **{name: values for name, values in numbers.items() if not np.isnan(values).all()},
            },
        )

    def standing(self, state: Progress) -> dict[str, NDArray[np.float64]]:
        """How far episodes have come on the hidden part: their scores in the task's own units, and the share of the leaderboard.

        Returns:
            ``reward``, what they would be paid if they ended here; ``test_score``, NaN without a valid submission; and
            ``percentile``, 0 without one: float64, shape (B,).
        """
        return {"reward": state.best, "test_score": state.best_score, "percentile": rules_of.percentiles_of(state.best)}

    def _names(self, context: NDArray[np.int64], status: NDArray[np.int64]) -> dict[str, NDArray[np.object_]]:
        tasks, statuses = self._named
        return {"task_name": tasks[context], "status_name": statuses[status]}

    @functools.cached_property
    def _named(self) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """The names of tasks, and of statuses, of which NO_STATUS is the last."""
        return np.array(self.contexts, dtype=object), np.array((*self.statuses, ""), dtype=object)

    def _validation_scores(self, context: NDArray[np.int64], seen: Outcome) -> NDArray[np.float64]:
        """What feedback says of each attempt, in the task's own units: float64, shape (B,), NaN where it says nothing of it."""
        scores = np.full(len(context), np.nan)
        if self.feedback != "validation":
            return scores
        told = seen.known & (seen.status == rules_of.VALID) & np.isfinite(seen.shown)
        percentiles = rules_of.percentiles_of(seen.shown)
        for task in np.unique(context[told]):
            rows = told & (context == task)
            scores[rows] = self.tasks[task].leaderboard.scores_at(percentiles[rows])
        return scores

    def _judge(self, context: int, result: ExecutionResult) -> tuple[int, float, float, str, bool, float]:
        """Status, hidden value, shown value, feedback, whether anything is known, and the hidden score."""
        if result.failed is not None:
            return rules_of.MALFORMED, 0.0, np.nan, f"unknown: the sandbox failed ({result.failed})", False, np.nan
        task = self.tasks[context]
        verdict = judge(task, result, self.limits[context])
        shown = verdict.shown(task, self.feedback)
        return verdict.status, verdict.value(task), shown, verdict.feedback(task, self.feedback), True, verdict.test

    def _opened(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = make_sandbox(self._sandbox_kind or "local", workers=self.workers)
            return self._sandbox

    def _context(self, name: Any) -> int:
        if name in self.contexts:
            return self.contexts.index(name)
        for context, task in enumerate(self.tasks):
            if isinstance(name, (str, os.PathLike)) and task.directory == Path(name):
                return context
        close = difflib.get_close_matches(str(name), self.contexts, n=1, cutoff=0.0)[0]
        raise ValueError(f"task {name!r} is not in this environment, did you mean {close!r}? It has {', '.join(self.contexts)}")


def _load(choice: TaskChoice) -> tuple[Task, ...]:
    if choice is None:
        names: Sequence[str | Path] = list_tasks()
    else:
        if not isinstance(choice, (str, Path, Sequence)):
            raise TypeError(f"task must be a name, a folder, or a list of these, got {choice!r}")
        names = [choice] if isinstance(choice, (str, Path)) else list(choice)
    if not names:
        raise ValueError("task must name at least one task, got an empty list")
    return tuple(load_task(name) for name in names)
