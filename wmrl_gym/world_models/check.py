"""Checks of the contract: of each prediction where it is made, and of a whole model before it is trusted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Factored
from wmrl_gym.samples import stack_samples
from wmrl_gym.world_models.base import Interface, Prediction, WorldModel, WorldModelError

_ARRAYS: tuple[str, ...] = ("reward", "reward_std", "terminated", "truncated", "reward_due", "reward_valid")


_arrays = attrgetter(*_ARRAYS)


def check_world_model(
    model: WorldModel, env: gym.Env[Any, Any], *, sizes: tuple[int, ...] = (1, 7, 256), seed: int = 0, raise_: bool = True
) -> list[str]:
    """Verify that a world model keeps the contract on an environment. Nothing is learnt; ``env`` is only reset.

    Predictions of any batch size lie inside the spaces; ``step`` is pure, and does not change the state that it is given; the
    same seed gives the same rollouts; what is predicted of a rollout does not depend on which others share its batch (up to
    floating-point; a model that draws must keep a seed for each rollout in its state); and a model that saves predicts the same
    after loading.

    Args:
        model: the model; it is bound to ``env``.
        env: an environment that it stands in for.
        sizes: batch sizes to try.
        seed: of starts and actions.
        raise_: raise if a promise is broken.

    Returns:
        The broken promises, each in a sentence; empty where there is none.

    Raises:
        WorldModelError: naming every broken promise.
    """
    factored = getattr(env.unwrapped, "factored", None)
    factored = factored if isinstance(factored, Factored) else None
    range_ = (-np.inf, np.inf) if factored is None else factored.reward_range
    model.bind(Interface(env.observation_space, env.action_space, range_, factored))
    trial = _Trial(model, env, factored=factored, seed=seed)
    broken: list[str] = []
    for size in sizes:
        with _collected(broken, f"a batch of {size}"):
            trial.check_size(size)
    for what, check in (
        ("the same step twice", trial.check_purity),
        ("the same seed twice", trial.check_seeds),
        ("a rollout alone and in company", trial.check_company),
        ("save and load", trial.check_saving),
    ):
        with _collected(broken, what):
            check()
    if broken and raise_:
        raise WorldModelError(f"{type(model).__name__} breaks the contract:\n- " + "\n- ".join(broken))
    return broken


@contextmanager
def _collected(broken: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a user's model raises is a finding
        message = str(error) if isinstance(error, WorldModelError) else f"{type(error).__name__}: {error}"
        broken.append(f"{what}: {message}")


class _Trial:
    """Starts and actions to try a model on."""

    def __init__(self, model: WorldModel, env: gym.Env[Any, Any], *, factored: Factored[Any, Any] | None, seed: int) -> None:
        self.model, self.env, self.factored, self.seed = model, env, factored, seed
        self.space = deepcopy(env.action_space)
        self.space.seed(seed)

    def check_size(self, size: int) -> None:
        """Three steps of a batch stay inside the spaces."""
        rng = np.random.default_rng(self.seed)
        state = self._begin(size, rng)
        for _ in range(3):
            state, prediction = self.model.step(state, self._actions(size), rng)
            check_prediction(prediction, self.env.observation_space, size)

    def check_purity(self) -> None:
        """The same inputs and generator give the same output, and the state stays as it was."""
        state, actions = self._begin(4, self._rng()), self._actions(4)
        before = deepcopy(state)
        first, second = (self.model.step(state, actions, self._rng())[1] for _ in range(2))
        _require_alike(first, second, _identical)
        third = self.model.step(before, actions, self._rng())[1]
        _require_alike(first, third, _identical)

    def check_seeds(self) -> None:
        """Rollouts that begin and go on with equally seeded generators are the same."""
        told = []
        for _ in range(2):
            rng = self._rng()
            self.space.seed(self.seed)
            state = self._begin(4, rng)
            for _ in range(2):
                state, prediction = self.model.step(state, self._actions(4), rng)
            told.append(prediction)
        _require_alike(told[0], told[1], _identical)

    def check_company(self) -> None:
        """A rollout is predicted the same whichever others share its batch."""
        state, actions = self._begin(5, self._rng()), self._actions(5)
        _, together = self.model.step(state, actions, self._rng())
        _, alone = self.model.step(batch.take(state, [3]), batch.take(actions, [3]), self._rng())

        def close(left: NDArray[Any], right: NDArray[Any]) -> bool:
            return np.allclose(left, right, rtol=1e-4, atol=1e-5, equal_nan=True)

        _require_alike(_rows(together, 3), alone, close)

    def check_saving(self) -> None:
        """Saved and loaded, in place, the model predicts the same."""
        state, actions = self._begin(4, self._rng()), self._actions(4)
        _, before = self.model.step(state, actions, self._rng())
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.model.save(folder)
            except NotImplementedError:
                return
            self.model.load(folder)
        _, after = self.model.step(state, actions, self._rng())
        _require_alike(before, after, _identical)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed + 1)

    def _actions(self, size: int) -> Any:
        return stack_samples(self.space, [self.space.sample() for _ in range(size)])

    def _begin(self, size: int, rng: np.random.Generator) -> Any:
        if self.factored is not None:
            return self.model.begin(*self.factored.start(np.arange(size, dtype=np.int64)), rng)
        distinct = [self.env.reset(seed=self.seed + number)[0] for number in range(min(size, 8))]
        observation = stack_samples(self.env.observation_space, [distinct[row % len(distinct)] for row in range(size)])
        return self.model.begin(observation, {"context": np.zeros(size, np.int64)}, rng)


def _identical(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def _rows(prediction: Prediction, row: int) -> Prediction:
    return Prediction(batch.take(prediction.observation, [row]), *(getattr(prediction, name)[[row]] for name in _ARRAYS))


def _require_alike(left: Prediction, right: Prediction, alike: Callable[[NDArray[Any], NDArray[Any]], bool]) -> None:
    differing = [name for name in _ARRAYS if not alike(getattr(left, name), getattr(right, name))]
    pairs = zip(_leaves(left.observation), _leaves(right.observation), strict=True)
    if not all(alike(a, b) if a.dtype != object else a.tolist() == b.tolist() for a, b in pairs):
        differing.insert(0, "observation")
    if differing:
        raise WorldModelError(f"{', '.join(differing)} differ")


def _leaves(observation: Any) -> list[NDArray[Any]]:
    if isinstance(observation, dict):
        return [leaf for key in sorted(observation) for leaf in _leaves(observation[key])]
    if isinstance(observation, np.ndarray):
        return [observation]
    return [np.array(list(observation), dtype=object)]


def check_prediction(prediction: Prediction, space: gym.Space[Any], n: int) -> None:
    """Check the shapes, the finiteness, and that each predicted observation lies in ``space``.

    Args:
        prediction: of ``n`` rollouts.
        space: the observation space of one environment.
        n: the number of rollouts.

    Raises:
        WorldModelError: naming what is wrong, with expected and actual.
    """
    PredictionCheck(space)(prediction, n)


class PredictionCheck:
    """:func:`check_prediction` for one space, again and again.

    Args:
        space: the observation space of one environment.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self._batched: dict[tuple[str, int], gym.Space[Any]] = {}
        self._bounds = _finite_bounds(space) if isinstance(space, gym.spaces.Box) else None

    def __call__(self, prediction: Prediction, n: int) -> None:
        """Check a prediction of ``n`` rollouts."""
        shapes = [getattr(array, "shape", None) for array in _arrays(prediction)]
        if shapes.count((n,)) < len(shapes):
            at = next(at for at, shape in enumerate(shapes) if shape != (n,))
            shape = np.shape(getattr(prediction, _ARRAYS[at]))
            raise WorldModelError(f"prediction.{_ARRAYS[at]} must be an array of shape ({n},), got shape {shape}")
        if np.count_nonzero(np.isfinite(prediction.reward)) < n:
            unusable = ~np.isfinite(prediction.reward) & prediction.reward_valid
            if unusable.any():
                row = int(np.flatnonzero(unusable)[0])
                raise WorldModelError(
                    f"predicted reward of rollout {row} is {prediction.reward[row]}: "
                    "an unknown reward has reward_valid=False and a finite placeholder"
                )
        if self._bounds is not None:
            value, (low, high) = prediction.observation, self._bounds
            typed = isinstance(value, np.ndarray) and value.dtype == self.space.dtype and value.shape == (n, *low.shape)
            # NaN is above no bound.
            # Counting is the quickest way to ask all of a few numbers.
            if typed and np.count_nonzero(value >= low) == value.size == np.count_nonzero(value <= high):
                return
        self._check_part(prediction.observation, self.space, n, path="observation")

    def _check_part(self, value: Any, space: gym.Space[Any], n: int, *, path: str) -> None:
        if isinstance(space, gym.spaces.Dict):
            missing = set(space.keys()) ^ set(value.keys())
            if missing:
                raise WorldModelError(f"predicted {path} must have the keys {sorted(space.keys())}, got {sorted(value.keys())}")
            for key, sub in space.items():
                self._check_part(value[key], sub, n, path=f"{path}[{key!r}]")
        elif isinstance(space, gym.spaces.Box):
            _check_box(value, space, n, path=path)
        else:
            for row, item in enumerate(iterate(self._batch_of(space, n, path=path), value)):
                if not space.contains(item):
                    raise WorldModelError(f"predicted {path} of rollout {row} is outside {space}: {item!r}")

    def _batch_of(self, space: gym.Space[Any], n: int, *, path: str) -> gym.Space[Any]:
        """The space of n samples, which takes longer to build than to ask."""
        if (path, n) not in self._batched:
            if len(self._batched) >= _SPACES:
                self._batched.clear()
            self._batched[path, n] = batch_space(space, n)
        return self._batched[path, n]


