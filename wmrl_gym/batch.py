"""Batches: values whose every leaf has B rollouts along its first axis.

A batch is an array or tensor, a tuple or list of B things, ``None``, or a dict or dataclass of batches. The states of
world models and the attempts and outcomes of factored environments are batches, so that a rollout can be picked out,
branched and put back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

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


def size(batch: Any) -> int:
    """The number of rollouts in ``batch``.

    >>> size({"x": np.zeros((3, 2)), "name": ("a", "b", "c")})
    3
    """
    sizes: list[int] = []
    _map(lambda leaf: sizes.append(len(leaf)), batch)
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
        import torch

        return torch.cat([first, *rest])

    return cast(BatchT, _map(leaf, batches[0], *batches[1:]))
