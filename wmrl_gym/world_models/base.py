"""The contract of world models: what a model learns of its environment, and what it must answer."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Factored

PairKind = Literal["teacher_forced", "open_loop"]


class WorldModelError(RuntimeError):
    """A world model broke its contract, such as by a prediction outside the observation space."""


@dataclass(frozen=True, slots=True)
class Interface:
    """What an environment tells the world model that stands in for it.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
        reward_range: (low, high) of one step's reward; infinite where unknown.
        factored: the environment's own bookkeeping where it is a factored environment, so that only outcomes need predicting.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    reward_range: tuple[float, float] = (-np.inf, np.inf)
    factored: Factored[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a world model expects one step of B rollouts to return.

    Args:
        observation: a batch as :func:`gymnasium.vector.utils.batch_space` describes it, inside the observation space.
        reward: float64, shape (B,).
        reward_std: float64, shape (B,). The model's own standard deviation of its reward's error; NaN where it does not know.
        terminated: bool, shape (B,).
        truncated: bool, shape (B,).
        reward_due: bool, shape (B,). False where the reward is 0 by construction.
        reward_valid: bool, shape (B,). False where the model could not answer; the reward is then a placeholder.
        info: arrays of length B.
    """

    observation: Any
    reward: NDArray[np.float64]
    reward_std: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    reward_due: NDArray[np.bool_]
    reward_valid: NDArray[np.bool_]
    info: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSpan:
    """Says which of the real transitions that a model was given its present fit was trained on.

    Args:
        first: number of the oldest, counted from 0.
        end: one more than the number of the newest.
        kept: how many of those between were kept; fewer than ``end - first`` where older ones were thinned out.
        by_context: how many of them each context has, by its name.
    """

    first: int
    end: int
    kept: int
    by_context: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


_RENAMED = {
    "foresee": "predict_outcomes",
    "learns_aside": "learns_in_background",
    "digest": "compute_update",
    "adopt": "apply_update",
}
"""What members of world models were called in version 0.1, and what they are called now."""


class WorldModel(ABC):
    """Predicts what steps would return. Everything is batched over B rollouts, for any B; the state is the caller's.

    A subclass writes :meth:`begin` and :meth:`step`, and :meth:`update`, :meth:`save` and :meth:`load` if it can learn.

    >>> class Constant(WorldModel):
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         n = len(state)
    ...         no, yes = np.zeros(n, bool), np.ones(n, bool)
    ...         return state, Prediction(state, np.ones(n), np.full(n, np.nan), no, no, yes, yes)
    >>> model = Constant()
    >>> _, prediction = model.step(model.begin(np.zeros((7, 3)), {}, None), None, None)
    >>> prediction.reward.shape
    (7,)
    """

    pairs: ClassVar[PairKind] = "teacher_forced"
    """How anchor pairs are best predicted: from each real observation, or by rolling on from the episode's start."""

    learns_in_background: ClassVar[bool] = False
    """Whether :meth:`update` is :meth:`compute_update`, which may run while the model is stepped, and :meth:`apply_update`."""

    interface: Interface | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Take what a subclass has under a name of version 0.1 for what it is called today."""
        super().__init_subclass__(**options)
        for old, new in _RENAMED.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is called {new} now", DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])

    def __getattr__(self, name: str) -> Any:
        """Names of version 0.1."""
        if name not in _RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"{type(self).__name__}.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return getattr(self, _RENAMED[name])

    def bind(self, interface: Interface) -> None:
        """Take in the spaces (and bookkeeping) of the environment that this model stands in for. Called once, by the wrapper."""
        self.interface = interface

    @property
    def fitted(self) -> bool:
        """Whether the model knows anything yet; until then a wrapper runs real episodes."""
        return True

    @abstractmethod
    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> Any:
        """The batch of model states that a batch of real observations, and their infos, stands for."""

    @abstractmethod
    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        """One step of every rollout. Pure: the same inputs and generator give the same output, and ``state`` is not changed."""

    def action_masks(self, state: Any) -> NDArray[np.bool_] | None:
        """Which actions are legal in each of B states, for algorithms that ask (MaskablePPO); None: it does not predict that.

        bool, shape (B, number of actions), or as ``env.action_masks()`` has it for other spaces than Discrete.
        """
        return None

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        """Learn from real transitions that were not seen before.

        Returns:
            Measures of the fit, to be logged; {} from a model that cannot learn.
        """
        return {}

    def remember(self, transitions: Transitions) -> None:
        """After :meth:`load`, give a model back what it learnt from, where its checkpoints do not keep that.

        Nothing is learnt. Most models keep what they go on learning from, and do nothing here.
        """
        return None

    def compute_update(self, transitions: Transitions, rng: np.random.Generator) -> Any:
        """The slow part of :meth:`update`, of a model that ``learns_in_background``: it may run on a thread of its own.

        Nothing that predictions depend on changes. At most one call runs at a time, and its result is applied before the next.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn in the background")

    def apply_update(self, computed: Any) -> dict[str, float]:
        """The quick part: take over what :meth:`compute_update` returned, and give the measures that :meth:`update` gives."""
        raise NotImplementedError(f"{type(self).__name__} does not learn in the background")

    def save(self, path: str | Path) -> None:
        """Write all that was learnt below the folder ``path`` (safetensors and json, never pickle)."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to save")

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to load")


@dataclass(frozen=True, slots=True)
class Observed:
    """What a real step of B rollouts brought, but for its reward.

    Args:
        observation: batch.
        terminated: bool, shape (B,).
        truncated: bool, shape (B,).
    """

    observation: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class RewardModel(WorldModel):
    """A world model of the reward only: real steps are taken, and it says what they are worth (``replaces="reward"``).

    A subclass writes :meth:`begin` and :meth:`judge`.
    """

    @abstractmethod
    def judge(self, state: Any, action: Any, observed: Observed, rng: np.random.Generator) -> tuple[Any, Prediction]:
        """What a real step of every rollout is worth. Pure, as :meth:`step` is; the prediction repeats what was observed."""

    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        """Refuses: it predicts no observations.

        Raises:
            WorldModelError: always.
        """
        raise WorldModelError(f'{type(self).__name__} judges real steps and predicts none: wrap with replaces="reward"')
