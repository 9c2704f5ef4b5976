"""Vector environments whose slots are computed together, with Gymnasium's autoreset done once and in one place.

Gymnasium's own vector environments loop over N environments. Here a subclass resets or steps *any subset of slots as one batch*,
and the base class decides which slots those are: which are due a reset, what goes into ``final_obs`` and ``final_info``, and
which ``_key`` masks are set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Box, Space
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from wmrl_gym.factored import Step
from wmrl_gym.samples import batch_length, checked_actions, put_samples, sample_at, take_samples


def put_infos(infos: dict[str, Any], num_envs: int, slots: NDArray[np.int64], values: Mapping[str, Any]) -> None:
    """Scatter the infos of some slots into a vector info, in place, keeping Gymnasium's ``_key`` masks.

    NaN is a number that nobody knows, so its mask is False.

    Args:
        infos: the vector info, of ``num_envs`` rows; may already hold other slots.
        num_envs: the number of slots.
        slots: int64, shape (n,).
        values: for each key an array of n rows, or a dict of such.
    """
    whole = len(slots) == num_envs and bool((slots == np.arange(num_envs)).all())
    here = np.zeros(num_envs, dtype=np.bool_)
    here[slots] = True
    for key, value in values.items():
        known = here
        if type(value) is not np.ndarray and isinstance(value, Mapping):
            array = infos.get(key, {})
            put_infos(array, num_envs, slots, value)
        else:
            column = np.asarray(value)
            array = _put_info_array(infos.get(key), num_envs, slots, column, whole=whole)
            if column.dtype.kind == "f" and np.count_nonzero(unknown := np.isnan(column)):
                unknown = unknown if unknown.ndim == 1 else unknown.reshape(len(column), -1).any(axis=1)
                known = here.copy()
                known[slots[unknown]] = False
        mask = infos.get(f"_{key}")
        infos[key], infos[f"_{key}"] = array, known.copy() if mask is None or whole else np.where(here, known, mask)


def _put_info_array(
    old: NDArray[Any] | None, num_envs: int, slots: NDArray[np.int64], value: NDArray[Any], *, whole: bool
) -> NDArray[Any]:
    if len(value) != len(slots):
        raise ValueError(f"an info array must have one row for each of the {len(slots)} slots, got {len(value)}")
    if value.dtype.kind in "US":
        value = value.astype(object)
    if old is None:
        if whole:  # nothing to scatter
            return value.copy()
        fill = None if value.dtype == object else 0
        old = np.full((num_envs, *value.shape[1:]), fill, dtype=value.dtype)
    elif old.dtype != value.dtype:
        old = old.astype(np.result_type(old.dtype, value.dtype))
    old[slots] = value
    return old


class SlotVectorEnv(gym.vector.VectorEnv[Any, Any, NDArray[Any]], ABC):
    """A vector environment that steps its slots as batches.

    A subclass implements :meth:`_reset_slots` and :meth:`_step_slots`. It is never asked to step a slot that is being reset.

    Args:
        num_envs: the number of slots, at least 1.
        observation_space: the space of one slot.
        action_space: the space of one slot.
        autoreset_mode: when an ended slot is reset: at the next step, in the same step, or only by :meth:`reset`.

    Raises:
        ValueError: for fewer than one slot, or an unknown mode.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: Space[Any],
        *,
        action_space: Space[Any],
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._observation: Any = create_empty_array(observation_space, n=num_envs, fn=np.zeros)
        self._started = np.zeros(num_envs, dtype=np.bool_)
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    @abstractmethod
    def _reset_slots(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in each of ``slots``.

        Args:
            slots: int64, shape (n,), ascending.
            seeds: n seeds; ``None`` goes on with the slot's own generator.
            options: as given to :meth:`reset`; ``None`` in an autoreset.

        Returns:
            The n observations as one batch, and info: arrays of n rows.
        """

    @abstractmethod
    def _step_slots(self, slots: NDArray[np.int64], actions: Any) -> Step:
        """Step ``slots`` (int64, shape (n,), ascending) with their n actions, batched."""

    @property
    def pending_reset(self) -> NDArray[np.bool_]:
        """Bool, shape (num_envs,): the slots whose episode is over and which have not been reset yet."""
        return self._ended.copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those of ``options["reset_mask"]`` (bool, shape (num_envs,)).

        Args:
            seed: an int seeds slot i with ``seed + i``; a list has one seed for each slot.
            options: for the environments; a ``reset_mask`` in it is taken out first.

        Raises:
            ValueError: for a list of seeds of the wrong length, or a mask that is empty or of the wrong shape.
            TypeError: for a mask that is not a boolean array.
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
        """
        self._check_open("reset()")
        if seed is not None:
            self._seed(seed)
        seeds = self._seeds(seed)
        options = None if options is None else dict(options)
        mask = None if options is None else options.pop("reset_mask", None)
        if mask is None:
            slots = np.arange(self.num_envs, dtype=np.int64)
        else:
            slots = np.flatnonzero(self._checked_mask(mask)).astype(np.int64)
        infos: dict[str, Any] = {}
        self._reset(slots, [seeds[int(slot)] for slot in slots], options, infos)
        return deepcopy(self._observation), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every slot, or reset it where its episode ended in the step before (mode NEXT_STEP).

        Args:
            actions: a batch of ``num_envs`` actions; those of slots that are being reset are ignored.

        Returns:
            Observation, reward (float64), terminated, truncated (bool), each of ``num_envs`` rows, and info. A slot that was
            reset at this step has reward 0 and neither flag.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or in mode DISABLED for an ended slot that was not reset.
            ValueError: for the wrong number of actions, or one that is not finite or none of the space.
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
        """
        self._check_open("step()")
        self._check_steppable(actions)
        resetting = self._ended.copy() if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._ended)
        infos: dict[str, Any] = {}
        reward = np.zeros(self.num_envs, dtype=np.float64)
        terminated, truncated = np.zeros_like(self._ended), np.zeros_like(self._ended)
        stepping = np.flatnonzero(~resetting).astype(np.int64)
        if len(stepping) > 0:
            chosen = take_samples(self.single_action_space, actions, stepping)
            chosen = checked_actions(self.single_action_space, chosen, len(stepping), name="actions")
            step = self._step_slots(stepping, chosen)
            reward[stepping], terminated[stepping], truncated[stepping] = step.reward, step.terminated, step.truncated
            self._observation = put_samples(self.single_observation_space, self._observation, stepping, step.observation)
            self._ended = terminated | truncated
            self._put_step_infos(infos, stepping, step.info)
        due = self._ended if self.autoreset_mode is AutoresetMode.SAME_STEP else resetting
        if due.any():
            slots = np.flatnonzero(due).astype(np.int64)
            self._reset(slots, [None] * len(slots), None, infos)
        return deepcopy(self._observation), reward, terminated, truncated, infos

    def __del__(self) -> None:
        """Nothing: before Gymnasium 1.3 garbage was closed, and with it what others may still use."""

    def _put_step_infos(self, infos: dict[str, Any], slots: NDArray[np.int64], info: Mapping[str, Any]) -> None:
        ended = self._ended[slots]
        if self.autoreset_mode is not AutoresetMode.SAME_STEP or not ended.any():
            self._put_infos(infos, slots, info)
            return
        # The info of an ended step lives in final_info alone: its place in the main info is the new episode's.
        final = np.full(self.num_envs, None, dtype=object)
        if isinstance(self.single_observation_space, Box):
            for slot, row in zip(slots[ended].tolist(), np.array(self._observation[slots[ended]]), strict=True):
                final[slot] = row
        else:
            for slot in slots[ended].tolist():
                final[slot] = sample_at(self.single_observation_space, self._observation, slot)
        infos["final_obs"], infos["_final_obs"] = final, self._ended.copy()
        infos["final_info"], infos["_final_info"] = {}, self._ended.copy()
        self._put_infos(infos["final_info"], slots[ended], self._info_rows(info, ended))
        if not ended.all():
            self._put_infos(infos, slots[~ended], self._info_rows(info, ~ended))

    def _put_infos(self, infos: dict[str, Any], slots: NDArray[np.int64], info: Mapping[str, Any]) -> None:
        """Put the info of some slots, arrays of as many rows, into the vector's."""
        put_infos(infos, self.num_envs, slots, info)

    def _info_rows(self, info: Mapping[str, Any], mask: NDArray[np.bool_]) -> Mapping[str, Any]:
        """The info of the slots in ``mask``."""
        return _rows(info, mask)

    def _reset(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None, infos: dict[str, Any]
    ) -> None:
        observation, info = self._reset_slots(slots, seeds, options)
        self._observation = put_samples(self.single_observation_space, self._observation, slots, observation)
        self._put_infos(infos, slots, info)
        self._started[slots], self._ended[slots] = True, False

    def _seed(self, seed: int | Sequence[int | None]) -> None:
        """``np_random_seed`` is the seed that was given."""
        if isinstance(seed, (int, np.integer)):
            self._np_random, self._np_random_seed = seeding.np_random(int(seed))
        else:
            self._np_random, _ = seeding.np_random(next((each for each in seed if each is not None), None))
            self._np_random_seed = tuple(seed)  # type: ignore[assignment]

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what} of an environment that was closed: make a new one")

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + slot for slot in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"a list of seeds must have one for each of the {self.num_envs} slots, got {len(seed)}")
        return list(seed)

    def _checked_mask(self, mask: Any) -> NDArray[np.bool_]:
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            kind = f"an array of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"options['reset_mask'] must be a boolean array, got {kind}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must have shape ({self.num_envs},), got {mask.shape}")
        if not mask.any():
            raise ValueError("options['reset_mask'] must be True for at least one slot, got none")
        return mask

    def _check_steppable(self, actions: Any) -> None:
        if not self._started.all():
            new = np.flatnonzero(~self._started).tolist()
            raise gym.error.ResetNeeded(f"call reset() before step(): slots {new} have never been reset")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            ended = np.flatnonzero(self._ended).tolist()
            raise gym.error.ResetNeeded(f"slots {ended} have ended: reset them with options={{'reset_mask': mask}} before step()")
        given = batch_length(self.single_action_space, actions)
        if given != self.num_envs:
            raise ValueError(f"step() needs one action for each of the {self.num_envs} slots, got {given}")


def _rows(info: Mapping[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    return {k: _rows(v, mask) if isinstance(v, Mapping) else np.asarray(v)[mask] for k, v in info.items()}
