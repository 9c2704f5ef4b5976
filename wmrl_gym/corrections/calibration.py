"""Monotone calibration: the map from a predicted reward to the real reward to be expected.

A predicted reward is wrong in a systematic way, and the way drifts as the policy moves. A monotone map, refitted as anchor
pairs arrive, removes what can be removed without reordering what the world model ranked right. An affine map would not do:
standardising inside a group cancels it.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from wmrl_gym.corrections.anchor_pairs import Floats, PairWindow, as_floats, check_range


@runtime_checkable
class Calibrator(Protocol):
    """A monotone map that learns from anchor pairs."""

    reward_range: tuple[float, float]

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Learn from pairs: float64 (B,), float64 (B,), int64 (B,); all finite."""
        ...

    def refit(self) -> None:
        """Fit now, whatever the schedule says."""
        ...

    def predict(self, predicted: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The calibrated rewards: float64, shape (B,), inside ``reward_range``; NaN stays NaN."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Scalars and numpy arrays that :meth:`load_state_dict` takes back."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        ...


def finite_pairs(predicted: ArrayLike, real: ArrayLike) -> tuple[Floats, Floats]:
    """``predicted`` and ``real`` as float64 vectors of one length.

    Raises:
        ValueError: if a value is not finite: one NaN would poison a whole fit.
    """
    x = as_floats("predicted", predicted)
    y = as_floats("real", real, size=x.size)
    bad = ~(np.isfinite(x) & np.isfinite(y))
    if bad.any():
        raise ValueError(f"a calibrator takes finite pairs only, got {int(bad.sum())} non-finite of {x.size}")
    return x, y


class BinnedIsotonic:
    """The calibrator of arXiv 2608.12564: isotonic regression on the means of equal-width bins, linear between them.

    The defaults are the paper's. It is the identity until ``min_pairs`` pairs have come, and pools all contexts.

    Args:
        reward_range: lowest and highest reward; the bins divide it.
        bins: number of equal-width bins.
        min_pairs: identity until so many pairs are held.
        refit_every: new pairs between fits.
        window: how many of the newest pairs are kept.

    Raises:
        ValueError: if a count is not positive or the range is empty.

    >>> f = BinnedIsotonic(min_pairs=4, refit_every=1)
    >>> f.push([0.1, 0.4, 0.6, 0.9], [0.0, 0.2, 0.2, 0.6])
    >>> f.predict([0.1, 0.5, 0.75])
    array([0. , 0.2, 0.4])
    """

    def __init__(
        self,
        reward_range: tuple[float, float] = (0.0, 1.0),
        *,
        bins: int = 10,
        min_pairs: int = 200,
        refit_every: int = 64,
        window: int = 5000,
    ) -> None:
        for name, value in (("bins", bins), ("min_pairs", min_pairs), ("refit_every", refit_every)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.reward_range = check_range(reward_range)
        self.bins = int(bins)
        self.min_pairs = int(min_pairs)
        self.refit_every = int(refit_every)
        self._pairs = PairWindow(window)
        self._since_fit = 0
        self._knots: tuple[Floats, Floats] | None = None

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Learn from pairs, refitting each time that one is due within the batch."""
        x, y = finite_pairs(predicted, real)
        start = 0
        while start < x.size:
            # The number of pairs after which the next fit is due: the schedule counts pairs, not calls.
            due = max(self.refit_every - self._since_fit, self.min_pairs - len(self._pairs), 1)
            part = slice(start, start + due)
            self._pairs.push(x[part], y[part])
            self._since_fit += x[part].size
            start += due
            if len(self._pairs) >= self.min_pairs and self._since_fit >= self.refit_every:
                self.refit()

    def refit(self) -> None:
        """Fit the kept pairs. Without pairs in two different bins the map stays as it was."""
        x, y, _ = self._pairs.arrays()
        # By the edges themselves, as the paper's release does it: int(bins * x) puts round rewards such as .3 in another bin.
        cell = np.digitize(x, np.linspace(*self.reward_range, self.bins + 1)[1:-1])
        count = np.bincount(cell, minlength=self.bins).astype(np.float64)
        filled = count > 0
        if filled.sum() < 2:
            return
        mean_x = np.bincount(cell, x, self.bins)[filled] / count[filled]
        mean_y = np.bincount(cell, y, self.bins)[filled] / count[filled]
        self._knots = mean_x, isotonic_regression(mean_y, weights=count[filled]).x
        self._since_fit = 0

    def predict(self, predicted: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The calibrated rewards, constant beyond the outermost knots; float64, shape (B,)."""
        x = as_floats("predicted", predicted)
        out = x if self._knots is None else np.interp(x, *self._knots)
        return np.clip(out, *self.reward_range)

    def state_dict(self) -> dict[str, Any]:
        """Pairs, fit and schedule."""
        knots = (np.zeros(0), np.zeros(0)) if self._knots is None else self._knots
        pairs = {f"pairs_{key}": value for key, value in self._pairs.state_dict().items()}
        return {"knots_x": knots[0], "knots_y": knots[1], "since_fit": self._since_fit, **pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._pairs.load_state_dict({key: state[f"pairs_{key}"] for key in ("predicted", "real", "context")})
        knots = np.array(state["knots_x"], dtype=np.float64), np.array(state["knots_y"], dtype=np.float64)
        self._knots = knots if knots[0].size else None
        self._since_fit = int(state["since_fit"])
