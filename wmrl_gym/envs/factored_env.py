"""A factored environment as a Gymnasium environment, and as a vector environment that executes on several threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from wmrl_gym.batch import put, take
from wmrl_gym.factored import Factored, Outcome, Step, resolve
from wmrl_gym.samples import checked_action, sample_at
from wmrl_gym.slots import SlotVectorEnv
from wmrl_gym.threads import Threads

COSTS = ("cpu_s", "wall_s", "peak_memory_mb")
"""What executing a step costs, by its name in an outcome."""


def complete(step: Step) -> Step:
    """A step whose info says whether its reward is due and valid."""
    return replace(step, info={**step.info, "reward_due": step.reward_due, "reward_valid": step.reward_valid})


def scalars(info: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The info of one episode as Python values, without the numbers that nobody knows."""
    known = {key: value[0] for key, value in info.items() if np.asarray(value).dtype.kind != "f" or not np.isnan(value[0]).any()}
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in known.items()}


def start_info(info: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The info of B starts, with the keys that every step's info has: no reward is due, and nothing is invalid."""
    count = len(info["context"])
    return {**info, "reward_due": np.zeros(count, dtype=np.bool_), "reward_valid": np.ones(count, dtype=np.bool_)}


def printable(text: str) -> str:
    r"""A text for a terminal: whatever is no visible character, space or end of a line is written out, so that it can do nothing.

    >>> print(printable("a\x1b[2Jb\ttwo"))
    a\x1b[2Jb	two
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


class FactoredEnv(gym.Env[Any, Any]):
    """One episode at a time of a factored environment, really executed.

    Args:
        factored: the logic; closed with the environment.
        render_mode: "ansi" for the transcript of the episode, or None.

    Raises:
        ValueError: for an unknown render mode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(self, factored: Factored[Any, Any], *, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, got {render_mode!r}")
        self.factored = factored
        self.render_mode = render_mode
        self.observation_space = factored.observation_space
        self.action_space = factored.action_space
        self.last_outcome: Outcome | None = None
        """What the last step's attempt brought, a batch of one: hidden from the agent, for whoever records."""
        self.last_cost = dict.fromkeys(COSTS, 0.0)
        """What the last step's execution took: CPU and wall-clock seconds, and MiB of memory at its highest."""
        self.closed = False
        self._np_random, self._np_random_seed = seeding.np_random()
        self._state: Any = None
        self._over = False
        self._transcript: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``options`` are those of the factored logic, such as ``{"task": "digits"}``.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
        """
        self._check_open("reset()")
        super().reset(seed=seed)
        # An explicit seed is the start's own, as it is in a world model of this environment.
        start_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        observation, info = self.factored.start(np.array([start_seed], dtype=np.int64), options)
        self._state = self.factored.begin(observation, info)
        self._over = False
        self.last_outcome = None
        self.last_cost = dict.fromkeys(COSTS, 0.0)
        self._transcript = [f"task: {self.factored.contexts[int(info['context'][0])]}"]
        return sample_at(self.observation_space, observation, 0), scalars(start_info(info))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute an action.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after the episode's end.
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            ValueError: an action that is none of the action space.
        """
        self._check_open("step()")
        self._check_started("step()")
        if self._over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before step()")
        attempt = self.factored.attempt(self._state, checked_action(self.action_space, action))
        outcome = resolve(self.factored, attempt)
        self._state, step = self.factored.advance(self._state, attempt, outcome)
        self.last_outcome = outcome
        self.last_cost = {name: float(getattr(outcome, name)[0]) for name in COSTS}
        terminated, truncated, reward = bool(step.terminated[0]), bool(step.truncated[0]), float(step.reward[0])
        self._over = terminated or truncated
        if self.render_mode == "ansi":
            turn = len(self._transcript)
            self._transcript.append(f"--- turn {turn}\n{action}\n---\n{outcome.feedback[0]}\nreward: {reward:.4f}")
        return sample_at(self.observation_space, step.observation, 0), reward, terminated, truncated, scalars(complete(step).info)

    def render(self) -> str | None:
        """The transcript of the episode so far, in mode "ansi".

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._check_started("render()")
        return printable("\n".join(self._transcript)) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Release what executing opened."""
        self.closed = True
        self.factored.close()

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what} of an environment that was closed: make a new one")

    def _check_started(self, what: str) -> None:
        if self._state is None:
            raise gym.error.ResetNeeded(f"call reset() before {what}")


class FactoredVectorEnv(SlotVectorEnv):
    """N episodes at a time of a factored environment, really executed by a pool of threads.

    Args:
        factored: the logic, shared by all slots; closed with the environment.
        num_envs: the number of slots.
        max_real: executions at the same time; the factored logic's sandbox should have as many workers.
        autoreset_mode: as in :class:`~wmrl_gym.slots.SlotVectorEnv`.
        max_episode_steps: episodes are truncated after so many steps; None leaves that to the environment.

    Raises:
        ValueError: for fewer than one slot, thread or step.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self,
        factored: Factored[Any, Any],
        num_envs: int,
        *,
        max_real: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(num_envs, factored.observation_space, action_space=factored.action_space, autoreset_mode=autoreset_mode)
        if max_real < 1:
            raise ValueError(f"max_real must be at least 1, got {max_real}")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        self.factored = factored
        self.max_real, self.max_episode_steps = max_real, max_episode_steps
        self.last_cost = {name: np.zeros(num_envs) for name in COSTS}
        """What the last step's executions took: float64, shape (num_envs,) each."""
        self._state: Any = None
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._threads = Threads(max_real, "execute")

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Execute the actions of all slots that are not being reset; see :meth:`~wmrl_gym.slots.SlotVectorEnv.step`."""
        self.last_cost = {name: np.zeros(self.num_envs) for name in COSTS}
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Wait for what is running, then release everything."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.factored.close()

    def _reset_slots(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        drawn = [self._start_seed(int(slot), seed) for slot, seed in zip(slots, seeds, strict=True)]
        observation, info = self.factored.start(np.array(drawn, dtype=np.int64), options)
        fresh = self.factored.begin(observation, info)
        if len(slots) == self.num_envs:
            self._state = fresh
        else:
            if self._state is None:  # the other slots cannot be stepped before they are reset, so any state will do
                self._state = take(fresh, np.zeros(self.num_envs, dtype=np.int64))
            self._state = put(self._state, slots, fresh)
        self._steps[slots] = 0
        return observation, start_info(info)

    def _step_slots(self, slots: NDArray[np.int64], actions: Any) -> Step:
        state = take(self._state, slots)
        attempt = self.factored.attempt(state, actions)
        outcome = resolve(self.factored, attempt, pool=self._threads)
        after, step = self.factored.advance(state, attempt, outcome)
        self._state = put(self._state, slots, after)
        for name in COSTS:
            self.last_cost[name][slots] = getattr(outcome, name)
        return self._limited(slots, complete(step))

    def _limited(self, slots: NDArray[np.int64], step: Step) -> Step:
        """A step at which episodes that are too long are truncated."""
        self._steps[slots] += 1
        if self.max_episode_steps is None:
            return step
        late = (self._steps[slots] >= self.max_episode_steps) & ~step.terminated
        return replace(step, truncated=step.truncated | late)

    def _start_seed(self, slot: int, seed: int | None) -> int:
        """An explicit seed is the start's own, and that of the slot's later starts."""
        generator = self._generators[slot]
        if seed is not None or generator is None:
            generator, _ = seeding.np_random(seed)
            self._generators[slot] = generator
        return int(generator.integers(2**31)) if seed is None else seed
