"""Real execution behind an imagined environment: one protocol over factored environments and over plain Gymnasium ones."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.factored import Factored, Outcome, Step, resolve
from wmrl_gym.slots import stack_samples
from wmrl_gym.world_models import Interface


def unstack(space: gym.Space[Any], items: Any, n: int) -> list[Any]:
    """The ``n`` items of a batch."""
    if n == 0:
        return []
    return list(iterate(batch_space(space, n), items))


@dataclass(frozen=True, slots=True)
class RealStep:
    """One really executed step of n rollouts: what it returned, what a world model can learn from it, what it cost."""

    step: Step
    transitions: Transitions
    cpu_s: float
    wall_s: float
    raw_info: list[dict[str, Any]] = field(default_factory=list)


class RealExecution(ABC):
    """Runs steps for real, at most ``max_real`` at once.

    Slots are the imagined environment's own numbers; a slot is *open* while it runs a real episode step by step.
    """

    interface: Interface

    def __init__(self, max_real: int) -> None:
        if max_real < 1:
            raise ValueError(f"max_real must be at least 1, got {max_real}")
        self.max_real = max_real
        self._threads: ThreadPoolExecutor | None = None
        self._lock, self._closing = threading.Lock(), threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        # Threads and locks belong to a process; the copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key not in ("_threads", "_lock", "_closing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._threads, self._lock, self._closing = None, threading.Lock(), threading.Event()

    @property
    def spare(self) -> bool:
        """Whether an episode can be executed while others are under way."""
        return True

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that wait for real execution; made when first needed, so that an unused environment pickles."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.max_real, thread_name_prefix="wmrl-real")
        return self._threads

    @abstractmethod
    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Start an episode for each of n ``slots``; those to ``keep`` stay open for :meth:`step`.

        Returns:
            The observations as a batch, and arrays of n rows: the infos that are numbers, and ``context`` always.
        """

    @abstractmethod
    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        """Execute one action (of the batch ``actions``) in each of the open ``slots``."""

    @abstractmethod
    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Iterable[Any]) -> list[RealStep]:
        """Run a whole episode from its start with the given (unbatched) actions, until it ends or they do. Thread-safe."""

    def submit(self, seed: int, options: Mapping[str, Any] | None, actions: Iterable[Any]) -> Future[list[RealStep]]:
        """:meth:`replay`, in the background."""
        return self.threads.submit(self.replay, seed, options, actions)

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
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None


class FactoredExecution(RealExecution):
    """Real execution of a factored environment: only outcomes are executed, so any number of rollouts share one pool.

    Args:
        factored: the environment's parts.
        max_real: outcomes executed at once.
        owned: whether :meth:`close` closes ``factored`` too.
    """

    def __init__(self, factored: Factored[Any, Any], *, max_real: int = 1, owned: bool = True) -> None:
        super().__init__(max_real)
        self.factored = factored
        self.owned = owned
        self.interface = Interface(factored.observation_space, factored.action_space, factored.reward_range, factored)
        self._open: dict[int, tuple[Any, Any]] = {}

    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        observation, info = self.factored.start(seeds, options)
        if keep.any():
            state = self.factored.begin(observation, info)
            for row in np.flatnonzero(keep).tolist():
                self._open[int(slots[row])] = (batch.take(state, [row]), batch.take(observation, [row]))
        return observation, info

    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        opened = [self._open[int(slot)] for slot in slots]
        state, observation = batch.concatenate([pair[0] for pair in opened]), batch.concatenate([pair[1] for pair in opened])
        after, real = self._advance(state, observation, actions, pool=self.threads if len(slots) > 1 else None)
        for row, slot in enumerate(slots):
            self._open[int(slot)] = (batch.take(after, [row]), batch.take(real.step.observation, [row]))
        return real

    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Iterable[Any]) -> list[RealStep]:
        observation, info = self.factored.start(np.array([seed], np.int64), options)
        state = self.factored.begin(observation, info)
        steps: list[RealStep] = []
        for action in actions:
            actions_of_one = stack_samples(self.interface.action_space, [action])
            if self._closing.is_set():
                raise RuntimeError("real execution was closed in the middle of an episode")
            state, real = self._advance(state, observation, actions_of_one)
            observation = real.step.observation
            steps.append(real)
            if real.step.terminated[0] or real.step.truncated[0]:
                break
        return steps

    def submit(self, seed: int, options: Mapping[str, Any] | None, actions: Iterable[Any]) -> Future[list[RealStep]]:
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
                if real.step.terminated[0] or real.step.truncated[0]:
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

    def _advance(
        self, state: Any, observation: Any, actions: Any, *, pool: ThreadPoolExecutor | None = None
    ) -> tuple[Any, RealStep]:
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


def _gather(parts: list[Future[Outcome]], settle: Callable[[list[Outcome]], list[RealStep]]) -> Future[list[RealStep]]:
    """One future of all ``parts``: done when they are, cancelled or failed with the first of them."""
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


