"""``wmrl/AutoResearchDesign-v0``: AutoResearch for algorithms that have no text. An action is a design, rendered to code and
run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.base import AutoResearch, TaskChoice
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC, crossed, graded, one_hot
from wmrl_gym.envs.autoresearch.feedback import expected_report
from wmrl_gym.envs.autoresearch.options import takes_options
from wmrl_gym.envs.autoresearch.rules import STATUSES, Progress
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.profile import META_FEATURES, profile
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits


@dataclass(frozen=True, slots=True)
class DesignAttempt:
    """A batch of designs to be tried.

    Args:
        task: int64, shape (B,). Which task.
        design: int64, shape (B, 9). One choice for each slot.
    """

    task: NDArray[np.int64]
    design: NDArray[np.int64]


@takes_options(turns=3)
class AutoResearchDesign(AutoResearch[DesignAttempt]):
    """The logic of the design environment; see :class:`AutoResearchDesignEnv` for actions and observations.

    Arguments are those of :class:`~wmrl_gym.envs.autoresearch.base.AutoResearch`, with three turns, and one CPU second for each
    execution.
    """

    shows_text: ClassVar[bool] = False
    known_as: ClassVar[str] = "autoresearch-design"
    default_turns: ClassVar[int] = 3

    def __init__(self, task: TaskChoice = None, **options: Any) -> None:
        super().__init__(task, **options)
        foreign = [loaded.spec.name for loaded in self.tasks if loaded.grader is not None]
        if foreign:
            raise ValueError(
                f"designs are for tasks with a task.toml, which says what to predict from what; {', '.join(foreign)} has none: "
                f"use wmrl/AutoResearch-v0"
            )
        self.action_space = MultiDiscrete(NVEC)
        profiles = [profile(loaded) for loaded in self.tasks]
        self._meta = np.stack([each.meta for each in profiles])
        self._missing = np.array([each.missing for each in profiles])
        width = self._meta.shape[1] + len(STATUSES) + 1 + len(NVEC) + 2
        self.observation_space = Box(0.0, 1.0, (width,), np.float32)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What each number of the observation is."""
        statuses = (f"last_{status}" for status in STATUSES)
        choices = (f"last_choice_{slot}" for slot in range(len(NVEC)))
        return (*META_FEATURES, *statuses, "last_shown", *choices, "turn", "best_shown")

    def default_limits(self, task: Task) -> Limits:
        """The bounds of one run, so short that slow choices do run out of time.

        CPU time decides: it depends least on what else is running.
        """
        return Limits(wall_s=6.0, cpu_s=1.0, memory_mb=2048)

    def attempt(self, state: Progress, action: Any) -> DesignAttempt:
        """The designs that the actions stand for.

        Raises:
            ValueError: for actions of the wrong shape, or a choice outside its slot.
        """
        design = np.asarray(action)
        expected = (len(state.task), len(NVEC))
        if design.shape != expected or design.dtype.kind not in "iu":
            raise ValueError(f"expected actions of whole numbers and shape {expected}, got {design.dtype} and {design.shape}")
        if (design < 0).any() or (design >= NVEC).any():
            raise ValueError(f"each choice must be at least 0 and below {NVEC.tolist()}, got {design.tolist()}")
        return DesignAttempt(state.task, design.astype(np.int64))

    def gate(self, attempt: DesignAttempt) -> tuple[NDArray[np.bool_], Outcome]:
        """Nothing is certain about a design before it runs."""
        count = len(attempt.task)
        zeros, status = np.zeros(count), np.zeros(count, dtype=np.int64)
        nothing = Outcome(
            status=status,
            value=zeros,
            shown=np.full(count, np.nan),
            feedback=np.full(count, "", dtype=object),
            known=np.ones(count, dtype=np.bool_),
            cpu_s=zeros,
            wall_s=zeros.copy(),
        )
        return np.zeros(count, dtype=np.bool_), nothing

    def features(self, attempt: DesignAttempt) -> NDArray[np.float32]:
        """Meta-features of the task, the task, the design, and what the model family is combined with, as zeros and ones."""
        context = np.eye(len(self.tasks), dtype=np.float32)[attempt.task]
        return np.concatenate([self._meta[attempt.task], context, one_hot(attempt.design), crossed(attempt.design)], axis=1)

    def descriptors(self, attempt: DesignAttempt) -> NDArray[np.float32]:
        """Statistics of each task (:mod:`~wmrl_gym.envs.autoresearch.tasks.descriptors`), choices as quantities, and whether the
        design leaves empty cells as they are."""
        gaps = self._missing[attempt.task] & (attempt.design[:, 0] == 0)
        return np.hstack([self._descriptors[attempt.task], graded(attempt.design), gaps[:, None].astype(np.float32)])

    def text(self, attempt: DesignAttempt) -> Sequence[str]:
        """Nothing: the features say everything about a design."""
        return ("",) * len(attempt.task)

    def describe(self, attempt: DesignAttempt, outcome: Outcome) -> Outcome:
        """Write what the sandbox would report."""
        shown, feedback = self.visible(outcome).shown, np.empty(len(attempt.task), dtype=object)
        for i, context in enumerate(attempt.task):
            status, value = int(outcome.status[i]), float(shown[i])
            feedback[i] = expected_report(self.tasks[context], status, value, limits=self.limits[context], part=self.feedback)
        return replace(outcome, feedback=feedback)

    def _programs(self, attempt: DesignAttempt) -> Sequence[tuple[int, str]]:
        pairs = zip(attempt.task.tolist(), attempt.design, strict=True)
        return [(context, render_design(self.tasks[context], design)) for context, design in pairs]

    def _first_observations(self, context: NDArray[np.int64]) -> NDArray[np.float32]:
        first = np.zeros((len(context), *(self.observation_space.shape or ())), dtype=np.float32)
        first[:, : self._meta.shape[1]] = self._meta[context]
        return first

    def _observation(self, state: Progress, attempt: DesignAttempt, outcome: Outcome) -> NDArray[np.float32]:
        count = len(state.task)
        status = np.zeros((count, len(STATUSES)), dtype=np.float32)
        known = np.flatnonzero(outcome.known)
        status[known, outcome.status[known]] = 1.0
        shown = np.where(outcome.known, np.nan_to_num(outcome.shown, nan=0.0), 0.0)
        parts = [
            self._meta[state.task],
            status,
            shown[:, None],
            attempt.design / (NVEC - 1),
            np.minimum(state.turn / self.rules.max_turns, 1.0)[:, None],
            state.best_shown[:, None],
        ]
        observation: NDArray[np.float32] = np.concatenate(parts, axis=1).astype(np.float32)
        return observation


