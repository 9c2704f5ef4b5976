"""The methods under test: each turns a step's predictions and anchors into advantages; vectorised over seeds.

Shapes: S seeds, C groups (one a context), G rollouts a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.corrections_study.calibrators import Binned, Identity, Smooth
from benchmarks.corrections_study.world import Array

Mask = NDArray[np.bool_]
FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rollouts. All of shape (S, C, G).

    Args:
        x: raw predicted reward.
        r: true reward; a method may look at it only where it executes.
        by_group: anchors chosen as whole groups.
        by_episode: anchors chosen one by one.
        noise: the noise's standard deviation, as a model that knows it would report it.
        arms: what was done, int64.
        phi: what is known of each arm in each context, shape (S, C, A, D).
    """

    x: Array
    r: Array
    by_group: Mask
    by_episode: Mask
    noise: Array
    arms: NDArray[np.int64]
    phi: Array | None = None


def grpo(reward: Array) -> Array:
    """Centred and standardised inside each group."""
    centred = reward - reward.mean(axis=-1, keepdims=True)
    out: Array = centred / (centred.std(axis=-1, keepdims=True) + 1e-4)
    return out


def pairs(batch: Batch, mask: Mask) -> tuple[Array, Array, NDArray[np.int64]]:
    """Predictions, truths and contexts of the anchors, each of shape (S, n): every seed has equally many."""
    seeds = len(mask)
    context = np.broadcast_to(np.arange(mask.shape[1])[None, :, None], mask.shape)
    return batch.x[mask].reshape(seeds, -1), batch.r[mask].reshape(seeds, -1), context[mask].reshape(seeds, -1)


class Method:
    """Turns batches into advantages, and learns from their anchors.

    ``probes`` are further coefficients whose gradients the trainer hands to :meth:`observe`.
    """

    real_per_step = FRACTION
    probes: tuple[Array, ...] = ()

    def __init__(self, seeds: int) -> None:
        self.seeds = seeds

    def advantage(self, batch: Batch) -> Array:
        """Advantages (S, C, G), and then learning from the batch's anchors."""
        raise NotImplementedError

    def observe(self, gradients: Array) -> None:
        """The gradients (S, D, P) of the probes."""


class RealFull(Method):
    """GRPO on real rewards everywhere: ten times the budget."""

    real_per_step = 1.0

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        return grpo(batch.r)


class RealGroups(Method):
    """GRPO on the anchor groups alone."""

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        out: Array = grpo(batch.r) * batch.by_group
        return out


class RealEpisodes(Method):
    """The anchor episodes alone, against a running baseline of each context."""

    def __init__(self, seeds: int) -> None:
        super().__init__(seeds)
        self._sum, self._count = np.zeros((seeds, 1)), np.full((seeds, 1), 1e-6)
        self._own: NDArray[np.float64] | None = None
        self._square = np.full((seeds, 1, 1), 0.1)

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        m = batch.by_episode
        if self._own is None:
            self._own = np.zeros((2, self.seeds, m.shape[1]))
        pooled = self._sum / self._count
        baseline = (self._own[0] + 4.0 * pooled) / (self._own[1] + 4.0)
        e = np.where(m, batch.r - baseline[..., None], 0.0)
        out: Array = (e / np.sqrt(self._square)).astype(np.float32)
        n = m.sum(axis=(1, 2))[:, None]
        self._square = 0.9 * self._square + 0.1 * ((e**2).sum(axis=(1, 2), keepdims=True) / n[..., None])
        total, count = np.where(m, batch.r, 0.0).sum(axis=-1), m.sum(axis=-1)
        self._own = 0.9 * self._own + np.stack([total, count])
        self._sum = 0.9 * self._sum + total.sum(axis=1, keepdims=True)
        self._count = 0.9 * self._count + n
        return out


class ModelAlone(Method):
    """GRPO on raw predictions: no anchors at all."""

    real_per_step = 0.0

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        return grpo(batch.x)


class PaperWeight:
    """:class:`wmrl_gym.corrections.AnchorWeight` over S seeds."""

    def __init__(self, seeds: int) -> None:
        self.value = np.full(seeds, np.nan)
        self._count = np.zeros(seeds, dtype=np.int64)
        self._scale = np.full(seeds, np.nan)

    @property
    def weight(self) -> NDArray[np.float64]:
        """Shape (S,)."""
        return np.where(np.isnan(self._scale), 1.0, np.clip(1.0 + self._scale * self.value, 1.0, 4.0))

    def update(self, f: Array, r: Array) -> None:
        """Anchor groups, each of shape (S, n, G)."""
        spread = r.var(axis=-1)
        ratio = (f - r).var(axis=-1) / np.maximum(spread, 1e-9)
        keep = 0.5 ** (1.0 / 64.0)
        for k in range(r.shape[1]):
            use = spread[:, k] >= 1e-9
            value = np.where(self._count == 0, ratio[:, k], keep * self.value + (1.0 - keep) * ratio[:, k])
            self.value = np.where(use, value, self.value)
            self._count += use
            due = np.isnan(self._scale) & (self._count >= 32) & (self.value > 1e-12)
            self._scale = np.where(due, 1.0 / np.where(due, self.value, 1.0), self._scale)


