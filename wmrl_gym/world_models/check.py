"""A checker of world models: what :class:`~wmrl_gym.world_models.WorldModel` promises, tried out on a user's own."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Factored
from wmrl_gym.slots import stack_samples, take_samples
from wmrl_gym.world_models.base import Interface, Prediction, WorldModel, WorldModelError

_SIZES = (1, 7, 256)
_DISTINCT_STARTS = 8
_DTYPES = {
    "reward": "f",
    "reward_std": "f",
    "terminated": "b",
    "truncated": "b",
    "reward_due": "b",
    "reward_valid": "b",
}
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".npy", ".npz")


def check_world_model(
    model: WorldModel,
    env: gym.Env[Any, Any] | Factored[Any, Any],
    *,
    make: Callable[[], WorldModel] | None = None,
    steps: int = 3,
    seed: int = 0,
    raise_: bool = True,
) -> list[str]:
    """Try out what a world model promises: the same answer to the same question, in any batch, inside the environment's spaces.

    The environment is only reset, to have start observations; the model is bound to it and not trained. Train it before, so that
    it is checked as it will be used.

    Args:
        model: to be checked.
        env: what it stands in for: an environment, or the parts of a factored one.
        make: makes an empty model, to load a saved one into; None calls the model's class without arguments.
        steps: that each rollout goes on for.
        seed: of starts, actions and imagination.
        raise_: raise the broken promises instead of returning them.

    Returns:
        A message for each broken promise.

    Raises:
        WorldModelError: lists all broken promises.

    >>> class Forgetful(WorldModel):
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         no, yes = np.zeros(len(state), bool), np.ones(len(state), bool)
    ...         reward = np.random.normal(size=len(state))  # not from rng
    ...         return state, Prediction(state, reward, np.full(len(state), np.nan), no, no, yes, yes)
    >>> for message in check_world_model(Forgetful(), gym.make("CartPole-v1"), raise_=False):
    ...     print(message)  # doctest: +ELLIPSIS
    step: draws from numpy's global generator, but randomness has to come from rng alone
    step: the same state, action and generator give another reward: 7 of 7 rollouts differ
    step: a rollout's reward depends on what else is in its batch: 7 of 7 rollouts differ; randomness needs a seed for each...
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    checker = _Checker(model, _interface_of(env), _starts(env, seed), steps, seed)
    model.bind(checker.interface)
    for size in _SIZES:
        checker.check_rollout(size)
    checker.check_purity()
    checker.check_batches()
    checker.check_checkpoint(type(model) if make is None else make)
    if checker.broken and raise_:
        listed = "\n".join(f"- {message}" for message in checker.broken)
        raise WorldModelError(f"{type(model).__name__} breaks {len(checker.broken)} promises of a world model:\n{listed}")
    return checker.broken


@dataclass(frozen=True, slots=True)
class _Starts:
    observation: Any
    info: dict[str, NDArray[Any]]


