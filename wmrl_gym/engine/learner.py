"""Learning: when the world model is updated, and how that goes on beside stepping."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from wmrl_gym.data import TransitionBuffer, Transitions
from wmrl_gym.world_models import WorldModel


class BackgroundUpdates:
    """At most one update at a time; what it learnt is adopted by the thread that steps.

    Args:
        model: one that ``learns_in_background``.
    """

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self._running: Future[tuple[Any, float]] | None = None
        self._thread: ThreadPoolExecutor | None = None

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

    def adopt(self, *, wait: bool) -> tuple[dict[str, float], float] | None:
        """Take over what has been learnt; None where nothing has, or not yet, unless ``wait``.

        Returns:
            The update's measures, and the seconds that it took.
        """
        if self._running is None or not (wait or self._running.done()):
            return None
        computed, seconds = self._running.result()
        self._running = None
        return self.model.apply_update(computed), seconds

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
        return self.model.compute_update(transitions, np.random.default_rng(seed)), time.perf_counter() - started


class Learner:
    """Keeps a world model up with the real transitions.

    Args:
        model: what learns.
        buffer: where real transitions arrive.
        every: transitions between two updates; 0 is never. A model that knows nothing is not waited with.
        aside: update on a thread of its own, for a model that ``learns_in_background``.
    """

    def __init__(self, model: WorldModel, buffer: TransitionBuffer, *, every: int, aside: bool) -> None:
        self.model, self.buffer, self.every = model, buffer, every
        self.measures: dict[str, float] = {}
        self.learnt = 0
        """How many of the transitions that ever arrived the updates have had."""
        self._aside = BackgroundUpdates(model) if aside else None
        self._spent = 0.0

    @property
    def in_background(self) -> bool:
        """Whether updates of a fitted model go on beside stepping."""
        return self._aside is not None

    @property
    def running(self) -> bool:
        """Whether such an update is under way, or waits to be adopted."""
        return self._aside is not None and self._aside.running

    def learn(self, rng: np.random.Generator) -> None:
        """Update if enough transitions are new, and adopt an update that has finished in the background."""
        self._adopt(wait=False)
        due = self.every if self.model.fitted else 1
        if not self.every or self.buffer.added - self.learnt < due:
            return
        if self._aside is None or not self.model.fitted:
            self.update(rng)
        elif not self.running:
            new = self._new()
            if new is not None:
                self._aside.begin(new, seed=int(rng.integers(2**31)))

    def update(self, rng: np.random.Generator) -> None:
        """Update on the transitions that are new, and wait for that."""
        self.settle()
        new = self._new()
        if new is not None:
            self._fit(new, rng)

    def learn_from(self, prior: Transitions, rng: np.random.Generator) -> None:
        """Update on transitions that were not made here, all of them, however few the buffer keeps; then they join it."""
        self.update(rng)
        self._fit(prior, rng)
        self.buffer.add(prior)
        self.learnt = self.buffer.added

    def settle(self) -> None:
        """Wait for an update in the background and adopt it, so that all that :attr:`learnt` says is in the model."""
        self._adopt(wait=True)

    def restore(self, learnt: int) -> None:
        """Go on from a saved :attr:`learnt`; an update that is under way is forgotten."""
        self.learnt = learnt
        if self._aside is not None:
            self._aside.forget()

    def spent(self) -> float:
        """Seconds of updates since the last call."""
        seconds, self._spent = self._spent, 0.0
        return seconds

    def close(self) -> None:
        """Stop what goes on in the background."""
        if self._aside is not None:
            self._aside.close()

    def _fit(self, transitions: Transitions, rng: np.random.Generator) -> None:
        started = time.perf_counter()
        self.measures = self.model.update(transitions, rng)
        self._spent += time.perf_counter() - started

    def _new(self) -> Transitions | None:
        new = self.buffer.since(self.learnt)
        self.learnt = self.buffer.added
        return new

    def _adopt(self, *, wait: bool) -> None:
        adopted = None if self._aside is None else self._aside.adopt(wait=wait)
        if adopted is not None:
            measures, seconds = adopted
            self.measures = measures or self.measures
            self._spent += seconds