class Replace(Method):
    """Anchor groups have their real rewards, the others predictions: mixture, one of the corrections, or both as in the paper.

    Args:
        debias: calibrate with the paper's binned isotonic regression.
        weight: "paper", or a fixed weight of the anchor groups.
    """

    def __init__(self, seeds: int, *, debias: bool, weight: float | str) -> None:
        super().__init__(seeds)
        self._f = Binned(seeds) if debias else Identity()
        self._weight = PaperWeight(seeds) if weight == "paper" else weight

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        m = batch.by_group
        w = self._weight.weight[:, None, None] if isinstance(self._weight, PaperWeight) else self._weight
        out = grpo(np.where(m, batch.r, self._f.predict(batch.x))) * np.where(m, w, 1.0)
        self._f.push(*pairs(batch, m))
        if isinstance(self._weight, PaperWeight):
            shape = (self.seeds, -1, m.shape[-1])
            self._weight.update(self._f.predict(batch.x)[m].reshape(shape), batch.r[m].reshape(shape))
        return out.astype(np.float32)


class ResidualVariance:
    """:class:`wmrl_gym.corrections.ResidualVariance` over S seeds, folding a step's pairs in at once."""

    def __init__(self, seeds: int) -> None:
        self.value = np.full(seeds, 0.02)
        self._count = 8.0

    def update(self, squares: Array) -> None:
        """Squared residuals, shape (S, n)."""
        self._count = min(self._count + squares.shape[1], 500.0)
        share = min(squares.shape[1] / self._count, 1.0)
        self.value = self.value + share * (squares.mean(axis=1) - self.value)


def clip_rms(value: Array, bound: float = 5.0) -> Array:
    """Clipped at ``bound`` root mean squares of each seed's batch."""
    limit = bound * np.sqrt((value**2).mean(axis=(1, 2), keepdims=True))
    out: Array = np.clip(value, -limit, limit)
    return out


class Residual(Method):
    """The residual form; the recommended one with its defaults.

    Args:
        kappa: share of the residual that is passed on.
        scale: "posterior" divides by sqrt(var_g f + s^2), "std" standardises the corrected reward inside its group (what a
            weight-blind GRPO does), "centre" only centres it.
        calibrator: "smooth", "pooled" (no contexts), "binned" or "none".
        by_group: anchors as whole groups.
    """

    def __init__(
        self, seeds: int, *, kappa: float = 0.5, scale: str = "posterior", calibrator: str = "smooth", by_group: bool = False
    ) -> None:
        super().__init__(seeds)
        make: dict[str, Callable[[], Binned | Smooth | Identity]] = {
            "smooth": lambda: Smooth(seeds),
            "pooled": lambda: Smooth(seeds, pooled=True),
            "binned": lambda: Binned(seeds),
            "none": Identity,
        }
        self._f = make[calibrator]()
        self._s2 = ResidualVariance(seeds)
        self._kappa, self._scale, self._by_group = kappa, scale, by_group

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        m = batch.by_group if self._by_group else batch.by_episode
        out: Array
        f = self._f.predict(batch.x)
        kappa = self.kappa()
        residual = np.where(m, batch.r - f, 0.0)
        extra = kappa / FRACTION * residual
        centred = f - f.mean(axis=-1, keepdims=True)
        if self._scale == "posterior":
            out = (centred + extra) / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._s2.value[:, None, None])
            out = clip_rms(out)
        elif self._scale == "std":
            out = grpo((f + extra).astype(np.float32))
        else:
            out = centred + extra - extra.mean(axis=-1, keepdims=True)
            out = out / np.sqrt((out**2).mean(axis=(1, 2), keepdims=True) + 1e-8)
        self._f.push(*pairs(batch, m))
        self._s2.update(residual[m].reshape(self.seeds, -1) ** 2)
        self.learn(batch, m, residual, centred)
        return out.astype(np.float32)

    def kappa(self) -> Array | float:
        """The share of the residual to pass on: a number, or one a seed of shape (S, 1, 1)."""
        return self._kappa

    def learn(self, batch: Batch, mask: Mask, residual: Array, centred: Array) -> None:
        """Called after each step with its residuals and centred calibrated predictions, (S, C, G) each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A method's name, how it is made for S seeds, its learning rate, and whether it looks at predictions at all."""

    name: str
    make: Callable[[int], Method]
    rate: float = 0.02
    uses_model: bool = True
