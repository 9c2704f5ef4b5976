"""Batches: values whose every leaf has B rollouts along its first axis.

A batch is an array or tensor, a tuple or list of B things, ``None``, or a dict or dataclass of batches. The states of
world models and the attempts and outcomes of factored environments are batches, so that a rollout can be picked out,
branched and put back.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

BatchT = TypeVar("BatchT")


def _map(leaf: Callable[..., Any], first: Any, *rest: Any) -> Any:
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _map(leaf, first[key], *(other[key] for other in rest)) for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = {
            f.name: _map(leaf, getattr(first, f.name), *(getattr(other, f.name) for other in rest))
            for f in dataclasses.fields(first)
        }
        return dataclasses.replace(first, **fields)
    return leaf(first, *rest)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _leaves(getattr(value, each.name))
    elif value is not None:
        yield value


def size(batch: Any) -> int:
    """The number of rollouts in ``batch``.

    >>> size({"x": np.zeros((3, 2)), "name": ("a", "b", "c")})
    3
    """
    sizes = [len(leaf) for leaf in _leaves(batch)]
    if not sizes:
        raise ValueError("a batch without leaves has no size")
    if len(set(sizes)) > 1:
        raise ValueError(f"the leaves of a batch must agree on its size, got {sorted(set(sizes))}")
    return sizes[0]


def take(batch: BatchT, index: Sequence[int] | NDArray[Any]) -> BatchT:
    """The rollouts at ``index`` (integers, or a mask of length B), as a new batch.

    >>> take({"x": np.arange(4), "name": ("a", "b", "c", "d")}, [2, 0])
    {'x': array([2, 0]), 'name': ('c', 'a')}
    """
    where = np.asarray(index)
    where = np.flatnonzero(where) if where.dtype == bool else where.astype(np.int64)

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[where]
        if isinstance(value, _Items):
            return _as_kind(value.kind, [value[i] for i in where.tolist()])
        if isinstance(value, (tuple, list)):
            return type(value)(value[i] for i in where)
        return value[where]

    return cast(BatchT, _map(leaf, batch))


def put(batch: BatchT, index: Sequence[int] | NDArray[Any], values: BatchT) -> BatchT:
    """A copy of ``batch`` in which the rollouts at ``index`` are those of ``values``.

    >>> put(np.arange(4), [1, 3], np.array([10, 30]))
    array([ 0, 10,  2, 30])
    """
    where = np.asarray(index)
    where = np.flatnonzero(where) if where.dtype == bool else where.astype(np.int64)

    def leaf(old: Any, new: Any) -> Any:
        if isinstance(old, (tuple, list)):
            items = list(old)
            for i, item in zip(where, new, strict=True):
                items[i] = item
            return type(old)(items)
        out = old.clone() if hasattr(old, "clone") else old.copy()
        out[where] = new
        return out

    return cast(BatchT, _map(leaf, batch, values))


def concatenate(batches: Sequence[BatchT]) -> BatchT:
    """One batch of all the rollouts in ``batches``, in order.

    >>> concatenate([{"x": np.array([1])}, {"x": np.array([2, 3])}])
    {'x': array([1, 2, 3])}
    """
    if len(batches) == 0:
        raise ValueError("concatenate needs at least one batch")

    def leaf(first: Any, *rest: Any) -> Any:
        if isinstance(first, (tuple, list)):
            return type(first)(item for part in (first, *rest) for item in part)
        if isinstance(first, np.ndarray):
            return np.concatenate([first, *rest])
        return sys.modules["torch"].cat([first, *rest])  # whoever has a tensor has imported it

    return cast(BatchT, _map(leaf, batches[0], *batches[1:]))


def _as_kind(kind: type, items: list[Any]) -> Any:
    return kind(items) if issubclass(kind, (tuple, list)) else sys.modules["torch"].stack(items)


class Ring(Generic[BatchT]):
    """The newest ``capacity`` rows of batches of one kind, in order of arrival; each reader keeps a cursor of its own.

    Memory grows with what is kept, and an added batch is written into its place: nothing is moved when the oldest rows go.

    Args:
        capacity: the most rows kept; the oldest go first. A reader that falls behind by more loses what went.

    Raises:
        ValueError: the capacity is not positive.

    >>> ring = Ring(3)
    >>> ring.add({"x": np.arange(2)})
    >>> ring.add({"x": np.arange(10, 12)})
    >>> ring.newer(1), ring.added, len(ring)
    ({'x': array([ 1, 10, 11])}, 4, 3)
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = int(capacity)
        self._clear()

    def _clear(self, added: int = 0) -> None:
        self._rows: Any = None
        self._room = self._kept = self._next = 0
        self._added = added

    def __len__(self) -> int:
        return self._kept

    @property
    def added(self) -> int:
        """How many rows were ever added: a cursor for :meth:`newer`."""
        return self._added

    def add(self, rows: BatchT) -> None:
        """Append a batch."""
        n = size(rows)
        self._added += n
        if n == 0:
            return
        if n > self.capacity:
            rows, n = take(rows, np.arange(n - self.capacity, n)), self.capacity
        if self._rows is None:
            self._rows = take(rows, np.zeros(0, np.int64))
        if self._room < self.capacity and self._kept + n > self._room:
            self._room = min(self.capacity, max(64, 2 * self._room, self._kept + n))
            self._rows = _map(lambda leaf: _grown(leaf, self._room), self._rows)
        at = np.arange(self._next, self._next + n) % self._room
        self._rows = _map(lambda leaf, new: _written(leaf, at, new), self._rows, rows)
        self._next = int(at[-1] + 1) % self.capacity
        self._kept = min(self._kept + n, self.capacity)

    def at(self, age: NDArray[np.int64]) -> BatchT:
        """The rows at ``age``, counted from the oldest that is kept, 0: a batch of as many."""
        first = self._next - self._kept
        return cast(BatchT, take(self._rows, (np.asarray(age, np.int64) + first) % max(self._room, 1)))

    def newer(self, cursor: int) -> BatchT | None:
        """The rows that were added after ``added`` stood at ``cursor``, oldest first; None where there are none.

        Raises:
            ValueError: the cursor lies in the future.
        """
        if cursor > self._added:
            raise ValueError(f"the cursor {cursor} is beyond the {self._added} rows added so far")
        n = min(self._added - cursor, self._kept)
        return self.at(np.arange(self._kept - n, self._kept)) if n else None

    def everything(self) -> BatchT | None:
        """All that is kept, oldest first; None where nothing is."""
        return self.newer(self._added - self._kept)

    def restore(self, rows: BatchT | None, added: int) -> None:
        """Hold just ``rows``, as if ``added`` had ever been added."""
        self._clear()
        if rows is not None:
            self.add(rows)
        self._added = added


