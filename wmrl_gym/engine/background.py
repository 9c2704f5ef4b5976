"""Anchors behind imagined episodes: the same actions, executed from the same start, while the agent goes on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmrl_gym.corrections.stream import Pairs
from wmrl_gym.engine.execution import RealExecution, RealStep

NO_PAIR = -1
"""Number of a step that makes no pair."""


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
        )

    @property
    def numbers(self) -> list[int]:
        """The numbers of its pairs."""
        return [number for number in self.pair if number != NO_PAIR]

    def truths(self, steps: list[RealStep]) -> dict[int, float]:
        """What each step that was given a reward should have been given, where real steps with the same actions tell.

        A real episode that ended before the imagined one pays nothing afterwards, and what it paid at steps at which the imagined
        one did not goes to the next that did. Not known is what infrastructure lost, and what a real episode that was still going
        on had not paid.
        """
        if not all(real.step.reward_valid[0] for real in steps):
            return {}
        over = bool(steps) and bool(steps[-1].step.terminated[0])
        told: dict[int, float] = {}
        owed = 0.0
        for depth, number in enumerate(self.pair):
            due = depth < len(steps) and bool(steps[depth].step.reward_due[0])
            owed += float(steps[depth].step.reward[0]) if due else 0.0
            if number != NO_PAIR and (due or (over and depth >= len(steps) - 1)):
                told[number] = owed
                owed = 0.0
        return told


class BackgroundAnchors:
    """Recordings of episodes under way, and the finished ones that wait for execution or run.

    Args:
        real: what executes them.
        max_in_flight: submitted episodes that have not finished; one more waits for one of them.
    """

    def __init__(self, real: RealExecution, *, max_in_flight: int) -> None:
        self.real = real
        self.max_in_flight = max_in_flight
        self.recordings: dict[int, Recording] = {}
        self._running: dict[Future[list[RealStep]], Recording] = {}

    @property
    def in_flight(self) -> int:
        """Episodes that wait or run."""
        return len(self._running)

    @property
    def unfinished(self) -> list[Recording]:
        """The episodes that wait or run, in the order of submission."""
        return list(self._running.values())

    def record(self, slot: int, recording: Recording) -> None:
        """Begin to record the episode in ``slot``."""
        self.recordings[slot] = recording

    def drop(self, slot: int) -> list[int]:
        """Forget the episode that was being recorded in ``slot``, if any; returns the numbers of its pairs, now lost."""
        recording = self.recordings.pop(slot, None)
        return [] if recording is None else recording.numbers

    def submit(self, slot: int) -> None:
        """The episode in ``slot`` has ended: execute it, as soon as fewer than ``max_in_flight`` are."""
        if len(self._running) >= self.max_in_flight:
            unfinished = [future for future in self._running if not future.done()]
            if len(unfinished) >= self.max_in_flight:
                wait(unfinished, return_when=FIRST_COMPLETED)
        self.resubmit(self.recordings.pop(slot))

    def resubmit(self, recording: Recording) -> None:
        """Execute a recorded episode."""
        self._running[self.real.submit(recording.seed, recording.options, recording.actions)] = recording

    def finished(self) -> list[tuple[Recording, list[RealStep] | None]]:
        """The episodes that have finished since the last call; None for one that infrastructure lost."""
        done = [future for future in self._running if future.done()]
        results: list[tuple[Recording, list[RealStep] | None]] = []
        for future in done:
            recording, error = self._running.pop(future), future.exception()
            if error is not None:
                warnings.warn(f"a background anchor was lost and counts as unknown: {error!r}", stacklevel=2)
            results.append((recording, None if error is not None else future.result()))
        return results

    def wait(self, timeout_s: float) -> None:
        """Wait until no episode runs, at most ``timeout_s`` seconds."""
        if self._running:
            wait(list(self._running), timeout=timeout_s)

    def wait_for_one(self) -> None:
        """Wait until one episode has finished, if any runs."""
        if self._running:
            wait(list(self._running), return_when=FIRST_COMPLETED)

    def cancel(self) -> None:
        """Take back the episodes that have not begun to run, and forget the others."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        self.recordings.clear()
