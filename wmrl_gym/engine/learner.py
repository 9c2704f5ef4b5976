"""Learning: when the world model is updated, on what, and how that goes on in the background."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data import TransitionBuffer, Transitions
from wmrl_gym.engine.execution import RealExecution, RealStep, unstack
from wmrl_gym.engine.gym_execution import legal_sample
from wmrl_gym.engine.ledger import Cost
from wmrl_gym.randomness import mix
from wmrl_gym.samples import stack_samples
from wmrl_gym.threads import Threads, tell_when_forked
from wmrl_gym.world_models import Interface, WorldModel


class BackgroundUpdates:
    """Updates a world model on a thread of its own, one update at a time; the thread that steps applies the result.

    The error of an update that fails is raised once, where its result would have been applied; the next one begins anew. A forked
    child begins the update again that was under way.

    Args:
        model: one that ``learns_in_background``.
    """

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self._running: Future[tuple[Any, float]] | None = None
        self._asked: tuple[Transitions, int] | None = None
        self._thread, self._forked = Threads(1, "wmrl-update"), False
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: the update that is under way is the parent's."""
        self._forked = True

    @property
    def running(self) -> bool:
        """Whether an update is under way, or waits to take effect."""
        return self._running is not None

    def begin(self, transitions: Transitions, *, seed: int) -> None:
        """Start an update on transitions that are new to the model."""
        if self._running is not None:
            raise RuntimeError("an update is under way: apply it before the next begins")
        self._asked = transitions, seed
        self._running = self._thread.submit(self._compute, transitions, seed)

    def apply(self, *, wait: bool) -> tuple[dict[str, float], float] | None:
        """Apply an update that has finished, or wait for it with ``wait``; None where there is none.

        Returns:
            The update's measures, and the seconds that it took.
        """
        if self._forked and self._running is not None and not self._running.done():
            assert self._asked is not None
            self._running = self._thread.submit(self._compute, *self._asked)
        self._forked = False
        if self._running is None or not (wait or self._running.done()):
            return None
        running, self._running, self._asked = self._running, None, None
        computed, seconds = running.result()
        return self.model.apply_update(computed), seconds

    def forget(self) -> None:
        """Apply nothing of an update that is under way."""
        if self._running is not None:
            self._running.cancel()
            self._running = self._asked = None

    def close(self) -> None:
        """Wait for the thread to end; what it still learns is lost."""
        self.forget()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _compute(self, transitions: Transitions, seed: int) -> tuple[Any, float]:
        started = time.perf_counter()
        return self.model.compute_update(transitions, np.random.default_rng(seed)), time.perf_counter() - started


class Learner:
    """Updates a world model as real transitions arrive.

    Args:
        model: what learns.
        buffer: where real transitions arrive.
        every: transitions between two updates; 0 is never. A model that knows nothing is not waited with.
        background: update on a thread of its own, for a model that ``learns_in_background``.
        cost: is charged with the seconds of updates.
    """

    def __init__(self, model: WorldModel, buffer: TransitionBuffer, *, every: int, background: bool, cost: Cost) -> None:
        self.model, self.buffer, self.every, self.cost = model, buffer, every, cost
        self.measures: dict[str, float] = {}
        self.learnt = 0
        """How many of the transitions that ever arrived the updates have had."""
        self.updates = 0
        """How often the model has changed."""
        self._updates = BackgroundUpdates(model) if background else None

    @property
    def in_background(self) -> bool:
        """Whether updates of a fitted model go on beside stepping."""
        return self._updates is not None

    @property
    def running(self) -> bool:
        """Whether such an update is under way, or waits to take effect."""
        return self._updates is not None and self._updates.running

    def learn(self, rng: np.random.Generator) -> None:
        """Update if enough transitions are new, and take over an update that has finished in the background."""
        if self._updates is not None:
            self._take_over(wait=False)
        due = self.every if self.model.fitted else 1
        if not self.every or self.buffer.added - self.learnt < due:
            return
        if self._updates is None or not self.model.fitted:
            self.update(rng)
        elif not self.running:
            new = self._new()
            if new is not None:
                self._updates.begin(new, seed=int(rng.integers(2**31)))

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
        """Wait for an update in the background and apply it, so that the model knows all that :attr:`learnt` counts."""
        self._take_over(wait=True)

    def restore(self, learnt: int) -> None:
        """Go on from a saved :attr:`learnt`; an update that is under way is discarded."""
        self.learnt = learnt
        if self._updates is not None:
            self._updates.forget()

    def close(self) -> None:
        """Stop what goes on in the background."""
        if self._updates is not None:
            self._updates.close()

    def _fit(self, transitions: Transitions, rng: np.random.Generator) -> None:
        with self.cost.timing("update_s"), gradients():
            self.measures = self.measures | self.model.update(transitions, rng)
        self.updates += 1

    def _new(self) -> Transitions | None:
        new = self.buffer.since(self.learnt)
        self.learnt = self.buffer.added
        return new

    def _take_over(self, *, wait: bool) -> None:
        done = None if self._updates is None else self._updates.apply(wait=wait)
        if done is not None:
            measures, seconds = done
            self.measures = self.measures | measures
            self.updates += 1
            self.cost.update_s += seconds


def gradients() -> ExitStack:
    """Lets a model compute gradients even if the rollout around it runs in torch's ``no_grad`` or ``inference_mode``."""
    context, torch = ExitStack(), sys.modules.get("torch")
    if torch is not None:  # whoever learns with it has imported it
        context.enter_context(torch.inference_mode(False))
        context.enter_context(torch.enable_grad())
    return context


