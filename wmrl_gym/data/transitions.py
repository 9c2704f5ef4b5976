"""Real transitions: what world models learn from."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Outcome


@dataclass(frozen=True, slots=True)
class Transitions:
    """A batch of N really executed steps. Autoreset steps are never among them.

    Args:
        observation: batch of the observations acted upon.
        action: batch of actions.
        reward: float64, shape (N,). A placeholder where ``reward_valid`` is False.
        next_observation: batch; the true final observation where the episode ended.
        terminated: bool, shape (N,).
        truncated: bool, shape (N,).
        reward_valid: bool, shape (N,).
        context: int64, shape (N,). Which task; 0 where the environment has one only.
        attempt: batch of attempts, for factored environments.
        outcome: their outcomes, for factored environments.
    """

    observation: Any
    action: Any
    reward: NDArray[np.float64]
    next_observation: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    reward_valid: NDArray[np.bool_]
    context: NDArray[np.int64]
    attempt: Any = None
    outcome: Outcome | None = None

    def __len__(self) -> int:
        return len(self.reward)


class TransitionBuffer:
    """The newest ``capacity`` real transitions, in order of arrival.

    Args:
        capacity: the most transitions kept; the oldest go first.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._parts: deque[Transitions] = deque()
        self._kept = 0
        self._added = 0

    def __len__(self) -> int:
        return self._kept

    @property
    def added(self) -> int:
        """How many transitions were ever added: a cursor for :meth:`since`."""
        return self._added

    def add(self, transitions: Transitions) -> None:
        """Append a batch."""
        if len(transitions) == 0:
            return
        self._parts.append(transitions)
        self._kept += len(transitions)
        self._added += len(transitions)
        while self._kept > self.capacity:
            surplus, first = self._kept - self.capacity, self._parts.popleft()
            self._kept -= len(first)
            if len(first) > surplus:
                rest = batch.take(first, np.arange(surplus, len(first)))
                self._parts.appendleft(rest)
                self._kept += len(rest)

    def since(self, cursor: int) -> Transitions | None:
        """The transitions that were added after ``added`` stood at ``cursor``; None where there are none.

        Raises:
            ValueError: the cursor lies in the future.
        """
        if cursor > self._added:
            raise ValueError(f"the cursor {cursor} is beyond the {self._added} transitions added so far")
        wanted = min(self._added - cursor, self._kept)
        if wanted == 0:
            return None
        tail: list[Transitions] = []
        found = 0
        for part in reversed(self._parts):
            tail.append(part)
            found += len(part)
            if found >= wanted:
                break
        newest = batch.concatenate(tail[::-1])
        return newest if found == wanted else batch.take(newest, np.arange(found - wanted, found))

    def everything(self) -> Transitions | None:
        """All that is kept, oldest first; None where nothing is."""
        return self.since(self._added - len(self))

    def restore(self, transitions: Transitions | None, added: int) -> None:
        """Hold just ``transitions``, as if ``added`` had ever been added."""
        self._parts = deque() if transitions is None else deque([transitions])
        self._kept = 0 if transitions is None else len(transitions)
        self._added = added
