"""Batches of samples of a Gymnasium space: how they are picked, put, stacked, and checked where they are actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

_ARRAYS = (Box, Discrete, MultiDiscrete, MultiBinary)


class ActionError(gym.error.InvalidAction, ValueError):
    """An action that is none of the action space."""


def checked_actions(space: Space[Any], actions: Any, n: int, *, name: str = "action") -> Any:
    """A batch of n actions of the single ``space``, as arrays of its own dtype where it has one.

    Numbers outside the bounds of a Box are let through: environments clip them.

    Args:
        space: the action space of one environment.
        actions: a batch.
        n: its length.
        name: of the argument, for the error.

    Raises:
        ActionError: an action that is not finite, or of another shape or kind, or beyond what a discrete space has.

    >>> checked_actions(Discrete(2), [1, 0], 2)
    array([1, 0])
    """
    if isinstance(space, Dict):
        if not isinstance(actions, Mapping) or set(actions) != set(space.spaces):
            found = sorted(actions) if isinstance(actions, Mapping) else type(actions).__name__
            raise ActionError(f"{name} must be a dict with the keys {sorted(space.spaces)}, got {found}")
        return {key: checked_actions(part, actions[key], n, name=f"{name}[{key!r}]") for key, part in space.items()}
    if isinstance(space, Tuple):
        parts = zip(space.spaces, actions, strict=True)
        return tuple(checked_actions(part, each, n, name=f"{name}[{at}]") for at, (part, each) in enumerate(parts))
    if isinstance(space, _ARRAYS):
        return _checked_array(space, actions, n, name)
    for item in actions:
        if not (isinstance(item, str) if isinstance(space, Text) else space.contains(item)):
            raise ActionError(f"{name} must be in {space}, got {item!r}")
    return actions


def checked_action(space: Space[Any], action: Any) -> Any:
    """One action as a batch of one; see :func:`checked_actions`.

    >>> checked_action(Discrete(2), 1)
    array([1])
    """
    if type(space) is Discrete and isinstance(action, (int, np.integer)) and 0 <= action - int(space.start) < int(space.n):
        return np.array([action], space.dtype)
    if isinstance(space, _ARRAYS):
        try:
            given = np.asarray(action)[None]
        except ValueError:
            raise ActionError(f"action must be in {space}, got {action!r}") from None
        if isinstance(space, Discrete) and given.size == 1:
            given = given.reshape(1)  # policies give arrays of one
        return _checked_array(space, given, 1, "action")
    if isinstance(space, (Dict, Tuple)) and not isinstance(action, (Mapping, tuple)):
        raise ActionError(f"action must be in {space}, got {action!r}")
    batched = checked_actions(space, [action], 1) if isinstance(space, Text) else None
    if batched is None:
        try:
            batched = stack_samples(space, [action])
        except (KeyError, TypeError, ValueError) as error:
            raise ActionError(f"action must be in {space}, got {action!r}") from error
        return checked_actions(space, batched, 1)
    return stack_samples(space, [action])


def _checked_array(space: Any, actions: Any, n: int, name: str) -> NDArray[Any]:
    try:
        given = np.asarray(actions)
    except ValueError:
        raise ActionError(f"{name} must be in {space}, got {actions!r}") from None
    shape = (n, *space.shape)
    if given.shape != shape or given.dtype.kind not in ("biuf" if isinstance(space, Box) else "biu"):
        raise ActionError(f"{name} must be in {space}, got {given.dtype} of shape {given.shape[1:]}: {given.tolist()!r:.80}")
    if isinstance(space, Box):
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            raise ActionError(f"{name} must be finite, got {given.tolist()!r:.80}")
        return given.astype(space.dtype, copy=False)
    low = 0 if isinstance(space, MultiBinary) else space.start
    high = 2 if isinstance(space, MultiBinary) else space.start + (space.n if isinstance(space, Discrete) else space.nvec)
    if (given < low).any() or (given >= high).any():
        raise ActionError(f"{name} must be in {space}, got {given.tolist()!r:.80}")
    return given.astype(space.dtype, copy=False)


def batch_length(space: Space[Any], batch: Any) -> int:
    """How many samples of the single ``space`` the batch holds.

    >>> batch_length(Dict({"x": Discrete(3)}), {"x": np.array([0, 2])})
    2
    """
    if isinstance(space, Dict):
        return batch_length(next(iter(space.values())), next(iter(batch.values())))
    if isinstance(space, Tuple):
        return batch_length(space.spaces[0], batch[0])
    return len(batch)


def take_samples(space: Space[Any], batch: Any, slots: NDArray[np.int64]) -> Any:
    """The samples of the single ``space`` at ``slots`` of a batch, as a smaller batch.

    >>> take_samples(Discrete(9), np.array([4, 5, 6]), np.array([2, 0]))
    array([6, 4])
    """
    if isinstance(space, Dict):
        return {key: take_samples(sub, batch[key], slots) for key, sub in space.items()}
    if isinstance(space, Tuple):
        return tuple(take_samples(sub, part, slots) for sub, part in zip(space.spaces, batch, strict=True))
    if isinstance(space, _ARRAYS):
        return np.asarray(batch)[slots]
    return tuple(batch[int(slot)] for slot in slots)


def sample_at(space: Space[Any], batch: Any, slot: int) -> Any:
    """A copy of one sample of the single ``space``, taken from a batch.

    >>> sample_at(Dict({"x": Discrete(9)}), {"x": np.array([4, 5])}, 1)
    {'x': np.int64(5)}
    """
    if isinstance(space, Box):
        return batch[slot].copy() if space.shape and isinstance(batch, np.ndarray) else np.array(batch[slot])
    if isinstance(space, Dict):
        return {key: sample_at(sub, batch[key], slot) for key, sub in space.items()}
    if isinstance(space, Tuple):
        return tuple(sample_at(sub, part, slot) for sub, part in zip(space.spaces, batch, strict=True))
    return deepcopy(batch[slot])


def stack_samples(space: Space[Any], samples: Sequence[Any]) -> Any:
    """Samples of the single ``space`` as one batch.

    >>> stack_samples(Discrete(9), [4, 5])
    array([4, 5])
    """
    empty: Any = create_empty_array(space, n=len(samples))
    return concatenate(space, samples, empty)


def put_samples(space: Space[Any], batch: Any, slots: NDArray[np.int64], values: Any) -> Any:
    """``batch`` with the samples at ``slots`` replaced by ``values``; arrays are written in place, in their own dtype."""
    if isinstance(space, Dict):
        return {key: put_samples(sub, batch[key], slots, values[key]) for key, sub in space.items()}
    if isinstance(space, Tuple):
        parts = zip(space.spaces, batch, values, strict=True)
        return tuple(put_samples(sub, old, slots, new) for sub, old, new in parts)
    if isinstance(space, _ARRAYS):
        batch[slots] = values
        return batch
    items = list(batch)
    for slot, value in zip(slots, values, strict=True):
        items[int(slot)] = value
    return tuple(items)
