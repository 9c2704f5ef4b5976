"""A fitted ensemble: what it predicts of a step, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.lazy import renamed
from wmrl_gym.randomness import halves, normals, words
from wmrl_gym.world_models.base import Prediction
from wmrl_gym.world_models.dynamics.ensemble import EnsembleMLP, MemberRows, Members, Scale, bounded_variance, sigmoid
from wmrl_gym.world_models.dynamics.vectors import Experience

Propagation = Literal["ts1", "ts_inf", "mean"]
Doubt = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Standard deviation of the reward's error, and the part of it that is the elites' disagreement: float64, shape (B,) each."""

_FEW = 16
"""For up to so many rollouts it costs as much to ask all elites for the reward as to ask one for each."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Normalisations of everything that goes in and comes out, each of one kind of column."""

    observation: Scale
    action: Scale
    delta: Scale
    reward: Scale

    @classmethod
    def of(cls, data: Experience) -> Scales:
        """The normalisations of ``data``."""
        # An input that never changed says nothing yet, and must not become enormous when it first does; a target that never
        # changed is to be predicted exactly.
        reward = data.reward[data.reward_valid] if data.reward_valid.any() else data.reward
        return cls(
            Scale.of(data.observation, constant=1.0),
            Scale.of(data.action, constant=1.0),
            Scale.of(data.delta, constant=1e-8),
            Scale.of(reward[:, None], constant=1e-8),
        )

    @property
    def transition(self) -> Scale:
        """Of the transition network's inputs: observation, action."""
        return Scale.joined(self.observation, self.action)

    @property
    def outcome(self) -> Scale:
        """Of the outcome network's inputs: observation, action, next observation."""
        return Scale.joined(self.observation, self.action, self.observation)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of predictions: the range of the data, and as much again on either side.

    Args:
        low: float64, shape (D,). Of each entry of the observations.
        high: float64, shape (D,).
        reward_low: of rewards.
        reward_high: of rewards.
        ends: whether an episode was ever seen to terminate.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    reward_low: float
    reward_high: float
    ends: bool

    @classmethod
    def of(cls, data: Experience) -> Bounds:
        """What ``data`` shows."""
        after = data.next_observation.astype(np.float64)
        low = np.minimum(data.observation.min(axis=0), after.min(axis=0)).astype(np.float64)
        high = np.maximum(data.observation.max(axis=0), after.max(axis=0)).astype(np.float64)
        rewards = data.reward[data.reward_valid] if data.reward_valid.any() else np.zeros(1)
        least, greatest = float(rewards.min()), float(rewards.max())
        width = greatest - least
        return cls(2 * low - high, 2 * high - low, least - width, greatest + width, bool(data.terminated.any()))

    def with_earlier(self, earlier: Bounds | None) -> Bounds:
        """The union of both: data that have left the replay still count."""
        if earlier is None:
            return self
        return Bounds(
            np.minimum(self.low, earlier.low),
            np.maximum(self.high, earlier.high),
            min(self.reward_low, earlier.reward_low),
            max(self.reward_high, earlier.reward_high),
            self.ends or earlier.ends,
        )


