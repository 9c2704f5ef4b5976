"""What an ensemble keeps of the real transitions that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch

_HELD_OUT = 0.15
"""Share of the transitions that no member trains on."""


@dataclass(frozen=True, slots=True)
class Experience:
    """N real transitions as vectors.

    Args:
        observation: float32, shape (N, D).
        action: float32, shape (N, A).
        delta: float32, shape (N, D). Next observation minus observation.
        reward: float32, shape (N,). A placeholder where ``reward_valid`` is False.
        reward_valid: bool, shape (N,).
        terminated: bool, shape (N,).
        held_out: bool, shape (N,). For early stopping and for choosing elites; decided when the transition arrives.
        counts: uint8, shape (N, E). How often each member's bootstrap sample holds the transition: Poisson(1), so that samples
            can grow as data arrives (online bagging, Oza and Russell 2001).
        context: int64, shape (N,). Which task each belongs to.
    """

    observation: NDArray[np.float32]
    action: NDArray[np.float32]
    delta: NDArray[np.float32]
    reward: NDArray[np.float32]
    reward_valid: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    counts: NDArray[np.uint8]
    context: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def next_observation(self) -> NDArray[np.float32]:
        """float32, shape (N, D)."""
        return self.observation + self.delta


@dataclass(frozen=True, slots=True)
class Replay:
    """The newest ``capacity`` transitions.

    Args:
        capacity: the most transitions kept; the oldest go first.
        n_members: members that each have a bootstrap sample of their own.
        kept: the transitions; None before the first.
        added: how many were ever added.
    """

    capacity: int
    n_members: int
    kept: Experience | None = None
    added: int = 0

    def __len__(self) -> int:
        return 0 if self.kept is None else len(self.kept)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """For ``n`` arriving transitions, which are held out, and each member's counts of them."""
        counts = np.minimum(rng.poisson(1.0, (n, self.n_members)), 255).astype(np.uint8)
        return rng.random(n) < _HELD_OUT, counts

    def joined(self, new: Experience) -> Replay:
        """With ``new`` transitions at the end."""
        whole = new if self.kept is None else batch.concatenate([self.kept, new])
        kept = whole
        if len(whole) > self.capacity:
            kept = batch.take(whole, np.arange(len(whole) - self.capacity, len(whole)))
        return Replay(self.capacity, self.n_members, kept, self.added + len(new))

    def by_context(self, learnt: int, names: Sequence[str]) -> dict[str, int]:
        """How many of the kept transitions each context has, of the first ``learnt`` that were ever added.

        Args:
            learnt: transitions, from the first ever added on.
            names: of the contexts; those without one are named by their numbers.
        """
        if self.kept is None:
            return {}
        rows = max(0, len(self.kept) - (self.added - learnt))
        numbers, counts = np.unique(self.kept.context[:rows], return_counts=True)
        return {
            names[number] if number < len(names) else str(number): count
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        }


def training_rows(data: Experience) -> list[NDArray[np.int64]]:
    """For each member the rows of its bootstrap sample, repeated as often as it holds them; at least one row each."""
    train = np.flatnonzero(~data.held_out) if not data.held_out.all() else np.arange(len(data))
    samples = [np.repeat(train, counts) for counts in data.counts[train].T]
    return [sample if len(sample) else train for sample in samples]


def held_out_rows(data: Experience, *, most: int) -> NDArray[np.int64]:
    """At most ``most`` held-out rows, evenly spread over time; all rows where none is held out."""
    rows = np.flatnonzero(data.held_out) if data.held_out.any() else np.arange(len(data))
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
