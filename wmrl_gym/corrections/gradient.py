"""The variances of the two gradients, measured online, and the weight of an anchor that follows from them."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.denoising import Fusion, fuse_variances
from wmrl_gym.corrections.pairs import Floats


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
