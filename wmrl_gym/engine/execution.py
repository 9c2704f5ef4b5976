"""Real execution of an imagined environment's episodes: what it is, and how a factored environment is executed."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import RecordEpisodeStatistics
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.engine.info import StepInfo
from wmrl_gym.factored import Factored, Outcome, Step, resolve
from wmrl_gym.samples import stack_samples
from wmrl_gym.threads import Threads, tell_when_forked
from wmrl_gym.world_models import Interface

Actions: TypeAlias = Iterable[Any] | Callable[[NDArray[np.bool_] | None], Any]
"""An episode's actions, unbatched: all of them, or a function of the mask of legal ones, which ends the episode by None."""


def unstack(space: gym.Space[Any], items: Any, n: int) -> list[Any]:
    """The ``n`` items of a batch."""
    if n == 0:
        return []
    return list(iterate(batch_space(space, n), items))


@dataclass(frozen=True, slots=True)
class RealStep:
    """One really executed step of n rollouts.

    Args:
        step: what it returned.
        transitions: what a world model can learn from it; without the rows whose observation was not finite.
        cpu_s: CPU seconds that it cost; NaN where nobody counts them.
        wall_s: seconds that it ran.
        own: the environment's own info of each row; [] where ``step.info`` says all.
        finite: bool, shape (n,): the rows whose observation was finite; None where all were.
    """

    step: Step
    transitions: Transitions
    cpu_s: float
    wall_s: float
    own: list[dict[str, Any]] = field(default_factory=list)
    finite: NDArray[np.bool_] | None = None

    @property
    def usable(self) -> NDArray[np.bool_]:
        """The rows whose observation was finite, so that they stand in ``transitions``: bool, shape (n,)."""
        return np.ones(len(self.step.reward), bool) if self.finite is None else self.finite

    @property
    def over(self) -> NDArray[np.bool_]:
        """The rows whose episode has ended: bool, shape (n,)."""
        return self.step.terminated | self.step.truncated


class RealExecution(ABC):
    """Runs steps for real, at most ``max_real`` at once.

    Slots are the imagined environment's own numbers; a slot is *open* while it runs a real episode step by step.
    """

    interface: Interface
    masked = False
    """Whether the environment says which actions are legal."""
    knows_cpu = False
    """Whether it is counted how many CPU seconds real steps take."""

    def __init__(self, max_real: int) -> None:
        if max_real < 1:
            raise ValueError(f"max_real must be at least 1, got {max_real}")
        self.max_real = max_real
        self._fresh()

    def _fresh(self) -> None:
        self.threads = Threads(self.max_real, "wmrl-real")
        """The threads that wait for real execution."""
        self._lock, self._closing = threading.Lock(), threading.Event()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: the parent's threads may hold the lock for ever."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Threads and locks belong to a process; the copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key not in ("threads", "_lock", "_closing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    @property
    def spare(self) -> bool:
        """Whether an episode can be executed while others are under way."""
        return True

    @abstractmethod
    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, StepInfo]:
        """Start an episode for each of n ``slots``; those to ``keep`` stay open for :meth:`step`.

        Returns:
            The observations as a batch, and their info, with ``context`` always.
        """

    @abstractmethod
    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        """Execute one action (of the batch ``actions``) in each of the open ``slots``."""

    @abstractmethod
    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Actions) -> list[RealStep]:
        """Run a whole episode from its start with the given actions, until it or they end, or one is illegal. Thread-safe."""

    def submit(self, seed: int, options: Mapping[str, Any] | None, actions: Actions) -> Future[list[RealStep]]:
        """:meth:`replay`, in the background."""
        return self.threads.submit(self.replay, seed, options, actions)

    def action_masks(self, slot: int, *, start: bool) -> NDArray[np.bool_] | None:
        """Which actions are legal now in an open slot, or at the real start that its episode had: bool; None: not known."""
        return None

    @property
    def skipped(self) -> int:
        """Real steps and starts that were left out because their observation was not finite."""
        return 0

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The open real episodes.

        Raises:
            RuntimeError: one is open that cannot be saved.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""

    @abstractmethod
    def close(self) -> None:
        """Stop the threads and release what they used."""

    def _stop_threads(self) -> None:
        self._closing.set()
        self.threads.shutdown(wait=True, cancel_futures=True)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise RuntimeError("real execution is closed")


def chooser(actions: Actions) -> Callable[[NDArray[np.bool_] | None], Any]:
    """Actions as a function: each call takes the mask of legal actions and gives the next action, None after the last."""
    if callable(actions):
        return actions
    left = iter(actions)
    return lambda mask: next(left, None)