class _Checker:
    """Collects the broken promises of one model."""

    def __init__(self, model: WorldModel, interface: Interface, starts: _Starts, steps: int, seed: int) -> None:
        self.model, self.interface, self.starts = model, interface, starts
        self.steps, self.seed = steps, seed
        self.broken: list[str] = []

    def say(self, message: str) -> None:
        """Note a broken promise, once."""
        if message not in self.broken:
            self.broken.append(message)

    @contextmanager
    def calling(self, what: str, size: int) -> Iterator[None]:
        """Turn whatever the model raises into a broken promise, and see that it leaves global randomness alone."""
        before = _global_states()
        try:
            yield
        except _Stop:
            pass
        except Exception as error:  # a model may raise anything
            self.say(f"{what}: raises {type(error).__name__} for {size} rollouts: {error}")
        for name, state in _global_states().items():
            if name in before and not _same(before[name], state):
                self.say(f"{what}: draws from {name}'s global generator, but randomness has to come from rng alone")

    def begin(self, size: int) -> Any:
        """The state of ``size`` rollouts."""
        rows = np.arange(size, dtype=np.int64) % batch.size(self.starts.info)
        observation = take_samples(self.interface.observation_space, self.starts.observation, rows)
        return self.model.begin(observation, batch.take(self.starts.info, rows), np.random.default_rng(self.seed))

    def actions(self, size: int, turn: int) -> Any:
        """A batch of random actions, the same ones each time."""
        space = deepcopy(self.interface.action_space)
        space.seed(self.seed + turn)
        return stack_samples(space, [space.sample() for _ in range(size)])

    def step(self, state: Any, actions: Any) -> tuple[Any, Prediction]:
        """One step with the generator that every step here has."""
        return self.model.step(state, actions, np.random.default_rng(self.seed + 1))

    def check_rollout(self, size: int) -> None:
        """A few steps of ``size`` rollouts: shapes, dtypes, values."""
        state = None
        with self.calling("begin", size):
            begun = self.begin(size)
            self._check_state("begin", begun, size)
            state = begun
        if state is None:
            return
        with self.calling("step", size):
            for turn in range(self.steps):
                state, prediction = self.step(state, self.actions(size, turn))
                self._check_state("step", state, size)
                self._check_prediction(prediction, size)

    def _check_state(self, what: str, state: Any, size: int) -> None:
        try:
            found = batch.size(state)
        except (TypeError, ValueError) as error:
            self.say(f"{what}: the state must be a batch, whose every leaf has the rollouts along its first axis: {error}")
            raise _Stop from None
        if found != size:
            self.say(f"{what}: the state of {size} rollouts must be a batch of {size}, got one of {found}")
            raise _Stop

    def _check_prediction(self, prediction: Prediction, size: int) -> None:
        for name, kind in _DTYPES.items():
            value = getattr(prediction, name)
            dtype = "float64" if kind == "f" else "bool"
            if not isinstance(value, np.ndarray) or value.shape != (size,) or value.dtype != np.dtype(dtype):
                self.say(f"step: {name} must be {dtype} of shape (B,), got {_described(value)} for {size} rollouts")
                raise _Stop
        for key, value in prediction.info.items():
            if len(value) != size:
                self.say(f"step: info[{key!r}] must have a row for each of {size} rollouts, got {len(value)}")
        self._check_rewards(prediction)
        self._check_observation(prediction.observation, self.interface.observation_space, size, path="observation")

    def _check_rewards(self, prediction: Prediction) -> None:
        if not np.isfinite(prediction.reward).all():
            self.say("step: reward must be finite: an unknown one has reward_valid=False and a finite placeholder")
        if (prediction.reward_std < 0).any():
            self.say(f"step: reward_std must not be negative (NaN where it is unknown), got {np.nanmin(prediction.reward_std)}")
        counted = prediction.reward[prediction.reward_due & prediction.reward_valid]
        low, high = self.interface.reward_range
        if len(counted) and (counted.min() < low or counted.max() > high):
            self.say(f"step: rewards must be inside the range [{low}, {high}], got [{counted.min()}, {counted.max()}]")
        if (prediction.terminated & prediction.truncated).any():
            self.say("step: a rollout both terminates and is truncated: an end that the model predicts is terminated alone")

    def _check_observation(self, value: Any, space: gym.Space[Any], size: int, *, path: str) -> None:
        if isinstance(space, gym.spaces.Dict):
            if not isinstance(value, dict) or value.keys() != space.spaces.keys():
                found = sorted(value) if isinstance(value, dict) else _described(value)
                self.say(f"step: {path} must be a dict with the keys {sorted(space.keys())}, got {found}")
                return
            for key, part in space.items():
                self._check_observation(value[key], part, size, path=f"{path}[{key!r}]")
            return
        if isinstance(space, gym.spaces.Box) and not (
            isinstance(value, np.ndarray) and value.shape == (size, *space.shape) and value.dtype == space.dtype
        ):
            self.say(
                f"step: {path} must be {space.dtype} of shape (B, *{space.shape}), got {_described(value)} for {size} rollouts"
            )
            return
        items = list(iterate(batch_space(space, size), value))
        outside = [item for item in items if not space.contains(item)]
        if len(items) != size or outside:
            found = f"{len(items)} of them" if len(items) != size else f"{outside[0]!r}"
            self.say(f"step: {path} must be {size} observations inside {space}, got {found}")

    def check_purity(self) -> None:
        """The same input gives the same output, and the input stays as it was."""
        state = None
        with self.calling("begin", 7):
            state, again = self.begin(7), self.begin(7)
            if not _same(state, again):
                self.say("begin: the same observations and generator give another state")
        if state is None:
            return
        kept, actions = deepcopy(state), self.actions(7, 0)
        given = deepcopy(actions)
        with self.calling("step", 7):
            after, prediction = self.step(state, actions)
            if not _same(state, kept):
                self.say("step: changes the state that it was given, but the state is the caller's: return a new one")
            if not _same(actions, given):
                self.say("step: changes the actions that it was given")
            repeated, same = self.step(kept, given)
            for name, rows in _differences(prediction, same, tolerance=0.0):
                self.say(f"step: the same state, action and generator give another {name}: {rows}")
            if not _same(after, repeated):
                self.say("step: the same state, action and generator give another next state")

    def check_batches(self) -> None:
        """A rollout's prediction does not depend on which others are computed with it."""
        state = None
        with self.calling("begin", 256):
            state = self.begin(256)
        if state is None:
            return
        actions = self.actions(256, 0)
        with self.calling("step", 256):
            for rows in (np.arange(7)[::-1] * 30, np.array([255])):
                whole = self.step(state, actions)[1]
                part = self.step(batch.take(state, rows), take_samples(self.interface.action_space, actions, rows))[1]
                for name, differing in _differences(self._rows(whole, rows), part, tolerance=1e-4):
                    self.say(
                        f"step: a rollout's {name} depends on what else is in its batch: {differing}; "
                        "randomness needs a seed for each rollout in the state"
                    )
                    return

    def _rows(self, prediction: Prediction, rows: NDArray[np.int64]) -> Prediction:
        observation = take_samples(self.interface.observation_space, prediction.observation, rows)
        info = {key: np.asarray(value)[rows] for key, value in prediction.info.items()}
        return Prediction(observation, *(getattr(prediction, name)[rows] for name in _DTYPES), info)

    def check_checkpoint(self, make: Callable[[], WorldModel]) -> None:
        """A saved and loaded model answers bit for bit as before."""
        with tempfile.TemporaryDirectory() as folder, self.calling("save and load", 7):
            try:
                self.model.save(folder)
            except NotImplementedError:
                return  # a model that does not learn has nothing to save
            pickles = sorted(path.name for path in Path(folder).rglob("*") if path.suffix in _PICKLES)
            if pickles:
                self.say(f"save: writes {pickles}, but weights are safetensors and the rest is json")
            try:
                loaded = make()
            except TypeError as error:
                raise TypeError(f"an empty model is needed to load into, pass make=: {error}") from error
            loaded.load(folder)
            loaded.bind(self.interface)
            if loaded.fitted != self.model.fitted:
                self.say(f"load: fitted is {loaded.fitted} after loading, and was {self.model.fitted}")
            before = self.step(self.begin(7), self.actions(7, 0))[1]
            other = _Checker(loaded, self.interface, self.starts, self.steps, self.seed)
            after = other.step(other.begin(7), other.actions(7, 0))[1]
            for name, rows in _differences(before, after, tolerance=0.0):
                self.say(f"load: a loaded model predicts another {name}: {rows}")


