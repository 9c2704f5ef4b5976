"""Real steps that were recorded elsewhere, checked before anything is learnt from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.engine.execution import unstack
from wmrl_gym.slots import stack_samples
from wmrl_gym.world_models import Interface, WorldModel

_COLUMNS = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_, "reward_valid": np.bool_, "context": np.int64}


def checked_prior(recorded: Transitions, model: WorldModel, interface: Interface, *, starts: bool) -> Transitions:
    """``recorded`` as the environment itself would have given it: the same spaces, the same types.

    Args:
        recorded: real steps.
        model: what is to learn from them.
        interface: of the environment that they are to be of.
        starts: whether imagined episodes start at observations that occurred, which is of use without learning too.

    Raises:
        TypeError: something else than transitions, or a model that does not learn where nothing else could use them.
        ValueError: transitions of another space, or of a factored environment without its attempts and outcomes.
    """
    if not isinstance(recorded, Transitions):
        raise TypeError(f"learn_from() takes Transitions, got {type(recorded).__name__}")
    if type(model).update is WorldModel.update and not starts:
        raise TypeError(
            f"{type(model).__name__} does not learn (it has no update()), so recorded steps would change nothing: "
            'take another model, or start_states="buffer"'
        )
    n, factored = len(recorded), interface.factored
    if factored is not None and (recorded.attempt is None or recorded.outcome is None):
        raise ValueError(
            "the environment is factored, so its recorded steps must hold attempts and outcomes: "
            "MinariEpisodes(source, factored=...) reads them"
        )
    changed: dict[str, Any] = _columns_of(recorded)
    changed |= {
        name: _as_in(space, getattr(recorded, name), n, name)
        for name, space in (
            ("observation", interface.observation_space),
            ("action", interface.action_space),
            ("next_observation", interface.observation_space),
        )
    }
    if factored is None:  # such as of a factored environment that is wrapped now
        changed |= {"attempt": None, "outcome": None}
    return replace(recorded, **changed)


def _columns_of(recorded: Transitions) -> dict[str, NDArray[Any]]:
    """What has one number for each step, with its own type."""
    n = len(recorded)
    columns = {name: np.asarray(getattr(recorded, name)) for name in _COLUMNS}
    for name, column in columns.items():
        wanted = np.dtype(_COLUMNS[name])
        if column.shape != (n,) or column.dtype.kind != wanted.kind:
            raise ValueError(f"recorded {name} must be {wanted} of shape ({n},), got {column.dtype} of shape {column.shape}")
    unusable = columns["reward_valid"] & ~np.isfinite(columns["reward"])
    if unusable.any():
        row = int(np.flatnonzero(unusable)[0])
        raise ValueError(
            f"recorded reward {row} is {columns['reward'][row]}: an unknown one has reward_valid=False and a placeholder"
        )
    return {name: column.astype(_COLUMNS[name]) for name, column in columns.items()}


def _as_in(space: gym.Space[Any], value: Any, n: int, name: str) -> Any:
    """A batch of n samples with the types that ``space`` gives them."""
    if isinstance(space, gym.spaces.Dict):
        keys = sorted(value) if isinstance(value, dict) else type(value).__name__
        if keys != sorted(space):
            raise ValueError(f"recorded {name} must have the keys {sorted(space)}, got {keys}")
        return {key: _as_in(part, value[key], n, f"{name}[{key!r}]") for key, part in space.items()}
    if len(value) != n:
        raise ValueError(f"recorded {name} must have {n} rows as the rewards have, got {len(value)}")
    if isinstance(space, gym.spaces.Box):
        array = np.asarray(value)
        # Bounds are not asked for: real observations and actions overstep them too, and environments clip.
        if array.shape[1:] != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise ValueError(
                f"recorded {name} must be {space.dtype} of shape {(n, *space.shape)}, got {array.dtype} of shape {array.shape}"
            )
        return array.astype(space.dtype)
    rows = unstack(space, value, n)
    for row, item in enumerate(rows):
        if not space.contains(item):
            raise ValueError(f"recorded {name} {row} is outside {space}: {item!r}")
    return stack_samples(space, rows)