_SPACES = 64
"""Batched spaces kept: of each part of the observation, and of each size of batch."""


def _finite_bounds(space: gym.spaces.Box) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bounds that keep infinity out: a policy's network makes NaN of it."""
    if space.dtype.kind != "f":
        return space.low, space.high
    kind: Any = space.dtype
    kinds: Any = np.finfo(kind)
    return np.maximum(space.low, kinds.min), np.minimum(space.high, kinds.max)


def _check_box(value: Any, space: gym.spaces.Box, n: int, *, path: str) -> None:
    expected = (n, *space.shape)
    if not isinstance(value, np.ndarray) or value.shape != expected or value.dtype != space.dtype:
        found = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise WorldModelError(f"predicted {path} must be {space.dtype} of shape {expected}, got {found}")
    # A Box without bounds holds infinity, and a policy's network makes NaN of it.
    usable = (value >= space.low) & (value <= space.high) & np.isfinite(value)
    if not usable.all():
        where = tuple(int(i) for i in np.argwhere(~usable)[0])
        low, high = space.low[where[1:]], space.high[where[1:]]
        raise WorldModelError(
            f"predicted {path} of rollout {where[0]} is outside its space, or not finite: "
            f"entry {list(where[1:])} is {value[where]}, expected [{low}, {high}]"
        )