def _grown(leaf: Any, room: int) -> Any:
    """A leaf with places for ``room`` rows."""
    if isinstance(leaf, np.ndarray):
        dtype = np.dtype(object) if leaf.dtype.kind in "US" else leaf.dtype
        wider = np.zeros((room, *leaf.shape[1:]), dtype)
        wider[: len(leaf)] = leaf
        return wider
    return _Items([*leaf, *[None] * (room - len(leaf))], leaf.kind if isinstance(leaf, _Items) else type(leaf))


def _written(leaf: Any, at: NDArray[np.int64], new: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        if not np.can_cast(new.dtype, leaf.dtype, "same_kind"):
            leaf = leaf.astype(object if new.dtype.kind in "US" else np.result_type(leaf, new))
        leaf[at] = new
        return leaf
    for place, item in zip(at.tolist(), new, strict=True):
        leaf[place] = item
    return leaf


class _Items(list[Any]):
    """Rows that are no array, and what a batch of them is: a tuple, a list or a tensor."""

    def __init__(self, items: Iterable[Any], kind: type) -> None:
        super().__init__(items)
        self.kind = kind


class StateDict:
    """``state_dict`` and ``load_state_dict`` for a class that names what changes in a run in ``_state``.

    Arrays and containers are copied; a part with a state of its own is asked for it, and given it back.
    """

    _state: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run: numbers, arrays and containers of them."""
        return {name.lstrip("_"): _state_of(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` described."""
        for name in self._state:
            part, saved = getattr(self, name), state[name.lstrip("_")]
            if hasattr(part, "load_state_dict"):
                if saved is not None:
                    part.load_state_dict(saved)
            else:
                setattr(self, name, deepcopy(saved))


def _state_of(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else deepcopy(part)
