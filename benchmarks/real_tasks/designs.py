"""The designs that were executed once and for all, as an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.autoresearch.design.space import NVEC, SLOTS
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import Progress
from wmrl_gym.factored import Outcome

FREE = ("family", "size", "strength")
"""The slots that a policy chooses."""
FIXED = (2, 1, 1, 0, 0, 0, 0, 0, 0)
"""The other choices: medians for what is missing, standard scaling, one-hot encoding, all features, and the first of the rest."""
AT = [list(SLOTS).index(name) for name in FREE]
SIZES = NVEC[AT]
COUNT = int(SIZES.prod())


def every_action() -> NDArray[np.int64]:
    """All actions, by their number: int64, shape (225, 3)."""
    return np.stack(np.unravel_index(np.arange(COUNT), tuple(SIZES)), axis=1).astype(np.int64)


def every_design() -> NDArray[np.int64]:
    """All designs, by their number: int64, shape (225, 9)."""
    designs = np.tile(np.array(FIXED, np.int64), (COUNT, 1))
    designs[:, AT] = every_action()
    return designs


@dataclass(frozen=True, slots=True)
class Executed:
    """What all designs of one task brought, by their number.

    Args:
        task: its name.
        status: int64, shape (225,).
        value: float64, shape (225,). The true reward.
        shown: float64, shape (225,). What the agent sees of it.

    Raises:
        ValueError: not all designs are there.
    """

    task: str
    status: NDArray[np.int64]
    value: NDArray[np.float64]
    shown: NDArray[np.float64]

    def __post_init__(self) -> None:
        shapes = {self.status.shape, self.value.shape, self.shown.shape}
        if shapes != {(COUNT,)} or not np.isfinite(self.value).all():
            raise ValueError(f"the table of {self.task} must have {COUNT} known outcomes, got arrays of shapes {shapes}")

    def outcome(self, number: NDArray[np.int64]) -> Outcome:
        """The outcomes of the designs with these numbers."""
        n = len(number)
        zero, empty = np.zeros(n), np.full(n, "", dtype=object)
        return Outcome(self.status[number], self.value[number], self.shown[number], empty, np.ones(n, bool), zero, zero.copy())


class ExecutedDesigns(AutoResearchDesign):
    """One task with one attempt an episode, in which executing a design is looking up what it brought.

    Args:
        table: what was executed.
        at_once: answer whole batches without the detour over threads that real execution takes; for arms that execute all.
    """

    def __init__(self, table: Executed, *, at_once: bool = False) -> None:
        super().__init__(table.task, max_turns=1)
        self.table, self.at_once = table, at_once
        self.action_space = MultiDiscrete(SIZES)
        self.asked = 0
        """Executions so far."""

    def attempt(self, state: Progress, action: Any) -> DesignAttempt:
        """The designs that the actions, shape (B, 3), stand for."""
        design = np.tile(np.array(FIXED, np.int64), (len(action), 1))
        design[:, AT] = action
        return super().attempt(state, design)

    def execute(self, attempt: DesignAttempt) -> Outcome:
        """What these designs brought when they were executed."""
        self.asked += len(attempt.task)
        return self.table.outcome(number_of(attempt))

    def gate(self, attempt: DesignAttempt) -> tuple[NDArray[np.bool_], Outcome]:
        """Nothing is certain before it runs, but where all is looked up at once."""
        if self.at_once:
            return np.ones(len(attempt.task), bool), self.execute(attempt)
        return super().gate(attempt)


def number_of(attempt: DesignAttempt) -> NDArray[np.int64]:
    """The numbers of designs: int64, shape (B,)."""
    return np.asarray(np.ravel_multi_index(tuple(attempt.design[:, AT].T), tuple(SIZES)), np.int64)


def recorded(env: AutoResearchDesign, tables: Mapping[str, Executed]) -> Transitions:
    """The executions of all designs of the environment's tasks, as a world model learns from them."""
    every = np.arange(COUNT)
    attempts, outcomes = [], []
    for context, name in enumerate(env.contexts):
        attempts.append(DesignAttempt(np.full(COUNT, context), every_design()))
        outcomes.append(tables[name].outcome(every))
    attempt = DesignAttempt(np.concatenate([a.task for a in attempts]), np.concatenate([a.design for a in attempts]))
    n = len(attempt.task)
    columns = ("status", "value", "shown", "feedback", "known", "cpu_s", "wall_s")
    outcome = Outcome(*(np.concatenate([getattr(each, name) for each in outcomes]) for name in columns))
    start = np.zeros((n, *(env.observation_space.shape or ())), np.float32)
    yes, no = np.ones(n, bool), np.zeros(n, bool)
    return Transitions(start, attempt.design, outcome.value, start, yes, no, yes, attempt.task, attempt, outcome)
