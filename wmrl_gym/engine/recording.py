"""What was done in the imagined episodes under way, so that any of them can be executed after all."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.engine.background import NO_PAIR, Recording
from wmrl_gym.slots import sample_at
from wmrl_gym.world_models import Prediction


@dataclass(frozen=True, slots=True)
class _Entry:
    """One step: for each slot its row of the batch, -1 where it did not step; and the batch."""

    row: NDArray[np.int64]
    actions: Any
    reward: NDArray[np.float64]
    std: NDArray[np.float64]
    pays: NDArray[np.bool_]


class EpisodeLog:
    """The actions and predictions of the episodes under way, kept as batches: a step costs the same whatever the number of slots.

    Memory holds as many batches as the longest episode under way has steps.

    Args:
        space: of one action.
        num_slots: rollouts imagined at once.
    """

    def __init__(self, space: gym.Space[Any], num_slots: int) -> None:
        self.space = space
        self._entries: deque[_Entry] = deque()
        self._now = _headers(num_slots)
        self._options: list[Mapping[str, Any] | None] = [None] * num_slots
        self._last, self._last_options = self._now, self._options
        self._taken = np.full(num_slots, -1, np.int64)

    def begin(
        self,
        slots: NDArray[np.int64],
        header: Mapping[str, NDArray[Any]],
        *,
        options: Mapping[str, Any] | None,
        replayable: NDArray[np.bool_],
    ) -> None:
        """Episodes begin in ``slots``.

        Args:
            slots: int64, shape (n,).
            header: ``episode``, ``group``, ``context`` and ``seed`` of each, int64, shape (n,).
            options: of their starts.
            replayable: bool, shape (n,): imagined from a real reset, so that the same start can be taken again.
        """
        self._now = {name: values.copy() for name, values in self._now.items()}
        self._options = list(self._options)
        for name, values in header.items():
            self._now[name][slots] = values
        self._now["replayable"][slots] = replayable
        self._now["length"][slots] = 0
        for slot in slots.tolist():
            self._options[slot] = options

    def step(self, slots: NDArray[np.int64], actions: Any, prediction: Prediction) -> None:
        """``slots`` have made a step."""
        row = np.full(len(self._options), -1, np.int64)
        row[slots] = np.arange(len(slots))
        pays = prediction.reward_due & prediction.reward_valid
        self._entries.append(_Entry(row, deepcopy(actions), prediction.reward.copy(), prediction.reward_std.copy(), pays))
        self._now["length"][slots] += 1
        self._last = {name: values.copy() for name, values in self._now.items()}
        self._last_options = self._options
        while len(self._entries) > int(self._now["length"].max()):
            self._entries.popleft()

    def take(self, slot: int, *, first_pair: int) -> Recording | None:
        """The episode that made the last step in ``slot``, from its start to that step, to be executed; None a second time.

        Args:
            slot: where it ran.
            first_pair: number of its first pair; those after it count up.
        """
        head = {name: values[slot] for name, values in self._last.items()}
        if not head["replayable"] or self._taken[slot] == head["episode"] or not head["length"]:
            return None
        self._taken[slot] = head["episode"]
        # Chosen for what was predicted of it, and with certainty.
        recording = Recording(
            episode=int(head["episode"]),
            group=int(head["group"]),
            context=int(head["context"]),
            propensity=1.0,
            seed=int(head["seed"]),
            options=self._last_options[slot],
        )
        number = first_pair
        for entry in list(self._entries)[-int(head["length"]) :]:
            row = int(entry.row[slot])
            pair = number if entry.pays[row] else NO_PAIR
            number += bool(entry.pays[row])
            recording.note(sample_at(self.space, entry.actions, row), pair, float(entry.reward[row]), float(entry.std[row]))
        return recording

    def state_dict(self) -> dict[str, Any]:
        """Everything, as arrays and batches."""
        return deepcopy({name: getattr(self, name) for name in _STATE})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name, value in deepcopy(state).items():
            setattr(self, name, value)


_STATE = ("_entries", "_now", "_options", "_last", "_last_options", "_taken")


def _headers(n: int) -> dict[str, NDArray[Any]]:
    numbers = {name: np.zeros(n, np.int64) for name in ("episode", "group", "context", "seed", "length")}
    return {**numbers, "replayable": np.zeros(n, np.bool_)}
