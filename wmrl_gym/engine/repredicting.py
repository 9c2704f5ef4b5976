"""What a model that has learnt since would predict of old pairs, had it not learnt from just those executions."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.world_models.attempts import AttemptModel

_RUN = 40
"""Bits of a pair's key below those of its run: numbers of pairs begin anew with every run."""


def key_of(pair: NDArray[np.int64], run: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Keys that tell the pairs of all runs apart: int64, shape (n,)."""
    return np.asarray(pair, np.int64) + (np.asarray(run, np.int64) << _RUN)


@dataclass(frozen=True, slots=True)
class _Taken:
    """One step: for each slot its row of the batch, -1 where it did not step; the bookkeeping before it, and the attempts."""

    row: NDArray[np.int64]
    inner: Any
    attempt: Any
    context: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Repredicted:
    """Pairs as the model predicts them now.

    Args:
        key: int64, shape (N,). Of pairs, see :func:`key_of`.
        predicted: float64, shape (N,).
        features: float64, shape (N, F). What was done; another attempt may be the one that is predicted best.
    """

    key: NDArray[np.int64]
    predicted: NDArray[np.float64]
    features: NDArray[np.float64]


class Histories:
    """The attempts of which the newest pairs were made, and those of the episodes under way.

    Args:
        num_slots: rollouts imagined at once.
        capacity: pairs kept; the oldest are forgotten, and stay as they were predicted.
    """

    def __init__(self, num_slots: int, *, capacity: int = 256) -> None:
        self.capacity = capacity
        self._steps: deque[_Taken] = deque()
        self._length = np.zeros(num_slots, np.int64)
        self._pairs: OrderedDict[int, tuple[_Taken, ...]] = OrderedDict()

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Episodes begin in ``slots``."""
        self._length[slots] = 0

    def step(self, slots: NDArray[np.int64], inner: Any, attempt: Any, context: NDArray[np.int64]) -> None:
        """``slots`` have made attempts, from bookkeeping ``inner``: batches of n."""
        row = np.full(len(self._length), -1, np.int64)
        row[slots] = np.arange(len(slots))
        self._steps.append(_Taken(row, inner, attempt, context))
        self._length[slots] += 1
        while len(self._steps) > int(self._length.max()):
            self._steps.popleft()

    def keep(self, keys: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """The newest steps of ``slots`` are those of pairs."""
        for key, slot in zip(keys.tolist(), slots.tolist(), strict=True):
            taken = [step for step in self._steps if step.row[slot] >= 0][-int(self._length[slot]) :]
            self._pairs[key] = tuple(_row(step, int(step.row[slot])) for step in taken)
        while len(self._pairs) > self.capacity:
            self._pairs.popitem(last=False)

    def again(
        self, keys: NDArray[np.int64], model: AttemptModel, describe: Callable[[Any], NDArray[np.float64]]
    ) -> Repredicted | None:
        """Predict the pairs of these keys anew; those of which no attempts are kept, or that would pay nothing now, are left out.

        Args:
            keys: int64, shape (N,).
            model: the world model as it is now.
            describe: features of a batch of attempts.

        Returns:
            The pairs; None where the model does not predict what it has learnt from as if it had not.
        """
        by_length: dict[int, list[int]] = {}
        for key in keys.tolist():
            if key in self._pairs:
                by_length.setdefault(len(self._pairs[key]), []).append(key)
        parts = [_together(each, [self._pairs[key] for key in each], model, describe) for each in by_length.values()]
        if not parts or any(part is None for part in parts):
            return None
        return batch.concatenate([part for part in parts if part is not None])

    def state_dict(self) -> dict[str, Any]:
        """What is kept; nothing in it is ever changed."""
        return {"steps": list(self._steps), "length": self._length.copy(), "pairs": list(self._pairs.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._steps, self._length = deque(state["steps"]), state["length"].copy()
        self._pairs = OrderedDict(state["pairs"])


def _row(step: _Taken, row: int) -> _Taken:
    return _Taken(np.zeros(1, np.int64), *(batch.take(part, [row]) for part in (step.inner, step.attempt, step.context)))


def _together(
    keys: Sequence[int],
    taken: Sequence[tuple[_Taken, ...]],
    model: AttemptModel,
    describe: Callable[[Any], NDArray[np.float64]],
) -> Repredicted | None:
    """Predict anew the episodes of N pairs, each of as many steps."""
    n = len(keys)
    state = batch.concatenate([steps[0].inner for steps in taken])
    context = np.concatenate([steps[0].context for steps in taken])
    best, total = np.full(n, -np.inf), np.zeros(())
    paid: NDArray[np.float64] = np.zeros((n, 0))
    reward, due = np.zeros(n), np.zeros(n, np.bool_)
    for at in range(len(taken[0])):
        attempt = batch.concatenate([steps[at].attempt for steps in taken])
        said = model.held_out_outcomes(attempt, context)
        if said is None:
            return None
        state, step = model.factored.advance(state, attempt, said.outcome)
        rows = describe(attempt)
        by = model.chosen_by(said.outcome)
        better = (by > best) | (at == 0)
        paid = np.where(better[:, None], rows, paid) if at else rows
        best = np.where(better, by, best)
        total = total + rows
        pays = step.reward_due & step.reward_valid
        reward, due = np.where(pays, step.reward, reward), pays
    features = np.concatenate([paid, total / len(taken[0])], axis=1)
    return batch.take(Repredicted(np.array(keys, np.int64), reward, features), np.flatnonzero(due))
