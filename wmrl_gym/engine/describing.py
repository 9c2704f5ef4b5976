"""What was done in each slot, in numbers: the features that a contextual correction explains a model's errors by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.engine.repredicting import Histories
from wmrl_gym.factored import Factored
from wmrl_gym.world_models import Interface, WorldModel
from wmrl_gym.world_models.attempts import AttemptModel
from wmrl_gym.world_models.dynamics.vectors import MAX_NUMBERS, ActionCodec
from wmrl_gym.world_models.outcome.encoders import HashingEncoder, NeuralEncoder, NoEncoder, TextEncoder, TfidfEncoder

Features: TypeAlias = Callable[[Any, Any, Mapping[str, NDArray[Any]]], Any]
"""``features(observation, action, info)``: batches of n rows and arrays such as ``info["context"]``; float, shape (n, F)."""


def describes_attempts(interface: Interface, model: WorldModel) -> bool:
    """Whether features come from a factored environment's attempts: it says of each what may be known before it runs."""
    return isinstance(model, AttemptModel) and interface.factored is not None


class Descriptions:
    """Keeps for each slot the features of what its newest reward is paid for.

    In a factored environment these are the features of the attempt that is predicted best in the episode so far, and their mean
    over the episode's attempts; elsewhere those of the step, and their mean over all steps since a reward was last due.

    Args:
        interface: of the environment.
        model: the world model; one with a text encoder adds the attempts' text.
        num_slots: rollouts imagined at once.
        features: the user's own; None takes the environment's.

    Raises:
        ValueError: the environment has no features, and none are given.
    """

    def __init__(self, interface: Interface, model: WorldModel, *, num_slots: int, features: Features | None = None) -> None:
        self._num_slots, self._own = num_slots, features
        self._factored: Factored[Any, Any] | None = None
        self._encoder: TextEncoder | None = None
        self._spaces = [interface.observation_space, interface.action_space]
        if features is None and describes_attempts(interface, model):
            assert interface.factored is not None
            self._factored = interface.factored
            self._encoder = _lasting(getattr(model, "encoder", None)) if self._factored.shows_text else None
        elif features is None and not any(map(_describable, self._spaces)):
            raise ValueError(
                f"there are no features to tell what was done by, in observations of {self._spaces[0]} and actions of "
                f"{self._spaces[1]}: give them, features=callable(observation, action, info) -> (B, F)"
            )
        self.now: NDArray[np.float64] | None = None
        """float64, shape (num_slots, F): of each slot's newest step, NaN before its first; None before any."""
        self._observation: Any = None
        self._paid: NDArray[np.float64] = np.zeros((num_slots, 0))
        self._sum: NDArray[np.float64] = np.zeros((num_slots, 0))
        self._count: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.histories = None if self._factored is None else Histories(num_slots)
        """The attempts behind the newest pairs; None where the environment is not factored."""

    def begin(self, slots: NDArray[np.int64], observation: Any) -> None:
        """Episodes begin in ``slots``."""
        self._count[slots] = 0
        if self.histories is not None:
            self.histories.begin(slots)
        self._see(slots, observation)

    def _see(self, slots: NDArray[np.int64], observation: Any) -> None:
        if self._factored is not None:
            return
        if self._observation is None:
            self._observation = batch.take(observation, np.zeros(self._num_slots, np.int64))
        whole = len(slots) == self._num_slots
        self._observation = deepcopy(observation) if whole else batch.put(self._observation, slots, observation)

    def step(self, slots: NDArray[np.int64], actions: Any, *, states: tuple[Any, Any], info: Mapping[str, NDArray[Any]]) -> None:
        """``slots`` have made a step.

        Args:
            slots: int64, shape (n,).
            actions: a batch of n.
            states: of the model, before and after: batches of n.
            info: what the environment says of the episodes: ``context``, ``depth`` and others, arrays of n rows.
        """
        before, after = states
        rows = self._rows(slots, actions, before, info)
        if self.now is None:
            self.now = np.full((self._num_slots, 2 * rows.shape[1]), np.nan)
            self._paid, self._sum = np.zeros((2, self._num_slots, rows.shape[1]))
        first = self._count[slots] == 0
        better = first if self._factored is None else first | (after.best > before.best)
        self._sum[slots] = np.where(first[:, None], rows, self._sum[slots] + rows)
        self._paid[slots] = rows if self._factored is None else np.where(better[:, None], rows, self._paid[slots])
        self._count[slots] += 1
        mean = self._sum[slots] / self._count[slots, None]
        self.now[slots] = np.concatenate([self._paid[slots], mean], axis=1)

    def seen(self, slots: NDArray[np.int64], observation: Any, due: NDArray[np.bool_]) -> None:
        """What the step of ``slots`` led to, and where it owed a reward: bool, shape (n,)."""
        if self._factored is None:
            self._count[slots[due]] = 0
            self._see(slots, observation)

    def _rows(self, slots: NDArray[np.int64], actions: Any, state: Any, info: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The features of one step: float64, shape (n, F)."""
        if self._factored is not None:
            attempt = self._factored.attempt(state.inner, actions)
            if self.histories is not None:
                self.histories.step(slots, state.inner, attempt, state.context)
            return self.of_attempts(attempt)
        observation = self._observation if len(slots) == self._num_slots else batch.take(self._observation, slots)
        if self._own is not None:
            return self._checked(self._own(observation, actions, info), len(slots))
        parts = [_numbers(space, value) for space, value in zip(self._spaces, (observation, actions), strict=True)]
        return np.concatenate(parts, axis=1)

    def of_attempts(self, attempt: Any) -> NDArray[np.float64]:
        """The features of attempts in a factored environment: float64, shape (n, F)."""
        assert self._factored is not None
        rows = np.asarray(self._factored.features(attempt), np.float64)
        if self._encoder is None:
            return rows
        return np.hstack([rows, _vectors(self._encoder, self._factored.text(attempt))])

    def _checked(self, given: Any, n: int) -> NDArray[np.float64]:
        rows = np.asarray(given, np.float64)
        if rows.ndim != 2 or len(rows) != n or not rows.shape[1]:
            raise ValueError(f"features(observation, action, info) must return shape ({n}, F), got {rows.shape}")
        if self.now is not None and 2 * rows.shape[1] != self.now.shape[1]:
            raise ValueError(f"features() must return {self.now.shape[1] // 2} columns as before, got {rows.shape[1]}")
        if not np.isfinite(rows).all():
            raise ValueError(f"features() must return finite numbers, got {rows[~np.isfinite(rows)][0]}")
        return rows

    def state_dict(self) -> dict[str, Any]:
        """What was done so far in the episodes under way."""
        names = ("now", "_observation", "_paid", "_sum", "_count")
        own = {name.lstrip("_"): deepcopy(getattr(self, name)) for name in names}
        return own | {"histories": None if self.histories is None else self.histories.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.now = deepcopy(state["now"])
        self._observation = deepcopy(state["observation"])
        self._paid, self._sum, self._count = (state[name].copy() for name in ("paid", "sum", "count"))
        if self.histories is not None and state["histories"] is not None:
            self.histories.load_state_dict(state["histories"])


def _lasting(encoder: Any) -> TextEncoder | None:
    """An encoder whose columns mean the same throughout a run: one that learns its words anew is replaced by their hashes."""
    if not isinstance(encoder, TextEncoder) or isinstance(encoder, NoEncoder):
        return None
    return HashingEncoder() if isinstance(encoder, TfidfEncoder) else encoder


def _vectors(encoder: TextEncoder, texts: Any) -> NDArray[np.float64]:
    rows = encoder.raw(texts) if isinstance(encoder, NeuralEncoder) else encoder.encode(texts)
    return np.asarray(rows, np.float64)


def _describable(space: gym.Space[Any]) -> bool:
    """Whether samples of a space, or of a part of it, are few numbers or choices."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(_describable, space.values()))
    if isinstance(space, gym.spaces.Tuple):
        return any(map(_describable, space.spaces))
    return _width(space) > 0


def _width(space: gym.Space[Any]) -> int:
    """How many numbers say a sample of a space without parts; 0 where it is left out."""
    if isinstance(space, gym.spaces.Discrete):
        width = int(space.n)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        width = int(space.nvec.sum())
    elif isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        width = int(np.prod(space.shape))
    else:
        width = 0
    return width if width <= MAX_NUMBERS else 0  # images need features of their own


def _numbers(space: gym.Space[Any], value: Any) -> NDArray[np.float64]:
    """A batch of samples as numbers, choices as zeros and ones; what is no few numbers is left out: float64, shape (n, F)."""
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([_numbers(part, value[key]) for key, part in space.items()], axis=1)
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([_numbers(part, each) for part, each in zip(space.spaces, value, strict=True)], axis=1)
    if not _width(space):
        return np.zeros((len(value), 0))
    array = np.asarray(value)
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return ActionCodec(space).encode(array).astype(np.float64)
    return array.reshape(len(array), -1).astype(np.float64)