class EnvExecution(RealExecution):
    """Real execution of any Gymnasium environment, by instances made as they are needed.

    Args:
        make: makes one instance.
        first: an instance that exists already and is used before any is made.
        max_real: steps executed at once. Step-by-step anchors need an instance each while their episodes last; anchors in the
            background never need more than ``max_real`` instances.
        reward_range: (low, high) of one step's reward.

    Raises:
        TypeError: the observation space is a Tuple, which batches ambiguously.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]] | None = None,
        *,
        first: gym.Env[Any, Any] | None = None,
        max_real: int = 1,
        reward_range: tuple[float, float] = (-np.inf, np.inf),
    ) -> None:
        super().__init__(max_real)
        if first is None:
            if make is None:
                raise ValueError("EnvExecution needs an environment or a function that makes one")
            first = make()
        _refuse_tuples(first.observation_space)
        self._make = make
        self._free: list[gym.Env[Any, Any]] = [first]
        self._all: list[gym.Env[Any, Any]] = [first]
        self._open: dict[int, tuple[gym.Env[Any, Any], Any, int]] = {}
        self.interface = Interface(first.observation_space, first.action_space, reward_range, None)

    @property
    def spare(self) -> bool:
        return self._make is not None

    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        observations, infos = [], []
        for slot, seed, kept in zip(slots.tolist(), seeds.tolist(), keep.tolist(), strict=True):
            env = self._release(slot) or self._acquire()
            observation, info = env.reset(seed=seed, options=None if options is None else dict(options))
            if kept:
                self._open[slot] = (env, observation, _context(info, 0))
            observations.append(stack_samples(self.interface.observation_space, [observation]))
            infos.append({**info, "context": _context(info, 0)})
            if not kept:
                self._give_back(env)
        shared = [key for key in infos[0] if all(_is_number(info.get(key)) for info in infos)]
        return batch.concatenate(observations), {key: np.asarray([info[key] for info in infos]) for key in shared}

    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        chosen = unstack(self.interface.action_space, actions, len(slots))
        opened = [self._open[int(slot)] for slot in slots]
        # Stacking copies: an environment may write its next observation over the last one.
        before = stack_samples(self.interface.observation_space, [observation for _, observation, _ in opened])
        run = self.threads.map if len(slots) > 1 else map
        started = time.perf_counter()
        results = list(run(_step_one, [env for env, _, _ in opened], chosen))
        contexts = [context for _, _, context in opened]
        real = self._collect(before, actions, results, contexts=contexts, wall_s=time.perf_counter() - started)
        for slot, (env, _, context), result in zip(slots, opened, results, strict=True):
            self._open[int(slot)] = (env, result[0], context)
            if result[2] or result[3]:
                self._give_back(self._open.pop(int(slot))[0])
        return real

    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Iterable[Any]) -> list[RealStep]:
        env = self._acquire()
        try:
            observation, info = env.reset(seed=seed, options=None if options is None else dict(options))
            context = _context(info, 0)
            steps: list[RealStep] = []
            for action in actions:
                if self._closing.is_set():
                    raise RuntimeError("real execution was closed in the middle of an episode")
                before = stack_samples(self.interface.observation_space, [observation])
                started = time.perf_counter()
                result = _step_one(env, action)
                taken = time.perf_counter() - started
                batched = stack_samples(self.interface.action_space, [action])
                steps.append(self._collect(before, batched, [result], contexts=[context], wall_s=taken))
                observation = result[0]
                if result[2] or result[3]:
                    break
            return steps
        finally:
            self._give_back(env)

    def state_dict(self) -> dict[str, Any]:
        if self._open:
            raise RuntimeError(
                f"slots {sorted(self._open)} are in the middle of real episodes, whose environments cannot be saved: "
                "save when those episodes have ended"
            )
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for slot in list(self._open):
            self._give_back(self._open.pop(slot)[0])

    def close(self) -> None:
        self._stop_threads()
        for env in self._all:
            env.close()
        self._all, self._free, self._open = [], [], {}

    def _acquire(self) -> gym.Env[Any, Any]:
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._make is None:
                raise RuntimeError("the only real environment is busy with another episode, and no function makes a second")
            env = self._make()
            self._all.append(env)
            return env

    def _give_back(self, env: gym.Env[Any, Any]) -> None:
        with self._lock:
            self._free.append(env)

    def _release(self, slot: int) -> gym.Env[Any, Any] | None:
        opened = self._open.pop(slot, None)
        return None if opened is None else opened[0]

    def _collect(self, before: Any, actions: Any, results: list[Any], *, contexts: list[int], wall_s: float) -> RealStep:
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        n = len(results)
        space = self.interface.observation_space
        reward = np.array([float(value) for value in rewards])
        valid = np.isfinite(reward) & np.array([bool(info.get("reward_valid", True)) for info in infos])
        context = np.array([_context(info, own) for info, own in zip(infos, contexts, strict=True)], dtype=np.int64)
        after = stack_samples(space, list(observations))
        ended, cut = np.array(terminated, bool), np.array(truncated, bool)
        step = Step(after, np.where(valid, reward, 0.0), ended, cut, np.ones(n, bool), valid, {"context": context})
        transitions = Transitions(before, actions, step.reward, after, ended, cut, valid, context)
        return RealStep(step, transitions, wall_s, wall_s, list(infos))


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.number, np.bool_))


def _context(info: Mapping[str, Any], default: int) -> int:
    """The task that an info names, if it does so by a whole number."""
    value = info.get("context", default)
    return int(value) if isinstance(value, (int, np.integer)) else default


def _refuse_tuples(space: gym.Space[Any]) -> None:
    if isinstance(space, gym.spaces.Tuple):
        raise TypeError(f"Tuple observation spaces are not supported, name the parts in a Dict: {space}")
    for part in space.spaces.values() if isinstance(space, gym.spaces.Dict) else ():
        _refuse_tuples(part)


def _step_one(env: gym.Env[Any, Any], action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    return env.step(action)