def execute_random(
    real: RealExecution,
    *,
    executions: int,
    seconds: float,
    seed: int,
    limit: int | None,
    take: Callable[[list[RealStep]], int],
) -> None:
    """Run episodes of random legal actions side by side, until so many steps were executed or the time is over.

    Args:
        real: what executes them.
        executions: steps.
        seconds: at most.
        seed: of starts and actions.
        limit: steps of an episode at most; an episode without an end is cut in any case, since it may be all that is asked for.
        take: takes an episode's steps in, and returns how many there have been in all.
    """
    began, done, episode = time.monotonic(), 0, 0
    longest = executions if limit is None else min(executions, limit)
    pending: list[tuple[Future[list[RealStep]], _RandomActions]] = []
    try:
        while done < executions and time.monotonic() - began < seconds:
            while len(pending) < real.max_real:
                own = int(mix(seed, 2, np.array(episode)))
                actions = _RandomActions(real, own, longest=longest, until=began + seconds)
                pending.append((real.submit(own, None, actions), actions))
                episode += 1
            done = take(pending.pop(0)[0].result())
        while pending:
            take(pending.pop(0)[0].result())
    finally:  # after an error nothing goes on behind whoever catches it
        for future, actions in pending:
            future.cancel()
            actions.left = 0
        wait([future for future, _ in pending])


class _RandomActions:
    """Random actions of one episode, legal ones where a mask says which are."""

    def __init__(self, real: RealExecution, seed: int, *, longest: int, until: float) -> None:
        self.space = deepcopy(real.interface.action_space)
        self.space.seed(seed % 2**31)
        self.left, self.until = longest, until

    def __call__(self, mask: NDArray[np.bool_] | None) -> Any:
        if self.left <= 0 or time.monotonic() >= self.until:
            return None
        self.left -= 1
        return legal_sample(self.space, mask)


_COLUMNS = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_, "reward_valid": np.bool_, "context": np.int64}


def checked_prior(recorded: Transitions, model: WorldModel, interface: Interface, *, starts: bool) -> Transitions:
    """``recorded`` as the environment itself would have given it: the same spaces, the same types.

    Args:
        recorded: real steps.
        model: what is to learn from them.
        interface: of the environment that they are to be of.
        starts: whether imagined episodes start at observations that occurred, which is of use without learning too.

    Raises:
        TypeError: something else than transitions, or a model that does not learn where nothing else could use them.
        ValueError: transitions of another space, or of a factored environment without its attempts and outcomes.
    """
    if not isinstance(recorded, Transitions):
        raise TypeError(f"learn_from() takes Transitions, got {type(recorded).__name__}")
    if type(model).update is WorldModel.update and not starts:
        raise TypeError(
            f"{type(model).__name__} does not learn (it has no update()), so recorded steps would change nothing: "
            'take another model, or start_states="buffer"'
        )
    n, factored = len(recorded), interface.factored
    if factored is not None and (recorded.attempt is None or recorded.outcome is None):
        raise ValueError(
            "the environment is factored, so its recorded steps must hold attempts and outcomes: "
            "MinariEpisodes(source, factored=...) reads them"
        )
    changed: dict[str, Any] = _columns_of(recorded)
    changed |= {
        name: _as_in(space, getattr(recorded, name), n, name)
        for name, space in (
            ("observation", interface.observation_space),
            ("action", interface.action_space),
            ("next_observation", interface.observation_space),
        )
    }
    if factored is None:  # such as of a factored environment that is wrapped now
        changed |= {"attempt": None, "outcome": None}
    return replace(recorded, **changed)


def _columns_of(recorded: Transitions) -> dict[str, NDArray[Any]]:
    """What has one number for each step, with its own type."""
    n = len(recorded)
    columns = {name: np.asarray(getattr(recorded, name)) for name in _COLUMNS}
    for name, column in columns.items():
        wanted = np.dtype(_COLUMNS[name])
        if column.shape != (n,) or column.dtype.kind != wanted.kind:
            raise ValueError(f"recorded {name} must be {wanted} of shape ({n},), got {column.dtype} of shape {column.shape}")
    unusable = columns["reward_valid"] & ~np.isfinite(columns["reward"])
    if unusable.any():
        row = int(np.flatnonzero(unusable)[0])
        raise ValueError(
            f"recorded reward {row} is {columns['reward'][row]}: an unknown one has reward_valid=False and a placeholder"
        )
    return {name: column.astype(_COLUMNS[name]) for name, column in columns.items()}


def _as_in(space: gym.Space[Any], value: Any, n: int, name: str) -> Any:
    """A batch of n samples with the types that ``space`` gives them."""
    if isinstance(space, gym.spaces.Dict):
        keys = sorted(value) if isinstance(value, dict) else type(value).__name__
        if keys != sorted(space):
            raise ValueError(f"recorded {name} must have the keys {sorted(space)}, got {keys}")
        return {key: _as_in(part, value[key], n, f"{name}[{key!r}]") for key, part in space.items()}
    if len(value) != n:
        raise ValueError(f"recorded {name} must have {n} rows as the rewards have, got {len(value)}")
    if isinstance(space, gym.spaces.Box):
        array = np.asarray(value)
        # Bounds are not asked for: real observations and actions overstep them too, and environments clip.
        if array.shape[1:] != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise ValueError(
                f"recorded {name} must be {space.dtype} of shape {(n, *space.shape)}, got {array.dtype} of shape {array.shape}"
            )
        return array.astype(space.dtype)
    rows = unstack(space, value, n)
    for row, item in enumerate(rows):
        if not space.contains(item):
            raise ValueError(f"recorded {name} {row} is outside {space}: {item!r}")
    return stack_samples(space, rows)