@takes_options(turns=AutoResearchDesign.default_turns)
class AutoResearchDesignEnv(FactoredEnv):
    """Choose a pipeline; it is written as Python, run in a sandbox, and graded on hidden answers.

    **Action**: ``MultiDiscrete``, one choice for each slot of :data:`~wmrl_gym.envs.autoresearch.design.space.SLOTS`.

    **Observation**: ``Box(0, 1)`` of float32: the task's meta-features, the last attempt's status, its shown value and its
    choices, the fraction of turns used, and the best shown value; ``env.factored.observation_names`` names each number.

    **Reward**: the ladder of :mod:`~wmrl_gym.envs.autoresearch.rules`, on the hidden test part, for the attempt that is best on
    validation.

    Args:
        task: a name, a directory, a list of these, or None for all embedded tasks.
        **options: those of :class:`~wmrl_gym.envs.autoresearch.options.Options`, with three turns.
        render_mode: "ansi" or None.

    Example:
        >>> env = AutoResearchDesignEnv(task="diabetes")
        >>> observation, info = env.reset(seed=0)
        >>> env.action_space
        MultiDiscrete([5 5 5 5 9 5 5 4 2])
        >>> env.close()
    """

    def __init__(self, task: TaskChoice = None, *, render_mode: str | None = None, **options: Any) -> None:
        factored = AutoResearchDesign(task, **options)
        super().__init__(factored, render_mode=render_mode)
