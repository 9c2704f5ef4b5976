"""What successive gradients say about bias: their noise is independent, their bias is not.

The product of two successive residual gradients estimates the squared bias without the noise, while their own squares estimate
squared bias plus variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmrl_gym.corrections.pairs import Floats


class GradientEvidence:
    """Running products of successive gradients, of K predictions and of the truth.

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
        self._last: Floats = np.zeros((0, 0))
        self._products: Floats = np.zeros((0, 0))
        self._noise = 0.0
        self._steps = 0.0

    def update(self, gradients: Floats, *, n_anchors: int) -> None:
        """One step.

        Args:
            gradients: float64, shape (K + 1, D): the mean gradient that each prediction gives over all rollouts, and the mean
                gradient of the first one's residual over the anchors.
            n_anchors: how many.

        Raises:
            ValueError: if the shape changed.
        """
        if self._last.size:
            if self._last.shape != gradients.shape:
                raise ValueError(f"gradients must have shape {self._last.shape} as before, got {gradients.shape}")
            self._steps = min(self._steps + 1.0, self.memory)
            rate = 1.0 / self._steps
            product = self._with_truth(gradients) @ self._with_truth(self._last).T
            self._products = self._products + rate * (0.5 * (product + product.T) - self._products)
            residual, before = gradients[-1], self._last[-1]
            self._noise += rate * (n_anchors * float(residual @ residual - residual @ before) - self._noise)
        else:
            self._products = np.zeros((len(gradients), len(gradients)))
        self._last = gradients

    @staticmethod
    def _with_truth(gradients: Floats) -> Floats:
        # The truth's gradient as prediction plus residual: its noise is the residual's, not the truth's.
        return np.concatenate([gradients[:-1], gradients[:1] + gradients[-1:]])

    def form(self, k: int, *, prior: float, variance: float) -> Floats:
        """``H |sum_k w_k G_k - q g|^2`` as a form in (w_1, ..., w_k, q), in units of one rollout's variance.

        Shape (k + 1, k + 1), without a negative eigenvalue.

        Args:
            k: number of predictions.
            prior: H b^2 before there is evidence, the same for all predictions.
            variance: mean squared residual, in the same units.
        """
        # Before evidence: no shrinkage (sum w = q, held by a stiff spring), and one bias common to all predictions.
        sign = np.append(np.ones(k), -1.0)
        known = np.append(np.ones(k), 0.0)
        before = prior * (np.outer(known, known) + 100.0 * np.outer(sign, sign))
        if self._steps == 0.0:
            return before
        # The trace of the noise over the variance of one residual is the mean squared length of a score.
        length = max(max(self._noise, 1e-300) / max(variance, 1e-300), 1e-9)
        values, vectors = np.linalg.eigh(self.horizon / length * self._products)
        measured = (vectors * np.maximum(values, 0.0)) @ vectors.T * np.outer(sign, sign)
        share = self._steps / (self._steps + self.prior_steps)
        out: Floats = share * measured + (1.0 - share) * before
        return out

    @property
    def steps(self) -> float:
        """How many pairs of successive steps have been seen, up to the memory."""
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        """The running products and the last gradients."""
        return {
            "last": self._last.copy(),
            "products": self._products.copy(),
            "noise": self._noise,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._last, self._products = (np.array(state[key], dtype=np.float64) for key in ("last", "products"))
        self._noise, self._steps = float(state["noise"]), float(state["steps"])
