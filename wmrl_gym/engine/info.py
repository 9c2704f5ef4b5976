"""The keys of ``info``: the one list of them, and the info of one step of n slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_PAIR = -1
"""``info["pair"]`` of a step that makes no pair with a truth that comes later or came now."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of ``info`` in an environment with a world model.

    Args:
        dtype: of the array in a vector environment; a single one has the Python number.
        default: the value where nothing else was said. NaN is a number that nobody knows: absent from the info of a single
            environment, and masked by Gymnasium's ``_key`` array in a vector one. Every other key is always there.
        meaning: one sentence.
    """

    dtype: type
    default: Any
    meaning: str

    @property
    def always(self) -> bool:
        """Whether the key is there at every reset and step."""
        return self.default == self.default


KEYS: dict[str, Key] = {
    "anchor": Key(bool, False, "whether the episode is an anchor: executed for real"),
    "group": Key(int, 0, "number of the episode's group, whose members share their start and the anchor decision"),
    "propensity": Key(float, 1.0, "the probability with which the episode was made an anchor"),
    "context": Key(int, 0, "which task the episode is about; 0 where there is one only"),
    "depth": Key(int, 0, "steps since the episode's start"),
    "pair": Key(int, NO_PAIR, "number of the pair of predicted and real reward that the step makes, from 0 in each run; else -1"),
    "reward_due": Key(bool, False, "whether the step pays; where it does not, its reward is 0 by construction"),
    "reward_valid": Key(
        bool, True, "whether the reward is known; where it is not, it is a placeholder that nothing may learn from"
    ),
    "weight": Key(float, 1.0, "how much the step's advantage should count"),
    "wm_reward": Key(float, np.nan, "the raw predicted reward"),
    "wm_reward_std": Key(float, np.nan, "the model's own standard deviation of that prediction's error"),
    "real_reward": Key(float, np.nan, "the reward that real execution gave"),
    "calibrated_reward": Key(float, np.nan, "the prediction passed through f (OnlineDebiasing)"),
    "residual_var": Key(float, np.nan, "running mean square of what f misses (OnlineDebiasing)"),
}
"""What an environment with a world model says in ``info``; everything else in it is the environment's or the model's own."""

_ALWAYS = tuple((name, key.default) for name, key in KEYS.items() if key.always)
_DEFAULTS: dict[int, dict[str, NDArray[Any]]] = {}
_IMMUTABLE = (bool, int, float, str, bytes, type(None), np.generic)


class StepInfo(dict[str, NDArray[Any]]):
    """The info of one reset or step of n slots, each key an array of n rows.

    A key of :data:`KEYS` that was not set is made of its default when it is first asked for.

    Args:
        n: slots.
        columns: what is known.
        own: for each slot the wrapped environment's own info, None where its step was imagined; None where all were.
        imagined: what the user says of imagined steps.

    >>> info = StepInfo(2, {"anchor": np.array([True, False])})
    >>> info["wm_reward"], info.single(1)["anchor"], "wm_reward" in info.single(1)
    (array([nan, nan]), False, False)
    """

    def __init__(
        self,
        n: int,
        columns: Mapping[str, NDArray[Any]] | Iterable[tuple[str, NDArray[Any]]] = (),
        *,
        own: Sequence[Mapping[str, Any] | None] | None = None,
        imagined: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(columns)
        self.n, self.imagined = n, imagined
        self.own: list[Mapping[str, Any] | None] | None = None if own is None else list(own)

    def __missing__(self, key: str) -> NDArray[Any]:
        """A column that nobody set."""
        if self.n not in _DEFAULTS:
            _DEFAULTS[self.n] = {name: np.full(self.n, each.default, each.dtype) for name, each in KEYS.items()}
        column = self[key] = _DEFAULTS[self.n][key].copy()
        return column

    def has(self, key: str) -> bool:
        """Whether a column was set, so that it may hold more than its default."""
        return key in self

    def set_own(self, row: int, info: Mapping[str, Any]) -> None:
        """The wrapped environment's own info of the slot at ``row``."""
        if self.own is None:
            self.own = [None] * self.n
        self.own[row] = info

    def row_own(self, row: int) -> Mapping[str, Any] | None:
        """What is not the engine's in a slot's info: the environment's own, where the step was real, else the user's."""
        own = None if self.own is None else self.own[row]
        if own is not None:
            return own
        return None if self.imagined is None else copied(self.imagined)

    def others(self) -> list[Mapping[str, Any]]:
        """For each slot what stands in no column: the environment's own info of a real step, the user's of an imagined one."""
        if self.own is None and self.imagined is None:
            return []
        rows = [self.row_own(row) for row in range(self.n)]
        real = [self.own is not None and self.own[row] is not None for row in range(self.n)]
        return [
            {} if row is None else {key: value for key, value in row.items() if key not in KEYS and (own or key not in self)}
            for row, own in zip(rows, real, strict=True)
        ]

    def rows(self, mask: NDArray[np.bool_]) -> StepInfo:
        """The info of the slots in ``mask``."""
        own = None if self.own is None else [each for each, wanted in zip(self.own, mask.tolist(), strict=True) if wanted]
        columns = {key: _rows(column, mask) for key, column in self.items()}
        return StepInfo(int(mask.sum()), columns, own=own, imagined=self.imagined)

    def single(self, row: int = 0) -> dict[str, Any]:
        """The info of one slot as Python values, without the numbers that nobody knows."""
        given = self.row_own(row)
        info: dict[str, Any] = {} if given is None else dict(given)
        real = self.own is not None and self.own[row] is not None
        for name, column in self.items():
            if real and name in info and name not in KEYS:
                continue
            if type(column) is np.ndarray and column.ndim == 1:
                value = column.item(row)
                if not isinstance(value, float) or value == value:
                    info[name] = value
                else:
                    info.pop(name, None)
            else:
                _put_part(info, name, column, row)
        for name, default in _ALWAYS:
            if name not in self:
                info[name] = default
        return info


def _rows(column: Any, mask: NDArray[np.bool_]) -> Any:
    return {key: _rows(part, mask) for key, part in column.items()} if isinstance(column, Mapping) else np.asarray(column)[mask]


def _put_part(info: dict[str, Any], name: str, column: Any, row: int) -> None:
    """One row of a column that is no vector: a dict of columns, a matrix, a list."""
    if isinstance(column, Mapping):
        inner: dict[str, Any] = {}
        for key, part in column.items():
            value = part.item(row) if isinstance(part, np.ndarray) and part.ndim == 1 else deepcopy(part[row])
            inner[key] = value
        info[name] = inner
    elif isinstance(column, np.ndarray) and column.dtype.kind == "f" and np.isnan(column[row]).any():
        info.pop(name, None)
    else:
        info[name] = deepcopy(column[row])


def copied(info: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that shares nothing that could be changed."""
    return {key: value if isinstance(value, _IMMUTABLE) else deepcopy(value) for key, value in info.items()}
