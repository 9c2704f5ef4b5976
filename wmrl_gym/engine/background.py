"""Imagined episodes that are executed while the agent goes on, or because a prediction looks too good to be true."""

from __future__ import annotations

import warnings
from concurrent.futures import FIRST_COMPLETED, Future, wait

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.engine.episodes import Episodes
from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.engine.ledger import Ledger
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.recording import Recorder, Recording
from wmrl_gym.threads import tell_when_forked


class BackgroundAnchors:
    """Imagined episodes that have ended and are to be executed: they wait or run while the agent goes on.

    An episode whose execution raises is lost, with a warning. A forked child executes those again that were under way.

    Args:
        real: what executes them.
        max_in_flight: submitted episodes that have not finished; one more waits for one of them.
    """

    def __init__(self, real: RealExecution, *, max_in_flight: int) -> None:
        self.real = real
        self.max_in_flight = max_in_flight
        self._running: dict[Future[list[RealStep]], Recording] = {}
        self._forked = False
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: what is under way is executed by the parent."""
        self._forked = True

    @property
    def in_flight(self) -> int:
        """Episodes that wait or run."""
        return len(self._running)

    @property
    def unfinished(self) -> list[Recording]:
        """The episodes that wait or run, in the order of submission."""
        return list(self._running.values())

    def submit(self, recording: Recording) -> None:
        """Execute a recorded episode, as soon as fewer than ``max_in_flight`` are."""
        self._again()
        if len(self._running) >= self.max_in_flight:
            unfinished = [future for future in self._running if not future.done()]
            if len(unfinished) >= self.max_in_flight:
                wait(unfinished, return_when=FIRST_COMPLETED)
        self.resubmit(recording)

    def resubmit(self, recording: Recording) -> None:
        """Execute a recorded episode, however many are."""
        self._running[self.real.submit(recording.seed, recording.options, recording.actions)] = recording

    def finished(self) -> list[tuple[Recording, list[RealStep] | None]]:
        """The episodes that have finished since the last call; None for one that infrastructure lost."""
        self._again()
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
        self._again()
        if self._running:
            wait(list(self._running), timeout=timeout_s)

    def wait_for_one(self) -> None:
        """Wait until one episode has finished, if any runs."""
        self._again()
        if self._running:
            wait(list(self._running), return_when=FIRST_COMPLETED)

    def cancel(self) -> None:
        """Take back the episodes that have not begun to run, and forget the others."""
        for future in self._running:
            future.cancel()
        self._running.clear()

    def _again(self) -> None:
        """In a forked child: execute what would never be done there."""
        if self._forked:
            self._forked = False
            running, self._running = self._running, {}
            for future, recording in running.items():
                if future.done():
                    self._running[future] = recording
                else:
                    self.resubmit(recording)


class Verification:
    """Executes imagined episodes on request, because a reward predicted in them looks too good to be true.

    Args:
        real: real execution.
        recorder: keeps what was done in them.
        background: the background anchors, which it joins where these do not block.
        ledger: takes in what is executed.
        episodes: labels the groups.
        options: of the engine.

    Raises:
        ValueError: there is one real environment, no way to make a second, and it may be busy.
    """

    def __init__(
        self,
        real: RealExecution,
        *,
        recorder: Recorder,
        background: BackgroundAnchors,
        ledger: Ledger,
        episodes: Episodes,
        options: EngineOptions,
    ) -> None:
        if not real.spare:
            raise ValueError(
                "imagined episodes can be executed after all in a second instance only: use an environment made by "
                "gymnasium.make, or WorldModelVectorEnv with a function that makes one"
            )
        recorder.everything = True
        self._recorder, self._background = recorder, background
        self._real, self._ledger, self._episodes = real, ledger, episodes
        self._blocking, self._max_in_flight = options.anchor_mode == "blocking", options.max_in_flight

    def execute(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.bool_], dict[int, float]]:
        """Execute the imagined episodes that made the last step in ``slots``, as many as there is room for.

        With blocking anchors at most ``max_real`` are executed, and waited for; else as many as may be in flight, and their pairs
        arrive like those of any anchor. Each episode is executed once.

        Returns:
            bool, shape (n,): which of ``slots`` are executed; and for those that were waited for the truth of the last step's
            reward, by slot.
        """
        room = self._real.max_real if self._blocking else self._max_in_flight - self._background.in_flight
        taken = np.zeros(len(slots), bool)
        recordings: dict[int, Recording] = {}
        for at, slot in enumerate(slots.tolist()):
            recording = self._recorder.take(slot, first_pair=self._ledger.numbered) if len(recordings) < room else None
            if recording is not None:
                self._ledger.numbers(len(recording.numbers))
                recording.group = int(self._episodes.label(np.array([recording.group]))[0])
                taken[at], recordings[slot] = True, recording
        if self._blocking:
            with self._ledger.cost.timing("wait_s"):
                return taken, self._waited_for(recordings)
        for recording in recordings.values():
            self._background.resubmit(recording)
        return taken, {}

    def _waited_for(self, recordings: dict[int, Recording]) -> dict[int, float]:
        """Execute recordings side by side; the truth of each one's last reward, by slot."""
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
            known = recording.truths(steps)
            if recording.pair[-1] in known:
                truths[slot] = known[recording.pair[-1]]
        return truths
