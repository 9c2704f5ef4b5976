"""How little is known of an episode before it runs, for schedules that choose anchors by it."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from wmrl_gym.corrections.stream import Pairs
from wmrl_gym.world_models import WorldModel

UncertaintyKind = Literal["model", "disagreement"]


class StartUncertainty:
    """An episode's uncertainty from its context, and from its start where the model says something of it.

    Args:
        kind: "model": the standard deviation that the model gives its rewards: of a random action at the start itself, where that
            pays, else the running mean of the context (its task). "disagreement": the running root mean square of truth less
            prediction in the context, so that a model that does not know its errors is not believed.
        half_life: rewards of a context after which one counts half.

    Raises:
        ValueError: an unknown kind.
    """

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

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {"square": dict(self._square)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._square = dict(state["square"])


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
