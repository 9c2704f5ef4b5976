"""The variances of the two gradients, measured online, and the weight of an anchor that follows from them."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, PairWindow, as_floats, as_ints
from wmrl_gym.corrections.denoising import Fusion, fuse_variances


def mean_variance(
    contributions: ArrayLike,
    *,
    method: Literal["delta", "bootstrap"] = "delta",
    draws: int = 200,
    rng: np.random.Generator | None = None,
) -> float:
    """Variance of the mean of independent contributions to a gradient, summed over coordinates.

    Args:
        contributions: one row an independent unit (a group, where advantages are centred within groups): float64, shape (N, D)
            or (N,).
        method: "delta" is the sample variance / N; "bootstrap" resamples the units.
        draws: bootstrap samples.
        rng: for the bootstrap.

    Returns:
        The trace of the covariance of the mean; infinite with fewer than 2 units.

    Raises:
        ValueError: if the method is unknown, or the bootstrap has no generator.

    >>> mean_variance([0.0, 2.0])
    1.0
    """
    x = np.asarray(contributions, dtype=np.float64)
    x = x.reshape(len(x), -1)
    n = len(x)
    if method not in ("delta", "bootstrap"):
        raise ValueError(f"method must be 'delta' or 'bootstrap', got {method!r}")
    if n < 2:
        return float("inf")
    if method == "delta":
        return float(x.var(axis=0, ddof=1).sum() / n)
    if rng is None:
        raise ValueError("method='bootstrap' needs rng, a numpy Generator")
    # Counts instead of copies: each draw is a multinomial reweighting. Its variance is short by (n - 1) / n.
    counts = rng.multinomial(n, np.full(n, 1.0 / n), size=draws) / n
    return float((counts @ x).var(axis=0, ddof=1).sum() * n / (n - 1))


class GradientFusion:
    """The weight of an anchor against a predicted rollout, from the variances of their gradients.

    With per-unit variances v_E and v_WM, n_E anchors and n_WM others, giving each anchor the weight ``v_WM / v_E`` is the
    fusion of the two means by inverse variance: ``V = v / n``. Both are exponential means over steps. v_E is what the truth
    itself varies by, v_WM that and the model's noise on top; the weight is 1 while one of them is not known.

    Args:
        half_life: steps after which a measurement counts half.
        most: cap on the weight, and its inverse the floor.
        method: "delta" or "bootstrap", see :func:`mean_variance`.
        seed: of the bootstrap.

    Raises:
        ValueError: if an argument is out of its range.

    >>> fusion = GradientFusion()
    >>> fusion.update(anchors=[-1.0, 1.0], others=[-2.0, 2.0])
    >>> fusion.weight
    4.0
    >>> fusion.fused(n_anchors=6, n_others=8)
    Fusion(anchor=0.75, model=0.25, variance=0.25)
    """

    def __init__(
        self,
        *,
        half_life: float = 64.0,
        most: float = 8.0,
        method: Literal["delta", "bootstrap"] = "delta",
        seed: int = 0,
    ) -> None:
        if not half_life > 0 or not most >= 1:
            raise ValueError(f"need half_life > 0 and most >= 1, got {half_life} and {most}")
        if method not in ("delta", "bootstrap"):
            raise ValueError(f"method must be 'delta' or 'bootstrap', got {method!r}")
        self.half_life, self.most = float(half_life), float(most)
        self.method: Literal["delta", "bootstrap"] = method
        self._rng = np.random.default_rng(seed)
        self._sums: Floats = np.zeros(2)
        self._steps: Floats = np.zeros(2)

    @property
    def variances(self) -> tuple[float, float]:
        """Per-unit variances (v_E, v_WM); NaN where nothing was measured."""
        known = self._steps > 0
        value = np.where(known, self._sums / np.where(known, self._steps, 1.0), np.nan)
        return float(value[0]), float(value[1])

    @property
    def weight(self) -> float:
        """The weight of an anchor, in [1 / most, most]."""
        anchor, model = self.variances
        if not (anchor > 0 and model > 0):
            return 1.0
        return float(np.clip(model / anchor, 1.0 / self.most, self.most))

    def update(self, anchors: ArrayLike, others: ArrayLike) -> None:
        """One step's contributions to the gradient: float64, shape (N, D) or (N,) each. Fewer than 2 units measure nothing."""
        keep = 0.5 ** (1.0 / self.half_life)
        for which, values in enumerate((anchors, others)):
            units = np.asarray(values, dtype=np.float64)
            variance = mean_variance(units, method=self.method, rng=self._rng)
            if np.isfinite(variance):
                self._sums[which] = keep * self._sums[which] + variance * len(units)
                self._steps[which] = keep * self._steps[which] + 1.0

    def fused(self, *, n_anchors: int, n_others: int) -> Fusion:
        """The best combination of the mean over ``n_anchors`` anchors with that over ``n_others`` predicted rollouts."""
        anchor, model = self.variances
        return fuse_variances(anchor / n_anchors, model / n_others)

    def state_dict(self) -> dict[str, Any]:
        """The running variances; and the bootstrap's generator, as text."""
        return {"sums": self._sums.copy(), "steps": self._steps.copy(), "rng": json.dumps(self._rng.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._sums = np.array(state["sums"], dtype=np.float64)
        self._steps = np.array(state["steps"], dtype=np.float64)
        self._rng.bit_generator.state = json.loads(state["rng"])


class RewardFusion:
    """:class:`GradientFusion` where no gradient is at hand: from the rewards that both streams pay.

    A rollout's contribution to the gradient is its reward, less a baseline, times a score; scores being alike in both streams,
    the rewards' variances about each context's mean take their place. A calibrated prediction has been flattened: it carries the
    share ``slope = cov(f, r) / var(r)`` of the gradient, so that its variance must be read per share of signal, and an anchor's
    weight is ``v_WM / (slope v_E)``. A raw unbiased prediction has slope 1, and its weight is ``(v_E + sigma^2) / v_E``. A
    perfect conditional expectation has slope ``var f / var r``: its weight is 1, since the noise is gone already.

    Args:
        fusion: of the two streams.
        batch: anchors a measurement; those that come fewer at a time are collected.
        window: newest pairs and predictions that means and slope are taken over.

    Raises:
        ValueError: if a count is too small.

    >>> rng = np.random.default_rng(0)
    >>> truth, noise = rng.normal(size=4000), rng.normal(size=4000)
    >>> weight = RewardFusion(window=4000)
    >>> weight.observe(truth + noise)
    >>> weight.update(truth + noise, truth)
    >>> round(weight.weight, 1)
    2.0
    """

    def __init__(self, fusion: GradientFusion | None = None, *, batch: int = 16, window: int = 512) -> None:
        if batch < 2 or window < batch:
            raise ValueError(f"need window >= batch >= 2, got batch {batch} and window {window}")
        self.fusion = GradientFusion() if fusion is None else fusion
        self.batch = int(batch)
        self._pairs, self._others = PairWindow(window), PairWindow(window)
        self._waiting = 0
        self._products: Floats = np.zeros(2)

    @property
    def slope(self) -> float:
        """The share of the gradient that the predictions carry, in [0.05, 1]: never 0, since the weight divides by it."""
        crossed, square = self._products
        return float(np.clip(crossed / square, 0.05, 1.0)) if square > 0 else 1.0

    @property
    def weight(self) -> float:
        """The weight of an anchor, in [1 / most, most]; 1 until enough of both streams was seen."""
        anchor, model = self.fusion.variances
        if not (anchor > 0 and model > 0):
            return 1.0
        return float(np.clip(model / (self.slope * anchor), 1.0 / self.fusion.most, self.fusion.most))

    def observe(self, paid: ArrayLike, context: ArrayLike | None = None) -> None:
        """Take in what imagined steps pay: float64, shape (B,), and their contexts, int64; what is not finite is left out."""
        f = as_floats("paid", paid)
        c = as_ints("context", context, size=f.size)
        known = np.isfinite(f)
        self._others.push(f[known], f[known], c[known])

    def update(self, calibrated: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Learn from graded anchors as they arrive: f, and the truth, float64, shape (B,) each; those not finite are left out."""
        f = as_floats("calibrated", calibrated)
        r = as_floats("real", real, size=f.size)
        c = as_ints("context", context, size=f.size)
        known = np.isfinite(f) & np.isfinite(r)
        self._pairs.push(f[known], r[known], c[known])
        self._waiting += int(known.sum())
        if self._waiting >= self.batch:
            self._measure()

    def _measure(self) -> None:
        f, r, context = self._pairs.arrays()
        f, r = _centred(f, context), _centred(r, context)
        newest = slice(max(0, r.size - self._waiting), None)
        self._waiting = 0
        others, _, where = self._others.arrays()
        self.fusion.update(anchors=r[newest], others=_centred(others, where))
        keep = 0.5 ** (1.0 / self.fusion.half_life)
        self._products = keep * self._products + np.array([f[newest] @ r[newest], r[newest] @ r[newest]])

    def state_dict(self) -> dict[str, Any]:
        """Both windows and the running variances."""
        return {
            "fusion": self.fusion.state_dict(),
            "pairs": self._pairs.state_dict(),
            "others": self._others.state_dict(),
            "waiting": self._waiting,
            "products": self._products.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.fusion.load_state_dict(state["fusion"])
        self._pairs.load_state_dict(state["pairs"])
        self._others.load_state_dict(state["others"])
        self._waiting, self._products = int(state["waiting"]), np.array(state["products"], dtype=np.float64)


def _centred(values: Floats, context: Ints) -> Floats:
    """``values`` less the mean of their context; shape (n,)."""
    _, index = np.unique(context, return_inverse=True)
    mean = np.bincount(index, values) / np.maximum(np.bincount(index), 1)
    out: Floats = values - mean[index]
    return out
