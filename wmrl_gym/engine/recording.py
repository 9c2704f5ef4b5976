"""Records the actions of imagined episodes, so that they can be executed later: background anchors, and others on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.batch import StateDict
from wmrl_gym.corrections.anchor_pairs import Pairs
from wmrl_gym.engine.execution import RealStep
from wmrl_gym.engine.info import NO_PAIR
from wmrl_gym.samples import sample_at
from wmrl_gym.world_models import Prediction


@dataclass(slots=True)
class Recording:
    """One imagined episode that is to be executed: where it starts, what was done, and what was predicted of it.

    Args:
        episode: its number.
        group: its group's number.
        context: its task.
        propensity: the probability with which it was chosen.
        seed: of its start.
        options: of its start.
        actions: what was done, unbatched.
        pair: for each step the number of its pair, :data:`NO_PAIR` where no reward was due.
        predicted: for each step the predicted reward.
        predicted_std: for each step the standard deviation that the model gave.
        pays: for each step whether a valid reward was predicted to be due.
        features: for each step what was done, float64, shape (F,); empty where nobody asks.
        verified: chosen for what was predicted of it, and not by chance.
    """

    episode: int
    group: int
    context: int
    propensity: float
    seed: int
    options: Mapping[str, Any] | None
    actions: list[Any] = field(default_factory=list)
    pair: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    predicted_std: list[float] = field(default_factory=list)
    pays: list[bool] = field(default_factory=list)
    features: list[NDArray[np.float64]] = field(default_factory=list)
    verified: bool = False

    def note(self, action: Any, pair: int, predicted: float, predicted_std: float) -> None:
        """Append one step."""
        self.actions.append(action)
        self.pair.append(pair)
        self.predicted.append(predicted)
        self.predicted_std.append(predicted_std)

    def pairs(self, steps: list[RealStep]) -> Pairs:
        """The pairs that real steps with the same actions make: those on which both sides owe a reward."""
        depth = [
            at
            for at, real in enumerate(steps[: len(self.pair)])
            if self.pair[at] != NO_PAIR and real.step.reward_due[0] and real.step.reward_valid[0]
        ]
        n = len(depth)
        return Pairs(
            np.array([self.pair[at] for at in depth], np.int64),
            np.array([self.predicted[at] for at in depth], np.float64),
            np.array([self.predicted_std[at] for at in depth], np.float64),
            np.array([float(steps[at].step.reward[0]) for at in depth], np.float64),
            np.full(n, self.group, np.int64),
            np.full(n, self.episode, np.int64),
            np.array(depth, np.int64) + 1,
            np.full(n, self.context, np.int64),
            np.full(n, self.propensity),
            np.stack([self.features[at] for at in depth]) if depth and self.features else None,  # type: ignore[arg-type]
        )

    @property
    def numbers(self) -> list[int]:
        """The numbers of its pairs."""
        return [number for number in self.pair if number != NO_PAIR]

    def truths(self, steps: list[RealStep]) -> dict[int, float]:
        """The true reward, by pair number, of each imagined step that was given one, from real steps with the same actions.

        A real episode that ended before the imagined one pays nothing afterwards, and what it paid at steps at which the imagined
        one did not goes to the next that did. Not known is what infrastructure lost, and what a real episode that was still going
        on had not paid.
        """
        if not all(real.step.reward_valid[0] for real in steps):
            return {}
        over = bool(steps) and bool(steps[-1].step.terminated[0])
        truths: dict[int, float] = {}
        owed = 0.0
        for depth, number in enumerate(self.pair):
            due = depth < len(steps) and bool(steps[depth].step.reward_due[0])
            owed += float(steps[depth].step.reward[0]) if due else 0.0
            if number != NO_PAIR and (due or (over and depth >= len(steps) - 1)):
                truths[number] = owed
                owed = 0.0
        return truths


@dataclass(frozen=True, slots=True)
class _Entry:
    """One step: for each slot its row of the batch, -1 where it did not step; and the batch."""

    row: NDArray[np.int64]
    actions: Any
    reward: NDArray[np.float64]
    std: NDArray[np.float64]
    pays: NDArray[np.bool_]
    pair: NDArray[np.int64]
    features: NDArray[np.float64] | None = None


class Recorder(StateDict):
    """The actions and predictions of imagined episodes under way, kept as batches: a step costs the same for any number of slots.

    Memory holds as many batches as the longest episode under way has steps.

    Args:
        space: of one action.
        num_slots: rollouts imagined at once.
    """

    _state = ("_entries", "_now", "_options", "_last", "_last_options", "_taken", "_recorded")

    def __init__(self, space: gym.Space[Any], num_slots: int) -> None:
        self.space = space
        self.everything = False
        """Whether all episodes are kept, and not those of background anchors alone."""
        self._entries: deque[_Entry] = deque()
        names = ("episode", "group", "context", "seed", "length")
        self._now: dict[str, NDArray[Any]] = {name: np.zeros(num_slots, np.int64) for name in names}
        self._now |= {"propensity": np.ones(num_slots), "replayable": np.zeros(num_slots, np.bool_)}
        self._options: list[Mapping[str, Any] | None] = [None] * num_slots
        self._last, self._last_options = self._now, self._options
        self._taken = np.full(num_slots, -1, np.int64)
        self._recorded: set[int] = set()

    @property
    def active(self) -> bool:
        """Whether there is anything to keep."""
        return self.everything or bool(self._recorded)

    def begin(
        self,
        slots: NDArray[np.int64],
        header: Mapping[str, NDArray[Any]],
        *,
        options: Mapping[str, Any] | None,
        replayable: NDArray[np.bool_],
        recorded: NDArray[np.bool_],
    ) -> None:
        """Episodes begin in ``slots``.

        Args:
            slots: int64, shape (n,).
            header: ``episode``, ``group``, ``context``, ``seed`` (int64) and ``propensity`` (float64) of each.
            options: of their starts.
            replayable: bool, shape (n,): imagined from a real reset, so that the same start can be taken again.
            recorded: bool, shape (n,): background anchors, which are executed when they have ended.
        """
        self._recorded |= set(slots[recorded].tolist())
        if not self.active:
            return
        # What ended in the step before may still be asked for.
        self._now = {name: values.copy() for name, values in self._now.items()}
        self._options = list(self._options)
        for name, values in header.items():
            self._now[name][slots] = values
        self._now["replayable"][slots] = replayable
        self._now["length"][slots] = 0
        for slot in slots.tolist():
            self._options[slot] = options

    def pairs(self, slots: NDArray[np.int64], pays: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """At which of the rows that step in ``slots`` a background anchor makes a pair: bool, shape (n,)."""
        if not self._recorded:
            return np.zeros(len(slots), bool)
        recorded: NDArray[np.bool_] = np.isin(slots, list(self._recorded))
        return recorded & pays

    def step(
        self,
        slots: NDArray[np.int64],
        actions: Any,
        prediction: Prediction,
        pair: NDArray[np.int64],
        *,
        features: NDArray[np.float64] | None = None,
    ) -> None:
        """``slots`` have made a step.

        Args:
            slots: int64, shape (n,).
            actions: a batch of n.
            prediction: of n rows.
            pair: int64, shape (n,): the numbers of the pairs of background anchors.
            features: of what was done, float64, shape (n, F); None where nobody asks.
        """
        row = np.full(len(self._options), -1, np.int64)
        row[slots] = np.arange(len(slots))
        pays = prediction.reward_due & prediction.reward_valid
        said = prediction.reward.astype(np.float64), prediction.reward_std.astype(np.float64)
        self._entries.append(_Entry(row, deepcopy(actions), *said, pays, pair, features))
        self._now["length"][slots] += 1
        self._last, self._last_options = self._now, self._options
        while len(self._entries) > int(self._now["length"].max()):
            self._entries.popleft()

    def ended(self, slots: NDArray[np.int64]) -> list[Recording]:
        """The recordings of the background anchors among ``slots``, whose episodes are over."""
        done = [slot for slot in slots.tolist() if slot in self._recorded]
        self._recorded.difference_update(done)
        made = [(slot, self._recording(slot, self._now, self._options)) for slot in done]
        return [recording for _, recording in made]

    def take(self, slot: int, *, first_pair: int) -> Recording | None:
        """The episode that made the last step in ``slot``, from its start to that step, to be executed; None a second time.

        Args:
            slot: where it ran.
            first_pair: number of its first pair; those after it count up.
        """
        head = self._last
        if not head["replayable"][slot] or self._taken[slot] == head["episode"][slot] or not head["length"][slot]:
            return None
        self._taken[slot] = head["episode"][slot]
        recording = self._recording(slot, head, self._last_options)
        # Chosen for what was predicted of it, and with certainty.
        recording.propensity, recording.verified = 1.0, True
        numbers = iter(range(first_pair, first_pair + len(recording.pair)))
        recording.pair = [next(numbers) if pays else NO_PAIR for pays in recording.pays]
        return recording

    def _recording(self, slot: int, head: Mapping[str, NDArray[Any]], options: list[Mapping[str, Any] | None]) -> Recording:
        recording = Recording(
            episode=int(head["episode"][slot]),
            group=int(head["group"][slot]),
            context=int(head["context"][slot]),
            propensity=float(head["propensity"][slot]),
            seed=int(head["seed"][slot]),
            options=options[slot],
        )
        length = int(head["length"][slot])
        for entry in list(self._entries)[-length:] if length else []:
            row = int(entry.row[slot])
            said = float(entry.reward[row]), float(entry.std[row])
            recording.note(sample_at(self.space, entry.actions, row), int(entry.pair[row]), *said)
            recording.pays.append(bool(entry.pays[row]))
            if entry.features is not None:
                recording.features.append(entry.features[row].copy())
        return recording

    def forget(self) -> None:
        """Nothing is under way any more."""
        self._recorded.clear()
        self._entries.clear()
        self._now["length"][:] = 0
