"""What an ensemble sees of an environment: observations, actions and real transitions as vectors, and observations back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.world_models.base import WorldModelError

MAX_NUMBERS = 1024
"""The longest observation that makes sense as one vector; beyond it, it is an image or a text and wants an encoder."""
_HELD_OUT = 0.15
"""Share of the transitions that no member trains on."""


class ObservationCodec:
    """Batches of Box or Dict-of-Box observations as float64 vectors, and back.

    Args:
        space: of one observation.

    Raises:
        WorldModelError: a space that is no vector of numbers; says which model it needs instead.

    >>> codec = ObservationCodec(gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,)), "n": gym.spaces.Box(0, 9, (1,), np.int32)}))
    >>> codec.decode(np.array([[3.6, 0.5, 7.0]]))
    {'n': array([[4]], dtype=int32), 'x': array([[0.5, 1. ]], dtype=float32)}
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self._boxes = list(_boxes(space, path="observation"))
        sizes = [int(np.prod(box.shape)) for box in self._boxes]
        self.size = sum(sizes)
        if not 1 <= self.size <= MAX_NUMBERS:
            raise WorldModelError(
                f"EnsembleDynamics predicts observations of 1 to {MAX_NUMBERS} numbers, and {space} has {self.size}: "
                "encode images as features with an observation wrapper below the world model"
            )
        ends = np.cumsum(sizes)
        self._slices = [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
        self.low = np.concatenate([box.low.reshape(-1).astype(np.float64) for box in self._boxes])
        self.high = np.concatenate([box.high.reshape(-1).astype(np.float64) for box in self._boxes])

    def encode(self, observation: Any) -> NDArray[np.float64]:
        """A batch of B observations as vectors: float64, shape (B, size)."""
        leaves = list(_leaves(self.space, observation))
        return np.concatenate([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def decode(self, vector: NDArray[np.float64]) -> Any:
        """The batch that vectors of shape (B, size) stand for: clipped into the space, rounded where it holds integers."""
        inside = np.minimum(np.maximum(vector, self.low), self.high)
        leaves = iter(
            _cast(inside[:, at].reshape(len(vector), *box.shape), box) for box, at in zip(self._boxes, self._slices, strict=True)
        )
        return _build(self.space, leaves)


class ActionCodec:
    """Batches of Box, Discrete or MultiDiscrete actions as float32 vectors; choices are one-hot.

    Args:
        space: of one action.

    Raises:
        WorldModelError: another kind of space.

    >>> ActionCodec(gym.spaces.MultiDiscrete([2, 3])).encode(np.array([[1, 0]]))
    array([[0., 1., 1., 0., 0.]], dtype=float32)
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        if isinstance(space, gym.spaces.Discrete):
            self._choices, self._start = np.array([int(space.n)]), np.array([int(space.start)])
        elif isinstance(space, gym.spaces.MultiDiscrete):
            self._choices = space.nvec.reshape(-1).astype(np.int64)
            self._start = space.start.reshape(-1).astype(np.int64)
        elif isinstance(space, gym.spaces.Box):
            self._choices = self._start = np.zeros(0, np.int64)
        else:
            raise WorldModelError(f"EnsembleDynamics takes Box, Discrete and MultiDiscrete actions, got {space}")
        self.space = space
        self.discrete = not isinstance(space, gym.spaces.Box)
        self.size = int(self._choices.sum()) if self.discrete else int(np.prod(space.shape or ()))
        self._offsets = np.cumsum(self._choices) - self._choices

    def encode(self, action: Any) -> NDArray[np.float32]:
        """A batch of B actions as vectors: float32, shape (B, size).

        Raises:
            ValueError: a choice that the space does not have.
        """
        actions = np.asarray(action)
        rows = actions.reshape(len(actions), -1)
        if not self.discrete:
            return rows.astype(np.float32)
        choice = rows.astype(np.int64) - self._start
        if ((choice < 0) | (choice >= self._choices)).any():
            raise ValueError(
                f"expected actions in {self.space}, got {actions[((choice < 0) | (choice >= self._choices)).any(1)][0]}"
            )
        hot = np.zeros((len(rows), self.size), np.float32)
        np.put_along_axis(hot, choice + self._offsets, 1.0, axis=1)
        return hot


def _boxes(space: gym.Space[Any], *, path: str) -> Iterator[gym.spaces.Box]:
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            yield from _boxes(part, path=f"{path}[{key!r}]")
    elif isinstance(space, gym.spaces.Box):
        yield space
    else:
        instead = (
            "text needs a language or outcome model"
            if isinstance(space, gym.spaces.Text)
            else "encode it as a Box with a wrapper"
        )
        raise WorldModelError(f"EnsembleDynamics predicts Box and Dict-of-Box observations, and {path} is {space}: {instead}")


def _leaves(space: gym.Space[Any], value: Any) -> Iterator[Any]:
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            yield from _leaves(part, value[key])
    else:
        yield value


def _build(space: gym.Space[Any], leaves: Iterator[Any]) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _build(part, leaves) for key, part in space.items()}
    return next(leaves)


def _cast(values: NDArray[np.float64], box: gym.spaces.Box) -> NDArray[Any]:
    if np.issubdtype(box.dtype, np.floating):
        return values.astype(box.dtype)
    return np.rint(values).astype(box.dtype)


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
    """The newest ``capacity`` transitions that were fitted, and those that came since.

    Args:
        capacity: the most transitions that are fitted; the oldest go first.
        n_members: members that each have a bootstrap sample of their own.
        kept: the transitions; None before the first.
        added: how many were ever added.
        newer: what came after those that are kept, oldest first, each part longer than the next: so few parts that to join them
            all costs each transition the logarithm of their number.
    """

    capacity: int
    n_members: int
    kept: Experience | None = None
    added: int = 0
    newer: tuple[Experience, ...] = ()

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    @property
    def _parts(self) -> list[Experience]:
        return [*([] if self.kept is None else [self.kept]), *self.newer]

    @property
    def everything(self) -> Experience | None:
        """All the transitions, those that came since too."""
        return batch.concatenate(self._parts) if self._parts else None

    def draw(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """For ``n`` arriving transitions, which are held out, and each member's counts of them."""
        counts = np.minimum(rng.poisson(1.0, (n, self.n_members)), 255).astype(np.uint8)
        return rng.random(n) < _HELD_OUT, counts

    def joined(self, new: Experience) -> Replay:
        """With ``new`` transitions at the end."""
        parts = list(self.newer)
        last = [new]
        while parts and len(parts[-1]) <= sum(len(part) for part in last):
            last.insert(0, parts.pop())
        parts.append(batch.concatenate(last) if len(last) > 1 else new)
        return Replay(self.capacity, self.n_members, self.kept, self.added + len(new), tuple(parts))

    def merged(self) -> Replay:
        """With all transitions in one, of which the newest ``capacity`` stay: what is fitted."""
        whole = self.everything
        if whole is not None and len(whole) > self.capacity:
            whole = batch.take(whole, np.arange(len(whole) - self.capacity, len(whole)))
        return Replay(self.capacity, self.n_members, whole, self.added)

    def by_context(self, learnt: int, names: Sequence[str]) -> dict[str, int]:
        """How many of the kept transitions each context has, of the first ``learnt`` that were ever added.

        Args:
            learnt: transitions, from the first ever added on.
            names: of the contexts; those without one are named by their numbers.
        """
        if self.kept is None:
            return {}
        newest = self.added - sum(len(part) for part in self.newer)
        rows = max(0, len(self.kept) - (newest - learnt))
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
