"""How much of an anchor's residual to pass on, decided as the evidence comes in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.pairs import Floats, as_floats


class AdaptiveKappa:
    """kappa = b^2 / (b^2 + v / H): pass the residual on as far as it is bias that persists, and not noise.

    A step's mean residual gradient ``mean_i (r_i - f_i) s_i``, with s the score (the gradient of the log-probability of what the
    rollout did, or any fixed features of it), has the bias' gradient as its mean. Successive ones are independent, so that the
    product of two estimates ``b^2`` without the noise; their own squares estimate ``b^2 + v``.

    Args:
        horizon: steps H over which noise averages out and bias does not.
        prior: kappa before there is evidence.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.
        floor: least kappa; the anchor fraction is a good one.

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
        for name, value in (("horizon", horizon), ("prior_steps", prior_steps), ("memory", memory)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        for name, value in (("prior", prior), ("floor", floor)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        self.horizon, self.prior, self.prior_steps = float(horizon), float(prior), float(prior_steps)
        self.memory, self.floor = float(memory), float(floor)
        self._last: Floats | None = None
        self._product = 0.0
        self._square = 0.0
        self._steps = 0.0

    @property
    def kappa(self) -> float:
        """The share of the residual to pass on, in [floor, 1]."""
        if self._steps == 0.0 or self._square <= 0.0:
            return max(self.prior, self.floor)
        bias = max(self._product, 0.0)
        noise = max(self._square - bias, 0.0) / self.horizon
        measured = bias / (bias + noise) if bias > 0.0 else 0.0
        share = self._steps / (self._steps + self.prior_steps)
        return float(np.clip(share * measured + (1.0 - share) * self.prior, self.floor, 1.0))

    def update(self, residual: ArrayLike, score: ArrayLike | None = None) -> None:
        """One step's graded anchors.

        Args:
            residual: r - f, float64, shape (B,); not finite where unknown. A step without one known residual changes nothing.
            score: float64, shape (B, D), centred within groups; None is a single constant feature.
        """
        e = as_floats("residual", residual)
        s = np.ones((e.size, 1)) if score is None else np.asarray(score, dtype=np.float64).reshape(e.size, -1)
        known = np.isfinite(e)
        if not known.any():
            return
        gradient: Floats = (e[known, None] * s[known]).mean(axis=0)
        if self._last is not None:
            if self._last.size != gradient.size:
                raise ValueError(f"score must have {self._last.size} columns as before, got {gradient.size}")
            self._steps = min(self._steps + 1.0, self.memory)
            self._product += (float(gradient @ self._last) - self._product) / self._steps
            self._square += (float(gradient @ gradient) - self._square) / self._steps
        self._last = gradient

    def state_dict(self) -> dict[str, Any]:
        """The running products and the last gradient."""
        last = np.zeros(0) if self._last is None else self._last.copy()
        return {"last": last, "product": self._product, "square": self._square, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        last = np.array(state["last"], dtype=np.float64)
        self._last = last if last.size else None
        self._product, self._square = float(state["product"]), float(state["square"])
        self._steps = float(state["steps"])
