"""Learning beside stepping: an update of the world model on a thread of its own."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from wmrl_gym.data import Transitions
from wmrl_gym.world_models import WorldModel


class BackgroundUpdates:
    """At most one update at a time; what it learnt is adopted by the thread that steps.

    Args:
        model: one that ``learns_aside``.
    """

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self._running: Future[tuple[Any, float]] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._spent = 0.0

    @property
    def running(self) -> bool:
        """Whether an update is under way, or waits to be adopted."""
        return self._running is not None

    def begin(self, transitions: Transitions, *, seed: int) -> None:
        """Start an update on transitions that are new to the model."""
        if self._running is not None:
            raise RuntimeError("an update is under way: adopt it before the next begins")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="wmrl-update")
        self._running = self._thread.submit(self._digest, transitions, seed)

    def adopt(self, *, wait: bool) -> dict[str, float] | None:
        """Take over what has been learnt, and give its measures; None where nothing has, or not yet, unless ``wait``."""
        if self._running is None or not (wait or self._running.done()):
            return None
        digested, seconds = self._running.result()
        self._running = None
        self._spent += seconds
        return self.model.adopt(digested)

    def spent(self) -> float:
        """Seconds of the adopted updates since the last call."""
        seconds, self._spent = self._spent, 0.0
        return seconds

    def forget(self) -> None:
        """Adopt nothing of an update that is under way."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def close(self) -> None:
        """Wait for the thread to end; what it still learns is lost."""
        self.forget()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def _digest(self, transitions: Transitions, seed: int) -> tuple[Any, float]:
        started = time.perf_counter()
        return self.model.digest(transitions, np.random.default_rng(seed)), time.perf_counter() - started
