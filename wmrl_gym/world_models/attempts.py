"""What every model of a factored environment shares: it predicts outcomes, and the environment's bookkeeping does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.randomness import draw
from wmrl_gym.world_models.base import Interface, PairKind, Prediction, WorldModel, WorldModelError

UNKNOWN_STATUS = -1
"""``info["predicted_status"]`` where the model has no answer."""


@dataclass(frozen=True, slots=True)
class PredictedOutcomes:
    """What a model expects of B attempts.

    Args:
        outcome: the outcomes; not ``known`` where the model has no answer.
        std: float64, shape (B,). Standard deviation of the value's error: 0 where the gate answered, NaN where unknown.
        info: arrays of length B.
    """

    outcome: Outcome
    std: NDArray[np.float64]
    info: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptState:
    """State of B rollouts.

    Args:
        inner: the environment's own bookkeeping.
        context: int64, shape (B,).
        seed: int64, shape (B,), 31 bits. Another at each step; for a model that draws, so that a rollout's luck is its
            own in any batch.
        best: float64, shape (B,). What the attempt that the episode pays for was chosen by, the highest so far; -inf before the
            first, see :attr:`~wmrl_gym.factored.Factored.chosen_by`.
        best_std: float64, shape (B,). Standard deviation of the error of that attempt's value.
    """

    inner: Any
    context: NDArray[np.int64]
    seed: NDArray[np.int64]
    best: NDArray[np.float64]
    best_std: NDArray[np.float64]


class AttemptModel(WorldModel):
    """A world model of factored environments. A subclass writes :meth:`predict_outcomes`."""

    pairs: ClassVar[PairKind] = "open_loop"
    reads_context: ClassVar[bool] = False
    """Whether :meth:`predict_outcomes` makes use of the context beyond what the attempt says itself."""

    @property
    def factored(self) -> Factored[Any, Any]:
        """The environment's bookkeeping.

        Raises:
            WorldModelError: not bound yet, or bound to an environment that is not factored.
        """
        name = type(self).__name__
        if self.interface is None:
            raise WorldModelError(f"{name} is not bound to an environment: wrap one in WorldModelWrapper, or call bind()")
        if self.interface.factored is None:
            raise WorldModelError(
                f"{name} predicts the outcomes of factored environments (those with a `factored` attribute, such as "
                "wmrl/AutoResearch-v0); this environment is not one, so it needs a dynamics model"
            )
        return self.interface.factored

    def bind(self, interface: Interface) -> None:
        super().bind(interface)
        statuses, values = self.factored.statuses, np.asarray(self.factored.status_values, np.float64)
        if len(statuses) != len(values):
            raise WorldModelError(f"{len(statuses)} statuses but {len(values)} status_values")
        self._fixed, self._open = values, np.isnan(values)

    @abstractmethod
    def predict_outcomes(
        self, attempt: Any, context: NDArray[np.int64], *, seed: NDArray[np.int64], rng: np.random.Generator
    ) -> PredictedOutcomes:
        """The outcomes of a batch of attempts at the tasks in ``context``, each with a seed of its own."""

    def chosen_by(self, outcome: Outcome) -> NDArray[np.float64]:
        """By what the attempt is chosen that an episode pays for, the largest first: float64, shape (B,)."""
        return outcome.value if self.factored.chosen_by == "value" else np.nan_to_num(outcome.shown, nan=-np.inf)

    def held_out_outcomes(self, attempt: Any, context: NDArray[np.int64]) -> PredictedOutcomes | None:
        """What the model would predict of a batch of attempts, had it not learnt from the executions of just these.

        Optional, for a model that learns: the corrections then compare truths with what it would predict today, and not with what
        it did before it knew better. Attempts that it has not learnt from are predicted as ever. None, the default: it does not
        say, and old predictions stay as they were.

        Args:
            attempt: B attempts.
            context: int64, shape (B,).
        """
        return None

    def predict(
        self, attempt: Any, rng: np.random.Generator, *, context: NDArray[np.int64] | None = None
    ) -> tuple[Outcome, NDArray[np.float64]]:
        """The outcomes of a batch of attempts, apart from any rollout.

        Args:
            attempt: B attempts.
            rng: seeds models that draw.
            context: int64, shape (B,). Which task each is an attempt at; only a model that ``reads_context`` needs to be told.

        Returns:
            The outcomes, and the standard deviation of their values' errors, float64, shape (B,): 0 where the gate answered, NaN
            where nothing is known of it.

        Raises:
            WorldModelError: the context is needed, and there is more than one.
        """
        n = len(self.factored.text(attempt))
        if context is None:
            if self.reads_context and len(self.factored.contexts) > 1:
                raise WorldModelError(
                    f"{type(self).__name__} needs to know which of {len(self.factored.contexts)} tasks: predict(..., context=...)"
                )
            context = np.zeros(n, np.int64)
        predicted = self.predict_outcomes(attempt, context, seed=rng.integers(2**31, size=n), rng=rng)
        return predicted.outcome, predicted.std

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> AttemptState:
        inner = self.factored.begin(observation, info)
        context = np.asarray(info["context"], np.int64)
        n = len(context)
        return AttemptState(inner, context, rng.integers(2**31, size=n), np.full(n, -np.inf), np.full(n, np.nan))

    def step(self, state: AttemptState, action: Any, rng: np.random.Generator) -> tuple[AttemptState, Prediction]:
        attempt = self.factored.attempt(state.inner, action)
        predicted = self.predict_outcomes(attempt, state.context, seed=state.seed, rng=rng)
        outcome = predicted.outcome
        inner, step = self.factored.advance(state.inner, attempt, outcome)
        by = self.chosen_by(outcome)
        better = outcome.known & (by > state.best)
        best_std = np.where(better, predicted.std, state.best_std)
        best = np.where(better, by, state.best)
        after = AttemptState(inner, state.context, draw(state.seed, 2**31), best, best_std)
        status = np.where(outcome.known, outcome.status, UNKNOWN_STATUS)
        return after, Prediction(
            step.observation,
            step.reward,
            np.where(step.reward_due, best_std, np.nan),
            step.terminated,
            step.truncated,
            step.reward_due,
            step.reward_valid,
            {**step.info, **predicted.info, "predicted_status": status},
        )

    def _gated(self, attempt: Any, predicted: PredictedOutcomes) -> PredictedOutcomes:
        """Put the gate's exact answers, of which there is no doubt, in their places."""
        gated, exact = self.factored.gate(attempt)
        if not gated.any():
            return predicted
        outcome = batch.put(predicted.outcome, gated, batch.take(exact, gated))
        return PredictedOutcomes(outcome, np.where(gated, 0.0, predicted.std), predicted.info)
