"""Online debiasing: a calibrator, the pairs it learnt from, and what they say about its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.anchor_pairs import Floats, PairWindow, as_floats, as_ints, check_range
from wmrl_gym.corrections.calibration import BinnedIsotonic, Calibrator
from wmrl_gym.corrections.smooth import SmoothMonotone

_KINDS: dict[str, Callable[[tuple[float, float]], Calibrator]] = {"smooth": SmoothMonotone, "binned": BinnedIsotonic}


class OnlineCalibration:
    """A map f from predicted to expected real reward that follows the anchor pairs as they arrive.

    Without a pair it is the identity, bit for bit, clipped to the reward's range only. Apply it to a step's predictions *before*
    that step's own pairs are pushed, or the residuals it leaves are biased.

    Args:
        calibrator: "smooth" (:class:`SmoothMonotone`), "binned" (the paper's :class:`BinnedIsotonic`), or an instance of one's
            own.
        reward_range: lowest and highest reward. None is the running range of the pairs: it grows as pairs arrive, and the
            calibrator is then fitted anew to the kept pairs. An instance has its own range; the argument is then not used and
            must be left.
        window: how many of the newest pairs are kept for coverage, standard errors and a growing range.

    Raises:
        ValueError: if the calibrator is unknown, the range is empty, or an instance's range contradicts the argument.

    >>> f = OnlineCalibration()
    >>> f.predict([0.3, 1.4])
    array([0.3, 1. ])
    >>> f.push([0.9, 0.5, np.nan], [0.5, 0.3, 0.1])
    >>> f.n_pairs, f.n_rejected
    (2, 1)
    >>> bool(f.predict([0.9])[0] < 0.9)
    True
    """

    def __init__(
        self,
        calibrator: Literal["smooth", "binned"] | Calibrator = "smooth",
        *,
        reward_range: tuple[float, float] | None = (0.0, 1.0),
        window: int = 5000,
    ) -> None:
        self._make: Callable[[tuple[float, float]], Calibrator] | None = None
        self._calibrator: Calibrator | None = None
        if not isinstance(calibrator, str):
            if reward_range not in ((0.0, 1.0), calibrator.reward_range):
                raise ValueError(f"the calibrator's reward_range is {calibrator.reward_range}, got {reward_range} as well")
            self._calibrator = calibrator
        elif calibrator not in _KINDS:
            raise ValueError(f"calibrator must be one of {sorted(_KINDS)} or an instance, got {calibrator!r}")
        else:
            self._make = _KINDS[calibrator]
            if reward_range is not None:
                self._calibrator = self._make(check_range(reward_range))
        self._running = self._calibrator is None
        self._span = (np.inf, -np.inf)
        self._pairs = PairWindow(window)
        self._sorted: tuple[Floats, Floats] | None = None
        self.n_pairs = 0
        self.n_rejected = 0

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The range rewards are clipped to; None while it is not known yet."""
        return None if self._calibrator is None else self._calibrator.reward_range

    def __len__(self) -> int:
        return self.n_pairs

    def __bool__(self) -> bool:
        return True

    @property
    def evidence(self) -> float:
        """How sure it is, in [0, 1], that predictions err by more than noise; 1 where that is not asked."""
        return 1.0

    def push(
        self,
        predicted: ArrayLike,
        real: ArrayLike,
        *,
        context: ArrayLike | None = None,
        features: Any = None,
        key: ArrayLike | None = None,
    ) -> None:
        """Learn from anchor pairs; pairs that are not finite are counted in ``n_rejected`` and left out.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            real: real rewards, float64, shape (B,), NaN where unknown.
            context: int64, shape (B,), e.g. the task.
            features: what was done, for :class:`ContextualCalibration`; a map of predictions alone has no use for it.
            key: the pairs' keys, likewise.

        Raises:
            ValueError: if a real reward lies outside the declared range.
        """
        x = as_floats("predicted", predicted)
        y = as_floats("real", real, size=x.size)
        c = as_ints("context", context, size=x.size)
        ok = np.isfinite(x) & np.isfinite(y)
        x, y, c = x[ok], y[ok], c[ok]
        self._check(y)
        self.n_rejected += int(ok.size - ok.sum())
        if x.size == 0:
            return
        self.n_pairs += x.size
        self._sorted = None
        self._pairs.push(x, y, c)
        if self._running and self._extend(x, y):
            self._rebuild()
        elif self._calibrator is not None:
            self._calibrator.push(x, y, c)

    def _check(self, real: Floats) -> None:
        if self._running or self._calibrator is None or real.size == 0:
            return
        low, high = self._calibrator.reward_range
        slack = 1e-6 * (high - low)
        if real.min() < low - slack or real.max() > high + slack:
            raise ValueError(
                f"real rewards must lie in the reward_range ({low}, {high}), got [{real.min()}, {real.max()}]; "
                "give the environment's range, or None for a running one"
            )

    def _extend(self, predicted: Floats, real: Floats) -> bool:
        low = min(self._span[0], float(predicted.min()), float(real.min()))
        high = max(self._span[1], float(predicted.max()), float(real.max()))
        grown = (low, high) != self._span
        self._span = (low, high)
        return grown

    def _rebuild(self) -> None:
        if self._make is None or not self._span[0] < self._span[1]:
            return
        self._calibrator = self._make(self._span)
        self._calibrator.push(*self._pairs.arrays())

    def refit(self) -> None:
        """Fit now, without waiting for the calibrator's schedule."""
        if self._calibrator is not None and self.n_pairs > 0:
            self._calibrator.refit()

    def predict(self, predicted: ArrayLike, *, context: ArrayLike | None = None, features: Any = None) -> Floats:
        """The expected real reward of each prediction.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            context: int64, shape (B,).
            features: what was done; see :meth:`push`.

        Returns:
            float64, shape (B,), a new array inside the reward range; NaN stays NaN.
        """
        x = as_floats("predicted", predicted)
        c = as_ints("context", context, size=x.size)
        if self._calibrator is None:
            return x.copy()
        if self.n_pairs == 0:
            low, high = self._calibrator.reward_range
            return np.minimum(np.maximum(x, low), high)
        return self._calibrator.predict(x, c)

    def derivative(self, predicted: ArrayLike, *, context: ArrayLike | None = None) -> Floats:
        """Slope of f at each prediction: a central difference over 1/500 of the range, 0 where f is clipped.

        float64, shape (B,).
        """
        x = as_floats("predicted", predicted)
        half = self._width() / 1000.0
        rise = self.predict(x + half, context=context) - self.predict(x - half, context=context)
        return rise / (2.0 * half)

    def coverage(self, predicted: ArrayLike, *, least: int = 3) -> NDArray[np.bool_]:
        """Whether the neighbourhood of each prediction was seen by at least ``least`` of the kept pairs.

        The neighbourhood is 1/24 of the range to either side. bool, shape (B,); NaN was never seen.
        """
        first, last = self._near(as_floats("predicted", predicted))
        return last - first >= least

    def standard_error(self, predicted: ArrayLike, *, features: Any = None) -> Floats:
        """Standard error of f at each prediction, from the residuals of the kept pairs around it.

        One pseudo-pair of a uniform reward stands for ignorance: where nothing was seen it is the range / sqrt(12), and infinite
        while the range is unknown. float64, shape (B,). For ``features`` see :meth:`push`.
        """
        x = as_floats("predicted", predicted)
        if self._calibrator is None:
            return np.full(x.size, np.inf)
        first, last = self._near(x)
        squares = np.concatenate([[0.0], np.cumsum(self._by_prediction()[1])])
        count = (last - first).astype(np.float64)
        prior = self._width() ** 2 / 12.0
        out: Floats = np.sqrt((prior + squares[last] - squares[first]) / (1.0 + count) / (1.0 + count))
        return out

    def _width(self) -> float:
        return 1.0 if self._calibrator is None else self._calibrator.reward_range[1] - self._calibrator.reward_range[0]

    def _by_prediction(self) -> tuple[Floats, Floats]:
        """The kept pairs' predictions in rising order, and their squared residuals under the present f."""
        if self._sorted is None:
            x, y, c = self._pairs.arrays()
            order = np.argsort(x, kind="stable")
            self._sorted = x[order], (y - self.predict(x, context=c))[order] ** 2
        return self._sorted

    def _near(self, x: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        seen = self._by_prediction()[0]
        reach = self._width() / 24.0
        # NaN sorts last: both ends are the end, so its neighbourhood is empty.
        first = np.searchsorted(seen, x - reach, side="left").astype(np.int64)
        return first, np.searchsorted(seen, x + reach, side="right").astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Pairs, counts, range and the calibrator's own state: scalars, arrays and dicts of them."""
        inner = None if self._calibrator is None else self._calibrator.state_dict()
        return {
            "n_pairs": self.n_pairs,
            "n_rejected": self.n_rejected,
            "span": np.array(self._span),
            "pairs": self._pairs.state_dict(),
            "calibrator": inner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of an equally constructed one."""
        self.n_pairs, self.n_rejected = int(state["n_pairs"]), int(state["n_rejected"])
        self._pairs.load_state_dict(state["pairs"])
        low, high = (float(end) for end in state["span"])
        self._span, self._sorted = (low, high), None
        if self._running and self._make is not None:
            self._calibrator = self._make(self._span) if low < high else None
        if self._calibrator is not None and state["calibrator"] is not None:
            self._calibrator.load_state_dict(state["calibrator"])