@dataclass(frozen=True, slots=True)
class Draws:
    """What one step of B rollouts draws.

    Args:
        rows: which elite says what happens in each; None takes the mean of all.
        noise: float32, shape (B, D). Standard normal; None where nothing is drawn.
        chance: float64, shape (B,). What the probability of termination has to exceed.
    """

    rows: MemberRows | None
    noise: NDArray[np.float32] | None
    chance: NDArray[np.float64]

    @classmethod
    def of(cls, how: Propagation, seed: NDArray[np.int64], key: int, *, n_elites: int, size: int) -> Draws:
        """Draw for rollouts of their own ``seed``, int64, shape (B,), whose observations have ``size`` numbers."""
        if how == "mean":
            return cls(None, None, np.full(len(seed), 0.5))
        drawn = words(seed, key, 1 + (size + 1) // 2)
        which, low = halves(drawn[:, 0])
        if how == "ts_inf":
            which = halves(words(seed, 0, 1)[:, 0])[0]
        elite = ((which.astype(np.uint64) * np.uint64(n_elites)) >> np.uint64(32)).astype(np.int64)
        return cls(MemberRows.of(elite, n_elites), normals(drawn[:, 1:])[:, :size], (low.astype(np.float64) + 0.5) * 2.0**-32)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What is predicted of B steps besides the next observation.

    Args:
        reward: float64, shape (B,).
        p_terminated: float64, shape (B,).
        doubt: finds out how far off the rewards may be; all elites are asked for that.
    """

    reward: NDArray[np.float64]
    p_terminated: NDArray[np.float64]
    doubt: Callable[[], Doubt]


class EnsemblePrediction(Prediction):
    """A prediction whose ``reward_std`` and ``info["disagreement"]`` are computed when they are first read.

    What a step is worth to a rollout is said by its own elite; how far the elites disagree costs an answer of each of them.
    Arguments are those of :class:`Prediction`, but ``reward_std`` may be a function that finds out both.
    """

    __slots__ = ("_doubt", "_known")
    _doubt: Callable[[], Doubt]
    _known: Doubt

    def __init__(
        self,
        observation: Any,
        reward: NDArray[np.float64],
        reward_std: NDArray[np.float64] | Callable[[], Doubt],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        reward_due: NDArray[np.bool_],
        reward_valid: NDArray[np.bool_],
        info: dict[str, NDArray[Any]] | None = None,
    ) -> None:
        for name, value in zip(_FLAGS, (terminated, truncated, reward_due, reward_valid), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "observation", observation)
        object.__setattr__(self, "reward", reward)
        if callable(reward_std):
            object.__setattr__(self, "_doubt", reward_std)
        else:
            object.__setattr__(self, "_known", (reward_std, (info or {})["disagreement"]))

    @property
    def reward_std(self) -> NDArray[np.float64]:
        return self._doubts()[0]

    @property
    def info(self) -> dict[str, NDArray[Any]]:
        return {"disagreement": self._doubts()[1]}

    def __reduce__(self) -> Any:
        return Prediction, tuple(getattr(self, each.name) for each in fields(Prediction))

    def _doubts(self) -> Doubt:
        if not hasattr(self, "_known"):
            object.__setattr__(self, "_known", self._doubt())
        return self._known


_FLAGS = ("terminated", "truncated", "reward_due", "reward_valid")


@dataclass(frozen=True, slots=True)
class FittedEnsemble:
    """Predicts steps. Reward and termination are predicted from the step *and where it led*, so that they agree with it.

    Args:
        transition: (observation, action) -> mean and log-variance of the change of the observation.
        outcome: (observation, action, next observation) -> mean and log-variance of the reward, logit of termination.
        scales: of the networks' inputs and outputs.
        bounds: of predictions.
        elites: the members whose held-out scores are best, ascending.
        reward_factor: what the members' reward standard deviation has to be multiplied by, on held-out data.
    """

    transition: EnsembleMLP
    outcome: EnsembleMLP
    scales: Scales
    bounds: Bounds
    elites: tuple[int, ...]
    reward_factor: float = 1.0
    moves: Members = field(init=False)
    pays: Members = field(init=False)
    sight: Scale = field(init=False)

    def __post_init__(self) -> None:
        """Lay the elites out to answer."""
        object.__setattr__(self, "moves", Members(self.transition, self.elites))
        object.__setattr__(self, "pays", Members(self.outcome, self.elites))
        object.__setattr__(self, "sight", self.scales.transition)

    def inputs(self, observation: NDArray[np.float64], action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Observations (B, D) and actions (B, A) as the networks see them: float32, shape (B, D + A)."""
        return self.sight.inputs(np.concatenate([observation, action], axis=1))

    def delta(self, inputs: NDArray[np.float32], draws: Draws) -> NDArray[np.float64]:
        """The change of the observation: float64, shape (B, D).

        Args:
            inputs: of :meth:`inputs`.
            draws: whose word it is, and the noise.
        """
        scale = self.scales.delta
        size = len(scale.mean)
        out = self.moves.every(inputs).mean(axis=0) if draws.rows is None else self.moves.own(inputs, draws.rows)
        if draws.noise is None:
            return out[:, :size] * scale.std + scale.mean
        std = np.sqrt(bounded_variance(out[:, size:]))
        std *= draws.noise
        std += out[:, :size]
        return std * scale.std + scale.mean

    def outcomes(
        self, inputs: NDArray[np.float32], next_observation: NDArray[np.float64], rows: MemberRows | None
    ) -> StepOutcome:
        """Reward and termination of steps.

        Args:
            inputs: of :meth:`inputs`.
            next_observation: float64, shape (B, D). Where the steps led.
            rows: whose word it is.
        """
        x = np.concatenate([inputs, self.scales.observation.inputs(next_observation)], axis=1)
        every = self.pays.every(x) if rows is None or len(x) <= _FEW else None
        if rows is None:
            assert every is not None
            mean, noise = every[..., 0].mean(axis=0, dtype=np.float64), bounded_variance(every[..., 1]).mean(axis=0)
            p = sigmoid(every[..., 2]).mean(axis=0)
        else:
            own = self.pays.own(x, rows) if every is None else every[rows.member, np.arange(len(x))]
            mean, noise, p = own[:, 0].astype(np.float64), bounded_variance(own[:, 1]), sigmoid(own[:, 2])
        scale = self.scales.reward
        unit = float(scale.std[0])
        reward = np.maximum(mean * unit + float(scale.mean[0]), self.bounds.reward_low)
        reward = np.minimum(reward, self.bounds.reward_high, out=reward)

        def doubt() -> Doubt:
            said = (self.pays.every(x) if every is None else every)[..., 0]
            spread = said.std(axis=0, dtype=np.float64)
            return np.sqrt(noise + np.square(spread)) * (unit * self.reward_factor), spread * unit

        return StepOutcome(reward, p.astype(np.float64) if self.bounds.ends else np.zeros(len(x)), doubt)


__getattr__ = renamed(__name__, {"Outcome": "StepOutcome"})