class FactoredExecution(RealExecution):
    """Real execution of a factored environment: only outcomes are executed, so any number of rollouts share its threads.

    Args:
        factored: the environment's parts.
        max_real: outcomes executed at once.
        owned: whether :meth:`close` closes ``factored`` too.
        statistics: the RecordEpisodeStatistics around the environment, which is never stepped itself: its statistics of real
            episodes are kept here.
    """

    knows_cpu = True

    def __init__(
        self,
        factored: Factored[Any, Any],
        *,
        max_real: int = 1,
        owned: bool = True,
        statistics: RecordEpisodeStatistics[Any, Any] | None = None,
    ) -> None:
        super().__init__(max_real)
        self.factored = factored
        self.owned = owned
        self.statistics = statistics
        self.interface = Interface(factored.observation_space, factored.action_space, factored.reward_range, factored)
        self._open: dict[int, tuple[Any, Any]] = {}
        self._counts: dict[int, tuple[float, int, float]] = {}

    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, StepInfo]:
        observation, info = self.factored.start(seeds, options)
        if keep.any():
            state = self.factored.begin(observation, info)
            for row in np.flatnonzero(keep).tolist():
                self._open[int(slots[row])] = (batch.take(state, [row]), batch.take(observation, [row]))
        if self.statistics is not None:
            self._counts |= {slot: (0.0, 0, time.perf_counter()) for slot in slots[keep].tolist()}
        return observation, StepInfo(len(slots), info)

    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        opened = [self._open[int(slot)] for slot in slots]
        state, observation = batch.concatenate([pair[0] for pair in opened]), batch.concatenate([pair[1] for pair in opened])
        after, real = self._advance(state, observation, actions, pool=self.threads if len(slots) > 1 else None)
        for row, slot in enumerate(slots):
            self._open[int(slot)] = (batch.take(after, [row]), batch.take(real.step.observation, [row]))
        if self.statistics is not None:
            return replace(real, own=[self._counted(slot, row, real) for row, slot in enumerate(slots.tolist())])
        return real

    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Actions) -> list[RealStep]:
        observation, info = self.factored.start(np.array([seed], np.int64), options)
        state = self.factored.begin(observation, info)
        steps: list[RealStep] = []
        choose = chooser(actions)
        while (action := choose(None)) is not None:
            self._check_open()
            state, real = self._advance(state, observation, stack_samples(self.interface.action_space, [action]))
            observation = real.step.observation
            steps.append(real)
            if real.over[0]:
                break
        return steps

    def submit(self, seed: int, options: Mapping[str, Any] | None, actions: Actions) -> Future[list[RealStep]]:
        if self.factored.needs_outcomes or not isinstance(actions, list):
            return super().submit(seed, options, actions)
        observation, info = self.factored.start(np.array([seed], np.int64), options)
        state = self.factored.begin(observation, info)
        batched = [stack_samples(self.interface.action_space, [action]) for action in actions]
        attempts = [self.factored.attempt(state, action) for action in batched]
        parts = [self.threads.submit(resolve, self.factored, attempt) for attempt in attempts]

        def settle(outcomes: list[Outcome]) -> list[RealStep]:
            at, seen, steps = state, observation, []
            for action, attempt, outcome in zip(batched, attempts, outcomes, strict=True):
                at, real = self._settle(at, seen, action, attempt=attempt, outcome=outcome)
                seen = real.step.observation
                steps.append(real)
                if real.over[0]:
                    break
            return steps

        return _gather(parts, settle)

    def state_dict(self) -> dict[str, Any]:
        return {"open": dict(self._open)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open = dict(state["open"])

    def close(self) -> None:
        self._stop_threads()
        self._open.clear()
        if self.owned:
            self.factored.close()

    def _advance(self, state: Any, observation: Any, actions: Any, *, pool: Executor | None = None) -> tuple[Any, RealStep]:
        attempt = self.factored.attempt(state, actions)
        return self._settle(state, observation, actions, attempt=attempt, outcome=resolve(self.factored, attempt, pool=pool))

    def _settle(self, state: Any, observation: Any, actions: Any, *, attempt: Any, outcome: Outcome) -> tuple[Any, RealStep]:
        after, step = self.factored.advance(state, attempt, outcome)
        transitions = Transitions(
            observation,
            actions,
            step.reward,
            step.observation,
            step.terminated,
            step.truncated,
            step.reward_valid,
            np.asarray(step.info["context"], np.int64),
            attempt,
            outcome,
        )
        return after, RealStep(step, transitions, float(outcome.cpu_s.sum()), float(outcome.wall_s.sum()))

    def _counted(self, slot: int, row: int, real: RealStep) -> dict[str, Any]:
        """A step's own info, with what the wrapper would have added at the end of its episode."""
        info = {key: column[row] for key, column in real.step.info.items()}
        paid, length, began = self._counts[slot]
        self._counts[slot] = paid, length, began = paid + float(real.step.reward[row]), length + 1, began
        if real.over[row] and self.statistics is not None:
            seconds, kept = round(time.perf_counter() - began, 6), self.statistics
            info[kept._stats_key] = {"r": paid, "l": length, "t": seconds}
            kept.time_queue.append(seconds)
            kept.return_queue.append(paid)
            kept.length_queue.append(length)
            kept.episode_count += 1
        return info


def _gather(parts: list[Future[Outcome]], settle: Callable[[list[Outcome]], list[RealStep]]) -> Future[list[RealStep]]:
    """One future of all ``parts``: done when they all are, with the error of the first that failed."""
    whole: Future[list[RealStep]] = Future()
    lock, left = threading.Lock(), [len(parts)]

    def one_done(part: Future[Outcome]) -> None:
        with lock:
            left[0] -= 1
            if left[0] or whole.done():
                return
        if not whole.set_running_or_notify_cancel():
            return
        try:
            whole.set_result(settle([each.result() for each in parts]))
        except BaseException as error:  # handed on to whoever asks for the result
            whole.set_exception(error)

    def cancelled(_: Future[list[RealStep]]) -> None:
        if whole.cancelled():
            for part in parts:
                part.cancel()

    whole.add_done_callback(cancelled)
    if not parts:
        whole.set_result([])
    for part in parts:
        part.add_done_callback(one_done)
    return whole
