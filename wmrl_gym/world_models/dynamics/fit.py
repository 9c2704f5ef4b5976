"""What an ensemble has learnt: fitting it to real transitions, and evaluating it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.world_models.dynamics.inference import Evaluator
from wmrl_gym.world_models.dynamics.networks import (
    EnsembleMLP,
    Scale,
    bounded_variance,
    rescale_inputs,
    rescale_outputs,
    sigmoid,
)
from wmrl_gym.world_models.dynamics.replay import Experience, held_out_rows, training_rows
from wmrl_gym.world_models.dynamics.training import Plan, outcome_losses, train, transition_losses

_MOST_HELD_OUT = 1024
_OUTCOME_HIDDEN = (64, 64)
_FACTOR_BOUNDS = (0.1, 10.0)


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
class Seen:
    """What the data showed, beyond which predictions are not trusted.

    Args:
        low: float64, shape (D,). The least of each entry of the observations, less their whole range.
        high: float64, shape (D,). The greatest, plus their whole range.
        reward_low: the same of rewards.
        reward_high: the same of rewards.
        ends: whether an episode was ever seen to terminate.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    reward_low: float
    reward_high: float
    ends: bool

    @classmethod
    def of(cls, data: Experience) -> Seen:
        """What ``data`` shows."""
        after = data.next_observation.astype(np.float64)
        low = np.minimum(data.observation.min(axis=0), after.min(axis=0)).astype(np.float64)
        high = np.maximum(data.observation.max(axis=0), after.max(axis=0)).astype(np.float64)
        rewards = data.reward[data.reward_valid] if data.reward_valid.any() else np.zeros(1)
        least, greatest = float(rewards.min()), float(rewards.max())
        width = greatest - least
        return cls(2 * low - high, 2 * high - low, least - width, greatest + width, bool(data.terminated.any()))

    def with_earlier(self, earlier: Seen | None) -> Seen:
        """Both together: what has left the replay was seen all the same."""
        if earlier is None:
            return self
        return Seen(
            np.minimum(self.low, earlier.low),
            np.maximum(self.high, earlier.high),
            min(self.reward_low, earlier.reward_low),
            max(self.reward_high, earlier.reward_high),
            self.ends or earlier.ends,
        )


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit; see :class:`~wmrl_gym.world_models.dynamics.model.EnsembleDynamics`."""

    hidden: tuple[int, ...]
    n_members: int
    n_elites: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Guess:
    """What members say of B steps.

    Args:
        reward: float64, shape (B,).
        reward_std: float64, shape (B,). From the reward's noise and the spread between members.
        spread: float64, shape (B,). The standard deviation between members alone.
        p_terminated: float64, shape (B,).
    """

    reward: NDArray[np.float64]
    reward_std: NDArray[np.float64]
    spread: NDArray[np.float64]
    p_terminated: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted ensemble. Reward and termination are predicted from the step *and where it led*, so that they agree with it.

    Args:
        transition: (observation, action) -> mean and log-variance of the change of the observation.
        outcome: (observation, action, next observation) -> mean and log-variance of the reward, logit of termination.
        scales: of the networks' inputs and outputs.
        seen: bounds on predictions.
        elites: the members whose held-out scores are best, ascending.
        reward_factor: what the members' reward standard deviation has to be multiplied by, on held-out data.
    """

    transition: EnsembleMLP
    outcome: EnsembleMLP
    scales: Scales
    seen: Seen
    elites: tuple[int, ...]
    reward_factor: float = 1.0
    moves: Evaluator = field(init=False)
    pays: Evaluator = field(init=False)
    sight: Scale = field(init=False)

    def __post_init__(self) -> None:
        """Lay the elites out for evaluation."""
        object.__setattr__(self, "moves", Evaluator.of(self.transition, self.elites))
        object.__setattr__(self, "sight", self.scales.transition)
        object.__setattr__(self, "pays", Evaluator.of(self.outcome, self.elites))

    def inputs(self, observation: NDArray[np.float64], action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Observations (B, D) and actions (B, A) as the networks see them: float32, shape (B, D + A)."""
        return self.sight.inputs(np.concatenate([observation, action], axis=1))

    def delta(
        self, inputs: NDArray[np.float32], elite: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of the change of the observation: float64, both of shape (B, D).

        Args:
            inputs: float32, shape (B, D + A), of :meth:`inputs`.
            elite: int64, shape (B,). Which of the elites says it for each row; None takes the mean of all.
        """
        scale = self.scales.delta
        size = len(scale.mean)
        with torch.inference_mode():
            x = torch.from_numpy(inputs)
            out = (self.moves.every(x).mean(dim=0) if elite is None else self.moves.each(x, elite)).numpy()
        return out[:, :size] * scale.std + scale.mean, np.sqrt(bounded_variance(out[:, size:])) * scale.std

    def guess(self, inputs: NDArray[np.float32], next_observation: NDArray[np.float64], elite: NDArray[np.int64] | None) -> Guess:
        """Reward and termination of steps; arguments as for :meth:`delta`. The spread is over all elites in any case.

        Args:
            inputs: as for :meth:`delta`.
            next_observation: float64, shape (B, D). Where the steps led.
            elite: as for :meth:`delta`.
        """
        scales = self.scales
        x = np.concatenate([inputs, scales.observation.inputs(next_observation)], axis=1)
        with torch.inference_mode():
            out = self.pays.every(torch.from_numpy(x)).numpy()
        # A few columns of many members: numpy's calls cost a fifth of torch's.
        said = out[..., 0].astype(np.float64)
        mean = said.sum(axis=0) / len(said)
        spread = np.sqrt(np.square(said - mean).sum(axis=0) / len(said))
        if elite is None:
            noise = bounded_variance(out[..., 1]).mean(axis=0, dtype=np.float64)
        else:
            own = out[elite, np.arange(len(x))]
            mean, noise = own[:, 0].astype(np.float64), bounded_variance(own[:, 1]).astype(np.float64)
        p = sigmoid(out[..., 2]).mean(axis=0, dtype=np.float64) if self.seen.ends else np.zeros(len(x))
        unit, centre = float(scales.reward.std[0]), float(scales.reward.mean[0])
        reward = np.minimum(np.maximum(mean * unit + centre, self.seen.reward_low), self.seen.reward_high)
        return Guess(reward, np.sqrt(noise + spread**2) * (unit * self.reward_factor), spread * unit, p)


def fit(
    data: Experience, *, before: Fit | None, steps: int, settings: FitSettings, rng: np.random.Generator
) -> tuple[Fit, dict[str, float]]:
    """Fit an ensemble to ``data``, going on from ``before`` where there is one.

    Returns:
        The fit, and measures of it for a log.
    """
    scales = Scales.of(data)
    transition, outcome = _new(data, settings, rng) if before is None else _rescaled(before, scales)
    plan = Plan(training_rows(data), held_out_rows(data, most=_MOST_HELD_OUT), steps, settings.batch_size, settings.learning_rate)
    before_x, after_x = scales.observation.inputs(data.observation), scales.observation.inputs(data.next_observation)
    x = torch.from_numpy(np.concatenate([before_x, scales.action.inputs(data.action), after_x], axis=1))
    loss, score = transition_losses(torch.from_numpy(scales.delta.targets(data.delta)))
    moved = train(transition, x[:, : len(scales.transition.mean)], loss=loss, score=score, plan=plan, rng=rng)
    reward = torch.from_numpy(scales.reward.targets(data.reward[:, None])[:, 0])
    loss, score = outcome_losses(reward, _floats(data.reward_valid), _floats(data.terminated))
    paid = train(outcome, x, loss=loss, score=score, plan=plan, rng=rng)
    ranking = np.argsort(moved.score + paid.score, kind="stable")
    elites = tuple(sorted(ranking[: settings.n_elites].tolist()))
    seen = Seen.of(data).with_earlier(None if before is None else before.seen)
    fitted = Fit(moved.network, paid.network, scales, seen, elites)
    factor, rewards = _on_held_out(fitted, batch.take(data, plan.held_out))
    measures = {
        "wm/gradient_steps": float(moved.steps + paid.steps),
        "wm/delta_error": float(moved.score[list(elites)].mean()),
    }
    return replace(fitted, reward_factor=factor), measures | rewards


def _new(data: Experience, settings: FitSettings, rng: np.random.Generator) -> tuple[EnsembleMLP, EnsembleMLP]:
    n_observation, n_action = data.observation.shape[1], data.action.shape[1]
    n_in = n_observation + n_action
    transition = EnsembleMLP.random([n_in, *settings.hidden, 2 * n_observation], settings.n_members, rng)
    outcome = EnsembleMLP.random([n_in + n_observation, *_OUTCOME_HIDDEN, 3], settings.n_members, rng)
    # Ends are rare: begin with their share, not with every second step.
    share = (data.terminated.sum() + 0.5) / (len(data) + 1)
    outcome.biases[-1][..., 2] = float(np.log(share / (1 - share)))
    return transition, outcome


def _rescaled(before: Fit, scales: Scales) -> tuple[EnsembleMLP, EnsembleMLP]:
    """The networks of ``before``, copied and changed so that they say the same with the new normalisations."""
    copies = [network.members(range(network.n_members)) for network in (before.transition, before.outcome)]
    transition, outcome = copies
    old, size = before.scales, len(scales.delta.mean)
    rescale_inputs(transition, old.transition, scales.transition)
    rescale_inputs(outcome, old.outcome, scales.outcome)
    rescale_outputs(transition, old.delta, scales.delta, mean=slice(0, size), log_variance=slice(size, 2 * size))
    rescale_outputs(outcome, old.reward, scales.reward, mean=slice(0, 1), log_variance=slice(1, 2))
    return transition, outcome


def _on_held_out(fitted: Fit, data: Experience) -> tuple[float, dict[str, float]]:
    """What held-out rewards say: the factor that the predicted standard deviations need, and measures for a log."""
    before = data.observation.astype(np.float64)
    inputs = fitted.inputs(before, data.action)
    errors, variances, ends = [], [], []
    for elite in range(len(fitted.elites)):
        chosen = np.full(len(data), elite, np.int64)
        delta, _ = fitted.delta(inputs, chosen)
        guess = fitted.guess(inputs, before + delta, chosen)
        errors.append((guess.reward - data.reward)[data.reward_valid])
        variances.append(guess.reward_std[data.reward_valid] ** 2)
        ends.append((guess.p_terminated > 0.5) != data.terminated)
    squared, expected = np.square(errors), float(np.mean(variances)) if data.reward_valid.any() else 0.0
    factor = float(np.clip(np.sqrt(squared.mean() / expected), *_FACTOR_BOUNDS)) if expected > 0 else 1.0
    measures = {
        "wm/reward_error": float(np.sqrt(squared.mean())) if squared.size else float("nan"),
        "wm/termination_error": float(np.mean(ends)),
        "wm/reward_std_factor": factor,
    }
    return factor, measures


def _floats(flags: NDArray[np.bool_]) -> torch.Tensor:
    return torch.from_numpy(flags.astype(np.float32))