class _Stop(Exception):
    """What follows cannot be checked."""


def _interface_of(env: gym.Env[Any, Any] | Factored[Any, Any]) -> Interface:
    factored = env if isinstance(env, Factored) else getattr(env.unwrapped, "factored", None)
    if isinstance(factored, Factored) and env.observation_space == factored.observation_space:
        return Interface(factored.observation_space, factored.action_space, factored.reward_range, factored)
    return Interface(env.observation_space, env.action_space)


def _starts(env: gym.Env[Any, Any] | Factored[Any, Any], seed: int) -> _Starts:
    seeds = range(seed, seed + _DISTINCT_STARTS)
    if isinstance(env, Factored):
        return _Starts(*env.start(np.array(seeds, np.int64)))
    observations, infos = zip(*(env.reset(seed=each) for each in seeds), strict=True)
    infos = tuple({"context": 0, **info} for info in infos)
    numbers = [key for key, value in infos[0].items() if isinstance(value, (bool, int, float, np.number, np.bool_))]
    return _Starts(
        stack_samples(env.observation_space, observations), {key: np.asarray([info[key] for info in infos]) for key in numbers}
    )


def _global_states() -> dict[str, Any]:
    states: dict[str, Any] = {"numpy": np.random.get_state(), "random": random.getstate()}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().numpy()
    return states


def _same(left: Any, right: Any) -> bool:
    """Whether two batches (or tuples of them) are equal, bit for bit; NaN equals NaN."""
    try:
        np.testing.assert_equal(_plain(left), _plain(right))
    except AssertionError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, tensors as arrays."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value


def _differences(left: Prediction, right: Prediction, *, tolerance: float) -> Iterator[tuple[str, str]]:
    """The parts in which two predictions differ by more than float ``tolerance``, and in how many rollouts."""
    parts = {"observation": (left.observation, right.observation)}
    parts |= {name: (getattr(left, name), getattr(right, name)) for name in _DTYPES}
    parts |= {f"info[{key!r}]": (left.info.get(key), right.info.get(key)) for key in left.info.keys() | right.info.keys()}
    size = len(left.reward)
    for name, (one, other) in parts.items():
        differing = _differing_rows(one, other, size, tolerance)
        if differing.any():
            yield name, f"{int(differing.sum())} of {size} rollouts differ"


def _differing_rows(one: Any, other: Any, size: int, tolerance: float) -> NDArray[np.bool_]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return np.any([_differing_rows(one[key], other[key], size, tolerance) for key in one], axis=0)
    try:
        left, right = np.asarray(_plain(one)), np.asarray(_plain(other))
        equal = np.asarray(left == right)
        if left.dtype.kind in "fiu" and right.dtype.kind in "fiu":
            equal = np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
        return ~equal.reshape(size, -1).all(axis=1)
    except (TypeError, ValueError):  # not even of the same shape
        return np.ones(size, bool)


def _described(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
