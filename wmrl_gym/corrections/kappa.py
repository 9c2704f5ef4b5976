"""How much of an anchor's residual to pass on, decided as the evidence comes in.

A step's mean residual gradient ``e = mean_i (r_i - f_i) s_i``, s the score of rollout i, has the gradient's bias as its mean
and noise on top. The noise of successive steps is independent, so that the product of two successive ones estimates the squared
bias without it, while their own squares estimate squared bias plus variance. What lies along the gradient itself is no harm:
calibration shrinks what is noisy, and a shrunk gradient points where it should. So only the part across it counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.pairs import Floats, as_floats


class BiasEvidence:
    """Running products of successive gradients: how large the bias is, and how far predictions are shrunk.

    Args:
        horizon: steps H over which noise averages out and bias does not.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.

    Raises:
        ValueError: if an argument is not positive.
    """

    def __init__(self, *, horizon: float = 30.0, prior_steps: float = 20.0, memory: float = 200.0) -> None:
        for name, value in (("horizon", horizon), ("prior_steps", prior_steps), ("memory", memory)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.horizon, self.prior_steps, self.memory = float(horizon), float(prior_steps), float(memory)
        self._last: tuple[Floats, Floats] | None = None
        # Running means of: e e', (e g' + g e') / 2, g g' over successive steps; and n e e within a step.
        self._products: Floats = np.zeros(4)
        self._steps = 0.0

    def update(self, residual: Floats, gradient: Floats, *, n_anchors: int) -> None:
        """One step: the mean residual gradient over its anchors, and the mean predicted gradient; (D,) each.

        Raises:
            ValueError: if the dimension changed.
        """
        if self._last is not None:
            e, g = self._last
            if e.shape != residual.shape:
                raise ValueError(f"score must have {e.size} columns as before, got {residual.size}")
            cross = 0.5 * (residual @ g + gradient @ e)
            now = np.array([residual @ e, cross, gradient @ g, n_anchors * (residual @ residual - residual @ e)])
            self._steps = min(self._steps + 1.0, self.memory)
            self._products = self._products + (now - self._products) / self._steps
        self._last = residual, gradient

    def estimate(self, *, prior: float, variance: float) -> tuple[float, float]:
        """H b^2, in units of a rollout's residual variance ``variance``, and lam, the shrinkage of predictions.

        Args:
            prior: H b^2 before there is evidence.
            variance: mean squared residual, in the same units.
        """
        if self._steps == 0.0:
            return prior, 1.0
        ee, eg, gg, noise = self._products
        rho = float(np.clip(eg / gg, 0.0, 3.0)) if gg > 0 else 0.0
        # The trace of the noise over the variance of one residual is the mean squared length of a score.
        length = max(float(noise), 1e-300) / max(variance, 1e-300)
        share = self._steps / (self._steps + self.prior_steps)
        bias = share * self.horizon * (float(ee) - rho * float(eg)) / length + (1.0 - share) * prior
        return max(bias, 0.0), 1.0 / (1.0 + share * rho)

    def state_dict(self) -> dict[str, Any]:
        """The running products and the last gradients."""
        last = np.zeros((2, 0)) if self._last is None else np.stack(self._last)
        return {"last": last, "products": self._products.copy(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        last = np.array(state["last"], dtype=np.float64)
        self._last = (last[0], last[1]) if last.shape[1] else None
        self._products, self._steps = np.array(state["products"], dtype=np.float64), float(state["steps"])


class AdaptiveKappa:
    """The kappa of the residual form from the evidence: ``H b^2 / (H b^2 + v / n)``, with v / n the noise of a step's anchors.

    For rewards, and for trainers that take one kappa. A trainer that forms its own advantages does better with
    :class:`wmrl_gym.corrections.FusedAdvantages`.

    Args:
        horizon: steps over which noise averages out and bias does not.
        prior: kappa before there is evidence.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.
        floor: least kappa; the anchor fraction is a good one, at which an anchor's reward is the truth.

    Raises:
        ValueError: if an argument is out of its range.

    >>> kappa = AdaptiveKappa()
    >>> kappa.kappa
    0.5
    >>> for _ in range(200):
    ...     kappa.update([0.3, -0.3], [[1.0], [-1.0]])
    >>> kappa.kappa > 0.95
    True
    """

    def __init__(
        self,
        *,
        horizon: float = 30.0,
        prior: float = 0.5,
        prior_steps: float = 20.0,
        memory: float = 200.0,
        floor: float = 0.1,
    ) -> None:
        if not 0.0 < prior < 1.0:
            raise ValueError(f"prior must be in (0, 1), got {prior}")
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor must be in [0, 1], got {floor}")
        self.prior, self.floor = float(prior), float(floor)
        self._evidence = BiasEvidence(horizon=horizon, prior_steps=prior_steps, memory=memory)
        self._anchors = 1.0

    @property
    def kappa(self) -> float:
        """The share of the residual to pass on, in [floor, 1]."""
        noise = 1.0 / self._anchors
        bias, _ = self._evidence.estimate(prior=self.prior / (1.0 - self.prior) * noise, variance=1.0)
        return float(np.clip(bias / (bias + noise), self.floor, 1.0))

    def update(self, residual: ArrayLike, score: ArrayLike | None = None, *, predicted_gradient: ArrayLike | None = None) -> None:
        """One step's graded anchors.

        Args:
            residual: r - f, float64, shape (B,); not finite where unknown. A step without one known residual changes nothing.
            score: float64, shape (B, D), centred within groups; None is a single constant feature.
            predicted_gradient: float64, shape (D,), the gradient that the predictions give, so that what lies along it is not
                held against them; None counts all of it.
        """
        e = as_floats("residual", residual)
        s = np.ones((e.size, 1)) if score is None else np.asarray(score, dtype=np.float64).reshape(e.size, -1)
        known = np.isfinite(e)
        n = int(known.sum())
        if n == 0:
            return
        gradient = np.zeros(s.shape[1]) if predicted_gradient is None else as_floats("predicted_gradient", predicted_gradient)
        self._anchors = float(n)
        self._evidence.update(e[known] @ s[known] / n, gradient, n_anchors=n)

    def state_dict(self) -> dict[str, Any]:
        """The evidence."""
        return {"anchors": self._anchors, **self._evidence.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._anchors = float(state["anchors"])
        self._evidence.load_state_dict(state)
