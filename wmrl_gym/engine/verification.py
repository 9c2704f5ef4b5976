"""Imagined episodes that are executed after all, such as those that look too good to be true."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.engine.background import BackgroundAnchors, Recording
from wmrl_gym.engine.episodes import Episodes
from wmrl_gym.engine.execution import RealExecution
from wmrl_gym.engine.ledger import Ledger
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.recording import EpisodeLog


class Verification:
    """Keeps what was done in imagined episodes, and executes the ones that are asked for.

    Args:
        real: real execution.
        behind: the background anchors, which it joins where these do not block.
        ledger: takes in what is executed.
        episodes: labels the groups.
        options: of the engine.

    Raises:
        ValueError: there is one real environment, no way to make a second, and it may be busy.
    """

    def __init__(
        self, real: RealExecution, *, behind: BackgroundAnchors, ledger: Ledger, episodes: Episodes, options: EngineOptions
    ) -> None:
        if not real.spare:
            raise ValueError(
                "imagined episodes can be executed after all in a second instance only: use an environment made by "
                "gymnasium.make, or WorldModelVectorEnv with a function that makes one"
            )
        self.log = EpisodeLog(real.interface.action_space, options.num_slots)
        self._real, self._behind, self._ledger, self._episodes = real, behind, ledger, episodes
        self._blocking, self._max_in_flight = options.anchor_mode == "blocking", options.max_in_flight

    def execute(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.bool_], dict[int, float]]:
        """Execute the imagined episodes that made the last step in ``slots``, as many as there is room for.

        With blocking anchors at most ``max_real`` are executed, and waited for; else as many as may be in flight, and their pairs
        arrive like those of any anchor. Each episode is executed once.

        Returns:
            bool, shape (n,): which of ``slots`` are executed; and for those that were waited for the truth of the last step's
            reward, by slot.
        """
        room = self._real.max_real if self._blocking else self._max_in_flight - self._behind.in_flight
        taken = np.zeros(len(slots), bool)
        recordings: dict[int, Recording] = {}
        for at, slot in enumerate(slots.tolist()):
            recording = self.log.take(slot, first_pair=self._ledger.numbered) if len(recordings) < room else None
            if recording is not None:
                self._ledger.numbers(len(recording.numbers))
                recording.group = int(self._episodes.label(np.array([recording.group]))[0])
                taken[at], recordings[slot] = True, recording
        if self._blocking:
            return taken, self._waited_for(recordings)
        for recording in recordings.values():
            self._behind.resubmit(recording)
        return taken, {}

    def _waited_for(self, recordings: dict[int, Recording]) -> dict[int, float]:
        """Execute recordings side by side; the truth of each one's last reward, by slot."""
        started = time.perf_counter()
        futures = {slot: self._real.submit(each.seed, each.options, each.actions) for slot, each in recordings.items()}
        truths: dict[int, float] = {}
        for slot, future in futures.items():
            error, recording = future.exception(), recordings[slot]
            if error is not None:
                warnings.warn(f"an episode could not be executed and counts as unknown: {error!r}", stacklevel=2)
                self._ledger.unknown += 1
                continue
            steps = future.result()
            self._ledger.take_in(steps)
            self._ledger.send(recording.pairs(steps))
            told = recording.truths(steps)
            if recording.pair[-1] in told:
                truths[slot] = told[recording.pair[-1]]
        self._ledger.cost.wait_s += time.perf_counter() - started
        return truths
