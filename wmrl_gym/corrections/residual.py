"""Residual correction: adds to an anchor's predicted reward what its true reward shows to be missing.

``f + (kappa m / p)(r - f)``, with m = 1 on graded anchors and p the probability of being one, has the expectation ``f + kappa
(E[r] - f)`` whatever f is: at kappa = 1 it is unbiased (the augmented inverse-propensity, or doubly robust, estimator). kappa
below 1 trades bias for variance. It lets an algorithm that knows nothing of weights profit from anchors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.anchor_pairs import Floats, as_floats


def graded_anchors(real: ArrayLike, anchor: ArrayLike) -> NDArray[np.bool_]:
    """Where an anchor's truth is known: bool, shape (B,). An unknown grade (NaN) is not a grade of 0."""
    r = as_floats("real", real)
    return np.broadcast_to(np.asarray(anchor, dtype=np.bool_), r.shape) & np.isfinite(r)


def residual_reward(
    calibrated: ArrayLike,
    real: ArrayLike,
    *,
    anchor: ArrayLike,
    propensity: ArrayLike,
    kappa: float | ArrayLike = 0.5,
) -> Floats:
    """The reward corrected by the anchors' residuals.

    Args:
        calibrated: f, from before these pairs were pushed; float64, shape (B,).
        real: the truth; float64, shape (B,), NaN where unknown or not executed.
        anchor: bool, shape (B,).
        propensity: probability of being an anchor, float64, shape (B,) or a scalar; read on graded anchors only. Where grades
            go missing at random, multiply it by the share that is graded.
        kappa: share of the residual that is passed on, in [0, 1].

    Returns:
        float64, shape (B,). At kappa / propensity = 5 it spans about five times the reward's range: do not clip it.

    Raises:
        ValueError: if kappa leaves [0, 1], or a graded anchor's propensity leaves (0, 1].

    >>> residual_reward([0.5, 0.5], [1.0, np.nan], anchor=[True, False], propensity=0.1, kappa=0.5)
    array([3. , 0.5])
    """
    f = as_floats("calibrated", calibrated)
    r = as_floats("real", real, size=f.size)
    graded = graded_anchors(r, anchor)
    p = np.broadcast_to(np.asarray(propensity, dtype=np.float64), f.shape)
    k = np.broadcast_to(np.asarray(kappa, dtype=np.float64), f.shape)
    if not ((k >= 0.0) & (k <= 1.0)).all():
        raise ValueError(f"kappa must be in [0, 1], got {kappa!r}")
    if not ((p[graded] > 0.0) & (p[graded] <= 1.0)).all():
        raise ValueError(f"the propensity of an anchor must be in (0, 1], got {p[graded]}")
    out = f.copy()
    out[graded] += k[graded] / p[graded] * (r[graded] - f[graded])
    return out


class ResidualVariance:
    """Running mean of the squared residual ``(r - f)^2``, f being from before the pair was pushed.

    Args:
        start: the first estimate, in squared units of a reward of range ``width``: .02 is a standard deviation of .14.
        pseudo_counts: how many pairs the first estimate counts for.
        window: beyond so many pairs the mean becomes exponential with that memory.
        width: width of the reward's range; ``start`` scales with its square.

    Raises:
        ValueError: if an argument is not positive.

    >>> s2 = ResidualVariance()
    >>> s2.update([0.5], [0.7])
    >>> round(s2.variance, 6)
    0.022222
    """

    def __init__(self, start: float = 0.02, *, pseudo_counts: float = 8.0, window: float = 500.0, width: float = 1.0) -> None:
        for name, value in (("start", start), ("pseudo_counts", pseudo_counts), ("window", window), ("width", width)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.window = float(window)
        self.variance = float(start) * float(width) ** 2
        self._count = float(pseudo_counts)

    def update(self, calibrated: ArrayLike, real: ArrayLike, *, weight: ArrayLike = 1.0) -> None:
        """Fold pairs in; those with a value that is not finite are left out.

        Args:
            calibrated: float64, shape (B,).
            real: float64, shape (B,).
            weight: float64, shape (B,) or a scalar, of mean about 1: inverse propensities, where anchors are not chosen evenly.
        """
        f = as_floats("calibrated", calibrated)
        squares = (as_floats("real", real, size=f.size) - f) ** 2
        known = np.isfinite(squares)
        for square, w in zip(squares[known], np.broadcast_to(np.asarray(weight, dtype=np.float64), f.shape)[known], strict=True):
            self._count = min(self._count + float(w), self.window)
            self.variance += (float(square) - self.variance) / max(self._count / float(w), 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The estimate and its count."""
        return {"variance": self.variance, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.variance, self._count = float(state["variance"]), float(state["count"])
