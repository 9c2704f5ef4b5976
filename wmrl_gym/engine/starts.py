"""How episodes start: at observations that really occurred, and how little is known of a start before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from wmrl_gym.batch import StateDict
from wmrl_gym.corrections.stream import Pairs
from wmrl_gym.data import TransitionBuffer
from wmrl_gym.engine.info import StepInfo
from wmrl_gym.engine.options import UncertaintyKind
from wmrl_gym.samples import put_samples, take_samples
from wmrl_gym.world_models import WorldModel

Reset: TypeAlias = Callable[[NDArray[np.int64]], tuple[Any, StepInfo]]
"""Really resets the given rows: their observations as a batch, and their infos, with ``context``."""


class StartStates:
    """Draws starts of imagined episodes among the real observations that were acted upon.

    Args:
        space: of one observation.
        buffer: the real transitions.
    """

    def __init__(self, space: gym.Space[Any], buffer: TransitionBuffer) -> None:
        self.space, self.buffer = space, buffer
        self.last: tuple[int, Any, int] | None = None
        """The group that was drawn last, its start and its context: other members may follow."""

    def forget_last(self) -> None:
        """Groups are numbered anew: the next one is another, whatever its number."""
        self.last = None

    def draw(self, groups: NDArray[np.int64], rng: np.random.Generator) -> tuple[Any, NDArray[np.int64]]:
        """A start for each of n episodes, uniform over what is kept; the members of a group share theirs.

        Args:
            groups: int64, shape (n,), ascending: the members of a group start one after the other, in one call or several.
            rng: draws the starts.

        Returns:
            A batch of n observations, and their contexts, int64, shape (n,).
        """
        unique, member = np.unique(groups, return_inverse=True)
        # Drawn by age, so that a run that was saved and resumed draws the same.
        drawn = self.buffer.at(rng.integers(len(self.buffer), size=len(unique)))
        observation, context = drawn.observation, drawn.context
        if self.last is not None and unique[0] == self.last[0]:
            first = np.zeros(1, np.int64)
            observation, context[0] = put_samples(self.space, observation, first, self.last[1]), self.last[2]
        newest = np.array([len(unique) - 1])
        self.last = int(unique[-1]), take_samples(self.space, observation, newest), int(context[-1])
        return take_samples(self.space, observation, member.astype(np.int64)), context[member]

    def mixed(
        self, groups: NDArray[np.int64], *, real: NDArray[np.bool_], reset: Reset, rng: np.random.Generator
    ) -> tuple[Any, StepInfo]:
        """The starts of n episodes: real resets at the rows ``real``, and drawn observations at the others.

        All are real resets while no observation is kept.

        Returns:
            A batch of n observations, and as info their contexts, and what the environment said at a real reset.
        """
        real = real if len(self.buffer) else np.ones_like(real)
        observation: Any = create_empty_array(self.space, n=len(groups))
        info = StepInfo(len(groups), {"context": np.zeros(len(groups), np.int64)})
        rows, branched = np.flatnonzero(real), np.flatnonzero(~real)
        if len(rows):
            started, given = reset(rows)
            observation, info["context"][rows] = put_samples(self.space, observation, rows, started), given["context"]
            for at, row in enumerate(rows.tolist()):
                info.set_own(row, given.row_own(at) or {})
        if len(branched):
            started, info["context"][branched] = self.draw(groups[branched], rng)
            observation = put_samples(self.space, observation, branched, started)
        return observation, info


class StartUncertainty(StateDict):
    """An episode's uncertainty from its context, and from its start where the model says something of it.

    Args:
        kind: "model": the standard deviation that the model gives its rewards: of a random action at the start itself, where that
            pays, else the running mean of the context (its task). "disagreement": the running root mean square of truth less
            prediction in the context, so that a model that does not know its errors decides nothing.
        half_life: rewards of a context after which one counts half.

    Raises:
        ValueError: an unknown kind.
    """

    _state = ("_square",)

    def __init__(self, kind: UncertaintyKind, *, half_life: float = 200.0) -> None:
        if kind not in get_args(UncertaintyKind):
            raise ValueError(f"uncertainty must be one of {', '.join(map(repr, get_args(UncertaintyKind)))}, got {kind!r}")
        self.kind = kind
        self.half_life = float(half_life)
        self._square: dict[int, tuple[float, float]] = {}

    def predicted(self, context: NDArray[np.int64], std: NDArray[np.float64]) -> None:
        """What the model said of paying steps: contexts, int64, and standard deviations, float64, shape (n,) each."""
        if self.kind == "model":
            self._learn(context, std**2)

    def measured(self, pairs: Pairs) -> None:
        """Pairs that arrived."""
        if self.kind == "disagreement":
            self._learn(pairs.context, (pairs.real - pairs.predicted) ** 2)

    def _learn(self, context: NDArray[np.int64], square: NDArray[np.float64]) -> None:
        known = np.isfinite(square)
        for label in np.unique(context[known]).tolist():
            new = square[known & (context == label)]
            weight, mean = self._square.get(label, (0.0, 0.0))
            keep = weight * 0.5 ** (len(new) / self.half_life)
            self._square[label] = keep + len(new), (keep * mean + float(new.sum())) / (keep + len(new))

    def of(self, context: NDArray[np.int64], probed: NDArray[np.float64]) -> NDArray[np.float64]:
        """The uncertainty of starts: float64, shape (n,), NaN where there is no telling.

        Args:
            context: int64, shape (n,).
            probed: what the model says at the start, see :func:`probe`; float64, shape (n,), NaN where it says nothing.
        """
        running = np.array([np.sqrt(self._square.get(label, (0.0, np.nan))[1]) for label in context.tolist()])
        return np.where(np.isfinite(probed), probed, running) if self.kind == "model" else running


def probe(
    model: WorldModel, observation: Any, info: dict[str, NDArray[Any]], *, space: Space[Any], seed: int
) -> NDArray[np.float64]:
    """The standard deviation that a model gives the reward of a random action at each start: float64, shape (n,).

    NaN where the first step pays nothing, and where random actions mean nothing, such as texts.
    """
    n = len(info["context"])
    if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
        return np.full(n, np.nan)
    actions = batch_space(space, n)
    actions.seed(seed)
    rng = np.random.default_rng(seed)
    _, prediction = model.step(model.begin(observation, info, rng), actions.sample(), rng)
    said = prediction.reward_due & prediction.reward_valid
    return np.where(said, prediction.reward_std, np.nan)
