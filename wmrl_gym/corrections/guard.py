"""A guard against reward hacking: predictions that no recent anchor has confirmed are executed first, and held down until then.

A policy that is paid by a model climbs towards the model's mistakes: its predictions leave the range in which anchors were
graded, and there a calibrated reward is an extrapolation. A monotone f cannot take back one overrated kind of rollout either,
since all that scores less would have to fall with it. So near each prediction the truths themselves have the last word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.anchor_pairs import Floats, PairWindow, as_floats


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the guard says of B predictions.

    Args:
        value: the rewards to use, at most the calibrated ones; float64, shape (B,).
        unconfirmed: bool, shape (B,): no recent anchor tells; ``value`` is a bound from below.
    """

    value: Floats
    unconfirmed: NDArray[np.bool_]


class RewardGuard:
    """Holds calibrated rewards down to what recent anchors confirm.

    A prediction x is *unconfirmed* where fewer than ``least`` of the recent anchors were predicted as high, or where the model's
    standard deviation is larger than that of all of them. It then counts ``f - k standard errors``. Elsewhere it counts ``min(f,
    m + k standard errors)``, with m the mean truth of the recent anchors near x: that is f wherever f is right, and less where a
    policy has found what f overrates.

    Args:
        pessimism: the standard errors k, above 0.
        recent: anchors that count as recent.
        least: of them, how many confirm a prediction.
        after: anchors that are needed before predictions are checked.

    Raises:
        ValueError: if an argument is out of its range.

    >>> guard = RewardGuard(1.0, after=8)
    >>> x = np.linspace(0.1, 0.6, 50)
    >>> guard.learn(x, x)
    >>> said = guard.judge([0.5, 0.95], calibrated=[0.5, 0.95], standard_error=[0.01, 0.3])
    >>> said.unconfirmed.tolist(), said.value.round(2).tolist()
    ([False, True], [0.5, 0.65])
    """

    def __init__(self, pessimism: float, *, recent: int = 256, least: int = 3, after: int = 32) -> None:
        if not pessimism > 0:
            raise ValueError(f"pessimism must be positive (leave it out for no guard), got {pessimism}")
        if least < 1 or after < least or recent < after:
            raise ValueError(f"need recent >= after >= least >= 1, got {recent}, {after} and {least}")
        self.pessimism, self.least, self.after = float(pessimism), int(least), int(after)
        self._pairs, self._stds = PairWindow(recent), PairWindow(recent)
        self._sorted: tuple[Floats, Floats, Floats] | None = None

    @property
    def ready(self) -> bool:
        """Whether enough anchors have arrived for predictions to be checked."""
        return len(self._pairs) >= self.after

    def learn(self, predicted: ArrayLike, real: ArrayLike, std: ArrayLike | None = None) -> None:
        """Learn from graded anchors: raw predictions, truths, and the model's standard deviations, float64, shape (B,) each."""
        x = as_floats("predicted", predicted)
        r = as_floats("real", real, size=x.size)
        s = np.full(x.size, np.nan) if std is None else as_floats("std", std, size=x.size)
        known = np.isfinite(x) & np.isfinite(r)
        self._pairs.push(x[known], r[known])
        self._stds.push(s[known], s[known])
        self._sorted = None

    def judge(
        self,
        predicted: ArrayLike,
        *,
        calibrated: ArrayLike,
        standard_error: ArrayLike,
        std: ArrayLike | None = None,
        width: float = 1.0,
    ) -> Judgement:
        """The rewards to use for B predictions.

        Args:
            predicted: raw, float64, shape (B,).
            calibrated: f of them, float64, shape (B,).
            standard_error: of f, float64, shape (B,).
            std: the model's own standard deviations, float64, shape (B,); NaN where it gives none.
            width: of the reward's range; near is 1/24 of it to either side.
        """
        x = as_floats("predicted", predicted)
        f = as_floats("calibrated", calibrated, size=x.size)
        if not self.ready:
            return Judgement(f, np.zeros(x.size, np.bool_))
        seen, sums, squares = self._by_prediction()
        first = np.searchsorted(seen, x - width / 24.0, side="left")
        last = np.searchsorted(seen, x + width / 24.0, side="right")
        unconfirmed = seen.size - first < self.least
        stds = self._stds.arrays()[0]
        if std is not None and np.isfinite(stds).any():
            unconfirmed |= as_floats("std", std, size=x.size) > np.nanmax(stds)
        count = (last - first).astype(np.float64)
        n = np.maximum(count, 1.0)
        mean = (sums[last] - sums[first]) / n
        scatter = np.maximum(squares[last] - squares[first] - n * mean**2, 0.0)
        # One pseudo-pair of a uniform reward, so that three equal truths are not certainty.
        error = np.sqrt((width**2 / 12.0 + scatter) / (n + 1.0) / n)
        bound = np.where(count >= self.least, mean + self.pessimism * error, np.inf)
        doubt = f - self.pessimism * as_floats("standard_error", standard_error, size=x.size)
        return Judgement(np.where(unconfirmed, np.minimum(doubt, bound), np.minimum(f, bound)), unconfirmed)

    def _by_prediction(self) -> tuple[Floats, Floats, Floats]:
        """Recent predictions in rising order, and the sums of the truths, and of their squares, below each."""
        if self._sorted is None:
            x, r, _ = self._pairs.arrays()
            order = np.argsort(x, kind="stable")
            sums, squares = (np.concatenate([[0.0], np.cumsum(values[order])]) for values in (r, r**2))
            self._sorted = x[order], sums, squares
        return self._sorted

    def state_dict(self) -> dict[str, Any]:
        """The recent anchors."""
        return {"pairs": self._pairs.state_dict(), "stds": self._stds.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._pairs.load_state_dict(state["pairs"])
        self._stds.load_state_dict(state["stds"])
        self._sorted = None
