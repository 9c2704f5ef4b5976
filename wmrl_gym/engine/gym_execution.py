"""Real execution of any Gymnasium environment, by instances made as they are needed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.engine.execution import Actions, RealExecution, RealStep, chooser, unstack
from wmrl_gym.engine.info import StepInfo
from wmrl_gym.factored import Step
from wmrl_gym.samples import stack_samples
from wmrl_gym.world_models import Interface

_TRIES = 10
"""Resets whose observation is not finite, in a row, after which an environment is given up."""


class EnvExecution(RealExecution):
    """Real execution of any Gymnasium environment, by instances made as they are needed.

    An observation that is not finite, such as a sensor's NaN, ends its episode: truncated, its reward not valid, the last usable
    observation in its place. It is counted, and nothing learns from it.

    An instance that raised is closed and not used again where another can be made, but for ``first``. How much CPU time steps
    take is not known: they may run in threads and processes of their own.

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
        self._start_masks: dict[int, NDArray[np.bool_]] = {}
        self._skipped = 0
        self.masked = first.has_wrapper_attr("action_masks")
        self.interface = Interface(first.observation_space, first.action_space, reward_range, None)

    @property
    def spare(self) -> bool:
        return self._make is not None

    @property
    def skipped(self) -> int:
        return self._skipped

    def start(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], *, options: Mapping[str, Any] | None, keep: NDArray[np.bool_]
    ) -> tuple[Any, StepInfo]:
        observations, infos = [], []
        for slot, seed, kept in zip(slots.tolist(), seeds.tolist(), keep.tolist(), strict=True):
            env = self._release(slot) or self._acquire()
            try:
                observation, info = self._reset(env, seed, options)
            except BaseException:
                self._retire(env)
                raise
            if self.masked:
                self._start_masks[slot] = masks_of(env)
            if kept:
                self._open[slot] = (env, observation, _context(info, 0))
            observations.append(stack_samples(self.interface.observation_space, [observation]))
            infos.append(info)
            if not kept:
                self._give_back(env)
        shared = [key for key in infos[0] if all(_is_number(info.get(key)) for info in infos)]
        columns = {key: np.asarray([info[key] for info in infos]) for key in shared}
        columns["context"] = np.array([_context(info, 0) for info in infos], np.int64)
        return batch.concatenate(observations), StepInfo(len(slots), columns, own=infos)

    def step(self, slots: NDArray[np.int64], actions: Any) -> RealStep:
        chosen = unstack(self.interface.action_space, actions, len(slots))
        opened = [self._opened(slot) for slot in slots.tolist()]
        # Stacking copies: an environment may write its next observation over the last one.
        before = stack_samples(self.interface.observation_space, [observation for _, observation, _ in opened])
        started, contexts = time.perf_counter(), [context for _, _, context in opened]
        try:
            results = self._step_all([env for env, _, _ in opened], chosen)
            real = self._collect(before, actions, results, contexts=contexts, wall_s=time.perf_counter() - started)
        except Exception:
            for slot in slots.tolist():  # the others have been stepped, and nobody has seen it
                self._retire(self._open.pop(slot)[0])
            raise
        for slot, (env, _, context), result, over in zip(slots.tolist(), opened, results, real.over.tolist(), strict=True):
            self._open[slot] = (env, result[0], context)
            if over:
                self._give_back(self._open.pop(slot)[0])
        return real

    def replay(self, seed: int, options: Mapping[str, Any] | None, actions: Actions) -> list[RealStep]:
        env, space = self._acquire(), self.interface.action_space
        try:
            observation, info = self._reset(env, seed, options)
            context = _context(info, 0)
            steps: list[RealStep] = []
            choose = chooser(actions)
            over = False
            while not over:
                mask = masks_of(env) if self.masked else None
                action = choose(mask)
                # What was legal in an imagined state need not be in the real one; what comes after it cannot be known.
                if action is None or (mask is not None and not legal(space, mask, action)):
                    break
                self._check_open()
                before = stack_samples(self.interface.observation_space, [observation])
                started = time.perf_counter()
                result = _step_one(env, action)
                taken = time.perf_counter() - started
                steps.append(self._collect(before, stack_samples(space, [action]), [result], contexts=[context], wall_s=taken))
                observation, over = result[0], bool(steps[-1].over[0])
        except BaseException:
            self._retire(env)
            raise
        self._give_back(env)
        return steps

    def action_masks(self, slot: int, *, start: bool) -> NDArray[np.bool_] | None:
        if slot in self._open:
            return masks_of(self._open[slot][0])
        return self._start_masks.get(slot) if start else None

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
        with contextlib.ExitStack() as closing:  # each of them, should one raise
            for env in self._all:
                closing.callback(env.close)
            self._all, self._free, self._open = [], [], {}

    def _reset(self, env: gym.Env[Any, Any], seed: int, options: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset for real; a start whose observation is not finite is left out, and the next one taken."""
        for attempt in range(_TRIES):
            observation, info = env.reset(seed=seed + attempt, options=None if options is None else dict(options))
            if finite(self.interface.observation_space, observation):
                return observation, info
            self._skipped += 1
        raise RuntimeError(f"{_TRIES} resets in a row of {env} gave an observation that is not finite, the last {observation!r}")

    def _step_all(self, envs: list[gym.Env[Any, Any]], actions: list[Any]) -> list[Any]:
        """One step of each; when it raises, none is being stepped any more."""
        if len(envs) == 1:
            return [_step_one(envs[0], actions[0])]
        steps = [self.threads.submit(_step_one, env, action) for env, action in zip(envs, actions, strict=True)]
        wait(steps)
        return [step.result() for step in steps]

    def _opened(self, slot: int) -> tuple[gym.Env[Any, Any], Any, int]:
        if slot not in self._open:
            raise RuntimeError(f"slot {slot} has no real episode under way, since its last step or reset failed: reset it first")
        return self._open[slot]

    def _acquire(self) -> gym.Env[Any, Any]:
        self._check_open()
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._make is None:
                raise RuntimeError("the only real environment is busy with another episode, and no function makes a second")
            env = self._make()
            self._all.append(env)
            return env

    def _retire(self, env: gym.Env[Any, Any]) -> None:
        """Do without an instance that raised, if another one can be made."""
        if self._make is None or env is self._all[0]:
            self._give_back(env)
            return
        with self._lock:
            self._all.remove(env)
        with contextlib.suppress(Exception):  # it has told what is wrong already
            env.close()

    def _give_back(self, env: gym.Env[Any, Any]) -> None:
        with self._lock:
            self._free.append(env)

    def _release(self, slot: int) -> gym.Env[Any, Any] | None:
        opened = self._open.pop(slot, None)
        return None if opened is None else opened[0]

    def _collect(self, before: Any, actions: Any, results: list[Any], *, contexts: list[int], wall_s: float) -> RealStep:
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        n, space = len(results), self.interface.observation_space
        usable = np.array([finite(space, observation) for observation in observations])
        reward = np.array([float(value) for value in rewards])
        valid = np.isfinite(reward) & usable & np.array([bool(info.get("reward_valid", True)) for info in infos])
        context = np.array([_context(info, own) for info, own in zip(infos, contexts, strict=True)], dtype=np.int64)
        if usable.all():
            after = stack_samples(space, list(observations))
        else:
            self._skipped += int((~usable).sum())
            kept = unstack(space, before, n)
            after = stack_samples(
                space, [seen if ok else kept[row] for row, (seen, ok) in enumerate(zip(observations, usable, strict=True))]
            )
        ended, cut = np.array(terminated, bool) & usable, np.array(truncated, bool) | ~usable
        step = Step(after, np.where(valid, reward, 0.0), ended, cut, np.ones(n, bool), valid, {"context": context})
        transitions = Transitions(before, actions, step.reward, after, ended, cut, valid, context)
        if usable.all():
            return RealStep(step, transitions, np.nan, wall_s, list(infos))
        return RealStep(step, batch.take(transitions, usable), np.nan, wall_s, list(infos), usable)


def masks_of(env: gym.Env[Any, Any]) -> NDArray[np.bool_]:
    """The environment's own mask of legal actions, flat as MaskablePPO takes it: bool."""
    return np.asarray(env.get_wrapper_attr("action_masks")(), bool).reshape(-1)


def legal(space: Space[Any], mask: NDArray[np.bool_], action: Any) -> bool:
    """Whether a mask allows an action of a Discrete, MultiDiscrete or MultiBinary space; others have no masks."""
    at = _entries(space, action)
    return at is None or bool(mask[at].all())


def legal_sample(space: Space[Any], mask: NDArray[np.bool_] | None) -> Any:
    """A random action that the mask allows; None leaves all of them."""
    if mask is None:
        return space.sample()
    if isinstance(space, Discrete):
        return space.sample(mask=mask.astype(np.int8))
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(part.astype(np.int8) for part in np.split(mask, np.cumsum(space.nvec.reshape(-1))[:-1])))
    action = space.sample()
    if isinstance(space, MultiBinary):
        chosen = mask.reshape(-1, 2)[np.arange(action.size), action.reshape(-1)].reshape(action.shape)
        action = np.where(chosen, action, 1 - action).astype(action.dtype)
    return action


def mask_size(space: Space[Any]) -> int:
    """How many entries a flat mask of a space's actions has; 1 for spaces without masks."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return 2 * int(np.prod(space.shape)) if isinstance(space, MultiBinary) else 1


def _entries(space: Space[Any], action: Any) -> NDArray[np.int64] | None:
    """Where in a flat mask an action stands."""
    if isinstance(space, Discrete):
        return np.array([int(action) - int(space.start)])
    if isinstance(space, MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return np.asarray(first + (np.asarray(action) - space.start).reshape(-1), np.int64)
    if isinstance(space, MultiBinary):
        flat = np.asarray(action, np.int64).reshape(-1)
        return np.asarray(2 * np.arange(flat.size) + flat, np.int64)
    return None


def finite(space: Space[Any], observation: Any) -> bool:
    """Whether every number of an observation is finite."""
    if isinstance(space, Box):
        return space.dtype is None or space.dtype.kind != "f" or bool(np.isfinite(observation).all())
    if isinstance(space, Dict):
        return all(finite(part, observation[key]) for key, part in space.items())
    if isinstance(space, Tuple):
        return all(finite(part, each) for part, each in zip(space.spaces, observation, strict=True))
    return True


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
