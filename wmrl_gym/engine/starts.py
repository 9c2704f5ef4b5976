"""Where branched rollouts start: at observations that really occurred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_empty_array
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.slots import put_samples, take_samples

Reset: TypeAlias = Callable[[NDArray[np.int64]], tuple[Any, dict[str, NDArray[Any]]]]
"""Really resets the given rows: their observations as a batch, and their infos, with ``context``."""


class StartStates:
    """The newest ``capacity`` real observations that were acted upon, to start imagined episodes from.

    Args:
        space: of one observation.
        capacity: the most observations kept; the oldest go first.
    """

    def __init__(self, space: gym.Space[Any], capacity: int) -> None:
        self.space, self.capacity = space, capacity
        self._observation: Any = create_empty_array(space, n=capacity, fn=np.zeros)
        self._context = np.zeros(capacity, np.int64)
        self._added = 0
        self._last: tuple[int, Any, int] | None = None

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Append the observations that were acted upon; ends of episodes are not among them."""
        n = len(transitions)
        kept = np.arange(max(0, n - self.capacity), n)
        at = (self._added + kept) % self.capacity
        self._observation = put_samples(
            self.space, self._observation, at, take_samples(self.space, transitions.observation, kept)
        )
        self._context[at] = transitions.context[kept]
        self._added += n

    def draw(self, groups: NDArray[np.int64], rng: np.random.Generator) -> tuple[Any, NDArray[np.int64]]:
        """A start for each of n episodes, uniform over what is kept; the members of a group share theirs.

        Args:
            groups: int64, shape (n,), ascending: the members of a group start one after the other, in one call or several.
            rng: draws the starts.

        Returns:
            A batch of n observations, and their contexts, int64, shape (n,).
        """
        unique, member = np.unique(groups, return_inverse=True)
        # Drawn by age, so that a run that was saved and resumed draws the same.
        age = rng.integers(len(self), size=len(unique))
        at = (max(0, self._added - self.capacity) + age) % self.capacity
        observation, context = take_samples(self.space, self._observation, at), self._context[at]
        if self._last is not None and unique[0] == self._last[0]:
            first = np.zeros(1, np.int64)
            observation, context[0] = put_samples(self.space, observation, first, self._last[1]), self._last[2]
        newest = np.array([len(unique) - 1])
        self._last = int(unique[-1]), take_samples(self.space, observation, newest), int(context[-1])
        return take_samples(self.space, observation, member.astype(np.int64)), context[member]

    def mixed(
        self, groups: NDArray[np.int64], *, real: NDArray[np.bool_], reset: Reset, rng: np.random.Generator
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        """The starts of n episodes: those of ``reset`` where ``real`` (everywhere, if nothing is kept yet), drawn ones elsewhere.

        Returns:
            A batch of n observations, and as info their contexts alone: of a drawn start nothing else is known.
        """
        real = real if len(self) else np.ones_like(real)
        observation: Any = create_empty_array(self.space, n=len(groups))
        context = np.zeros(len(groups), np.int64)
        rows, branched = np.flatnonzero(real), np.flatnonzero(~real)
        if len(rows):
            started, info = reset(rows)
            observation, context[rows] = put_samples(self.space, observation, rows, started), info["context"]
        if len(branched):
            started, context[branched] = self.draw(groups[branched], rng)
            observation = put_samples(self.space, observation, branched, started)
        return observation, {"context": context}

    @property
    def last(self) -> tuple[int, Any, int] | None:
        """The group that was drawn last, its start and its context: other members may follow."""
        return self._last

    def forget_last(self) -> None:
        """Groups are numbered anew: the next one is another, whatever its number."""
        self._last = None

    def restore(self, transitions: Transitions | None, last: tuple[int, Any, int] | None) -> None:
        """Hold just the observations of ``transitions``, and go on with the group that was drawn last."""
        self._added, self._last = 0, last
        if transitions is not None:
            self.add(transitions)
