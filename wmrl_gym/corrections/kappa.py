"""How much of an anchor's residual to pass on, decided as the evidence comes in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.evidence import GradientEvidence
from wmrl_gym.corrections.pairs import Floats, as_floats


class AdaptiveKappa:
    """The kappa of the residual form from the evidence: ``H b^2 / (H b^2 + v / n)``, with v / n the noise of a step's anchors.

    For rewards, and for trainers that take one kappa. A trainer that forms its own advantages does better with
    :class:`wmrl_gym.corrections.FusedAdvantages`. Residuals alone cannot tell a bias that a policy exploits from noise, since
    calibration makes their mean 0 either way: what was done must be given along, as scores or :class:`ActionSigns`.

    Args:
        horizon: steps over which noise averages out and bias does not.
        prior: kappa before there is evidence.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.
        floor: least kappa; the anchor fraction is a good one, at which an anchor's reward is the truth.
        batch: anchors a step of evidence; those that come fewer at a time are collected, in any order.

    Raises:
        ValueError: if an argument is out of its range.

    >>> kappa = AdaptiveKappa()
    >>> kappa.kappa
    0.5
    >>> for _ in range(200):
    ...     kappa.update([0.3, -0.3] * 8, [[1.0], [-1.0]] * 8)
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
        batch: int = 16,
    ) -> None:
        if not 0.0 < prior < 1.0:
            raise ValueError(f"prior must be in (0, 1), got {prior}")
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor must be in [0, 1], got {floor}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.prior, self.floor = float(prior), float(floor)
        self._evidence = GradientEvidence(horizon=horizon, prior_steps=prior_steps, memory=memory)
        self.batch = int(batch)
        self._anchors, self._waiting = 1, 0
        self._sums: Floats = np.zeros((0, 0))

    @property
    def kappa(self) -> float:
        """The share of the residual to pass on, in [floor, 1]."""
        if self._evidence.steps == 0.0:
            return max(self.prior, self.floor)
        noise = 1.0 / self._anchors
        form = self._evidence.form(1, prior=self.prior / (1.0 - self.prior) * noise, variance=1.0)
        # What no multiple of the predicted gradient explains: the rest is shrinkage and does no harm.
        bias = max(float(form[1, 1] - form[0, 1] ** 2 / max(form[0, 0], 1e-300)), 0.0)
        return float(np.clip(bias / (bias + noise), self.floor, 1.0))

    def update(self, residual: ArrayLike, score: ArrayLike | None = None, *, predicted_gradient: ArrayLike | None = None) -> None:
        """Graded anchors, as they come.

        Args:
            residual: r - f, float64, shape (B,); not finite where unknown. A step without one known residual changes nothing.
            score: float64, shape (B, D): the policy's scores or any fixed features of what was done. None is no evidence, and
                kappa stays.
            predicted_gradient: float64, shape (D,), the gradient that the predictions give, so that what lies along it is not
                held against them; None counts all of it.
        """
        e = as_floats("residual", residual)
        known = np.isfinite(e)
        n = int(known.sum())
        if n == 0 or score is None:
            return
        s = np.asarray(score, dtype=np.float64).reshape(e.size, -1)
        gradient = np.zeros(s.shape[1]) if predicted_gradient is None else as_floats("predicted_gradient", predicted_gradient)
        new = np.stack([n * gradient, e[known] @ s[known]])
        if self._sums.size and self._sums.shape != new.shape:
            raise ValueError(f"score must have {self._sums.shape[1]} columns as before, got {new.shape[1]}")
        self._sums = self._sums + new if self._sums.size else new
        self._waiting += n
        if self._waiting >= self.batch:
            self._anchors = self._waiting
            self._evidence.update(self._sums / self._waiting, n_anchors=self._waiting)
            self._sums, self._waiting = np.zeros_like(self._sums), 0

    def state_dict(self) -> dict[str, Any]:
        """The evidence, and what waits for a batch to fill."""
        waiting = {"anchors": self._anchors, "sums": self._sums.copy(), "waiting": self._waiting}
        return {**waiting, **self._evidence.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._anchors, self._waiting = int(state["anchors"]), int(state["waiting"])
        self._sums = np.array(state["sums"], dtype=np.float64)
        self._evidence.load_state_dict(state)
