"""Fitting an ensemble to real transitions: warm, bounded, and stopped by held-out data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from wmrl_gym import batch
from wmrl_gym.world_models.dynamics.ensemble import EnsembleMLP, MemberRows, bounded_log_variance, rescale_inputs, rescale_outputs
from wmrl_gym.world_models.dynamics.prediction import Bounds, Draws, FittedEnsemble, Scales
from wmrl_gym.world_models.dynamics.vectors import Experience, held_out_rows, training_rows
from wmrl_gym.world_models.torch_state import learning

_MOST_HELD_OUT = 1024
_OUTCOME_HIDDEN = (64, 64)
_FACTOR_BOUNDS = (0.1, 10.0)
_EVALUATE_EVERY = 50
_PATIENCE = 8
_BETA = 0.5
_WEIGHT_DECAY = 1e-5

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output (E, B, out), row numbers (E, B)) -> (E,)"""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit; see :class:`~wmrl_gym.world_models.dynamics.model.EnsembleDynamics`."""

    hidden: tuple[int, ...]
    n_members: int
    n_elites: int
    batch_size: int
    learning_rate: float


@learning()
def fit(
    data: Experience, *, before: FittedEnsemble | None, steps: int, settings: FitSettings, rng: np.random.Generator
) -> tuple[FittedEnsemble, dict[str, float]]:
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
    bounds = Bounds.of(data).with_earlier(None if before is None else before.bounds)
    fitted = FittedEnsemble(moved.network, paid.network, scales, bounds, elites)
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


def _rescaled(before: FittedEnsemble, scales: Scales) -> tuple[EnsembleMLP, EnsembleMLP]:
    """The networks of ``before``, copied and changed so that they say the same with the new normalisations."""
    copies = [network.members(range(network.n_members)) for network in (before.transition, before.outcome)]
    transition, outcome = copies
    old, size = before.scales, len(scales.delta.mean)
    rescale_inputs(transition, old.transition, scales.transition)
    rescale_inputs(outcome, old.outcome, scales.outcome)
    rescale_outputs(transition, old.delta, scales.delta, mean=slice(0, size), log_variance=slice(size, 2 * size))
    rescale_outputs(outcome, old.reward, scales.reward, mean=slice(0, 1), log_variance=slice(1, 2))
    return transition, outcome


def _on_held_out(fitted: FittedEnsemble, data: Experience) -> tuple[float, dict[str, float]]:
    """What held-out rewards say: the factor that the predicted standard deviations need, and measures for a log."""
    before = data.observation.astype(np.float64)
    inputs = fitted.inputs(before, data.action)
    errors, variances, ends = [], [], []
    for elite in range(len(fitted.elites)):
        rows = MemberRows.of(np.full(len(data), elite, np.int64), len(fitted.elites))
        outcome = fitted.outcomes(inputs, before + fitted.delta(inputs, Draws(rows, None, np.full(len(data), 0.5))), rows)
        errors.append((outcome.reward - data.reward)[data.reward_valid])
        variances.append(outcome.doubt()[0][data.reward_valid] ** 2)
        ends.append((outcome.p_terminated > 0.5) != data.terminated)
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


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and on what to train.

    Args:
        samples: for each member the rows of its bootstrap sample.
        held_out: rows that decide when a member was at its best.
        steps: the most gradient steps.
        batch_size: rows a step, for each member.
        learning_rate: at the first step; it falls to a twentieth at the last.
    """

    samples: list[NDArray[np.int64]]
    held_out: NDArray[np.int64]
    steps: int
    batch_size: int
    learning_rate: float

    def minibatch(self, rng: np.random.Generator) -> Tensor:
        """Row numbers, drawn with replacement: int64, shape (E, batch_size)."""
        drawn = rng.random((len(self.samples), self.batch_size))
        rows = [sample[(u * len(sample)).astype(np.int64)] for sample, u in zip(self.samples, drawn, strict=True)]
        return torch.from_numpy(np.stack(rows))


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained network.

    Args:
        network: each member as it was when its held-out score was best.
        score: float64, shape (E,). Those scores; smaller is better.
        steps: gradient steps taken.
    """

    network: EnsembleMLP
    score: NDArray[np.float64]
    steps: int


class _Best:
    """Each member as it was when its held-out score was best."""

    def __init__(self, network: EnsembleMLP, score: Tensor) -> None:
        self.parameters = [tensor.detach().clone() for tensor in network.parameters]
        self.score = score

    def offer(self, network: EnsembleMLP, score: Tensor) -> bool:
        """Take over the members that are better now; returns whether one is so by more than a hundredth."""
        notable = bool((score < 0.99 * self.score).any())
        better = score < self.score
        for kept, tensor in zip(self.parameters, network.parameters, strict=True):
            kept[better] = tensor.detach()[better]
        self.score = torch.minimum(score, self.score)
        return notable


def train(network: EnsembleMLP, x: Tensor, *, loss: Loss, score: Loss, plan: Plan, rng: np.random.Generator) -> Trained:
    """Go on training ``network``; a member that held-out data do not find better stays as it was.

    Args:
        network: where to start; not changed.
        x: inputs, float32, shape (N, in).
        loss: of minibatches.
        score: of held-out rows; smaller is better.
        plan: how long and on what.
        rng: draws the minibatches.
    """
    network = network.with_parameters([tensor.detach().clone().requires_grad_() for tensor in network.parameters])
    held_out = torch.from_numpy(plan.held_out).expand(len(plan.samples), -1)
    held_out_x = x[held_out[0]].expand(len(plan.samples), -1, -1)

    def current() -> Tensor:
        with torch.inference_mode():
            value = score(network.all(held_out_x), held_out)
            return torch.where(torch.isfinite(value), value, torch.inf)

    best = _Best(network, current())
    optimiser = torch.optim.AdamW(network.parameters, lr=plan.learning_rate, weight_decay=_WEIGHT_DECAY, fused=True)
    stale, step = 0, 0
    for step in range(1, plan.steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = plan.learning_rate * (1 - 0.95 * (step - 1) / plan.steps)
        rows = plan.minibatch(rng)
        optimiser.zero_grad(set_to_none=True)
        loss(network.all(x[rows]), rows).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % _EVALUATE_EVERY == 0 or step == plan.steps:
            stale = 0 if best.offer(network, current()) else stale + 1
            if stale >= _PATIENCE:
                break
    return Trained(network.with_parameters(best.parameters), best.score.numpy().astype(np.float64), step)


def gaussian_loss(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """The negative log-likelihood, weighted by the root of the predicted variance, elementwise.

    The plain likelihood hardly fits the mean where the variance is large; the weight mends that (beta-NLL with beta = 0.5, Eq. 4
    of arXiv 2203.09168).
    """
    bounded = bounded_log_variance(log_variance)
    likelihood = 0.5 * ((mean - target).square() * torch.exp(-bounded) + bounded)
    return likelihood * torch.exp(_BETA * bounded).detach()


def transition_losses(delta: Tensor) -> tuple[Loss, Loss]:
    """Loss and held-out score of a transition network: mean and log-variance of each entry of ``delta`` (N, D), normalised."""
    size = delta.shape[1]

    def loss(out: Tensor, rows: Tensor) -> Tensor:
        return gaussian_loss(out[..., :size], out[..., size:], delta[rows]).mean(dim=(1, 2))

    def score(out: Tensor, rows: Tensor) -> Tensor:
        return mse_loss(out[..., :size], delta[rows], reduction="none").mean(dim=(1, 2))

    return loss, score


def outcome_losses(reward: Tensor, valid: Tensor, terminated: Tensor) -> tuple[Loss, Loss]:
    """Loss and held-out score of an outcome network: reward mean, reward log-variance, logit of termination.

    Args:
        reward: float32, shape (N,), normalised.
        valid: float32, shape (N,). 0 where the reward is unknown and must not be learnt from.
        terminated: float32, shape (N,).
    """

    def ends(out: Tensor, rows: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(out[..., 2], terminated[rows], reduction="none")

    def loss(out: Tensor, rows: Tensor) -> Tensor:
        rewards = gaussian_loss(out[..., 0], out[..., 1], reward[rows])
        return (rewards * valid[rows] + ends(out, rows)).mean(dim=1)

    def score(out: Tensor, rows: Tensor) -> Tensor:
        return ((out[..., 0] - reward[rows]).square() * valid[rows] + ends(out, rows)).mean(dim=1)

    return loss, score
