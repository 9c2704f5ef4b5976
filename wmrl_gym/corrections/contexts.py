"""Calibrators made of calibrators: a map for each context, and a map that forgets when the world model changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, as_floats, as_ints
from wmrl_gym.corrections.calibration import Calibrator, finite_pairs
from wmrl_gym.corrections.smooth import SmoothMonotone


class PerContext:
    """A map for each context, pooled partially with one for all: ``(n_c f_c + k f) / (n_c + k)``.

    A mean of monotone maps is monotone, so this is too. A context with few pairs, or never seen, leans on the common map. It
    costs a calibrator a context; where the maps differ by an offset only, :class:`SmoothMonotone` alone does it with fewer
    pairs.

    Args:
        make: makes a calibrator; all must have one reward range.
        pooling: the pairs k that the common map counts for in each context.
        max_contexts: contexts beyond so many use the common map.

    Raises:
        ValueError: if ``pooling`` is not positive.

    >>> f = PerContext(SmoothMonotone)
    >>> x = np.linspace(0, 1, 1000)
    >>> f.push(np.tile(x, 2), np.concatenate([x**2, np.sqrt(x)]), np.repeat([0, 1], 1000))
    >>> bool(f.predict([0.5], [0])[0] < 0.3 < 0.65 < f.predict([0.5], [1])[0])
    True
    """

    def __init__(
        self, make: Callable[[], Calibrator] = SmoothMonotone, *, pooling: float = 64.0, max_contexts: int = 256
    ) -> None:
        if not pooling > 0:
            raise ValueError(f"pooling must be positive, got {pooling}")
        self._make, self.pooling, self.max_contexts = make, float(pooling), int(max_contexts)
        self._common = make()
        self._own: dict[int, Calibrator] = {}
        self._count: dict[int, int] = {}
        self.reward_range = self._common.reward_range

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Learn from pairs, for the common map and for each context's own."""
        x, y = finite_pairs(predicted, real)
        c = as_ints("context", context, size=x.size)
        self._common.push(x, y)
        for label in np.unique(c).tolist():
            if label not in self._own:
                if len(self._own) >= self.max_contexts:
                    continue
                self._own[label], self._count[label] = self._make(), 0
            mine = c == label
            self._own[label].push(x[mine], y[mine])
            self._count[label] += int(mine.sum())

    def refit(self) -> None:
        """Fit all maps now."""
        for calibrator in (self._common, *self._own.values()):
            calibrator.refit()

    def predict(self, predicted: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The calibrated rewards; float64, shape (B,)."""
        x = as_floats("predicted", predicted)
        c = as_ints("context", context, size=x.size)
        out = self._common.predict(x)
        for label in np.unique(c).tolist():
            if label in self._own:
                mine = c == label
                share = self._count[label] / (self._count[label] + self.pooling)
                out[mine] = share * self._own[label].predict(x[mine]) + (1.0 - share) * out[mine]
        return out

    def state_dict(self) -> dict[str, Any]:
        """All maps."""
        own = {str(label): calibrator.state_dict() for label, calibrator in self._own.items()}
        counts = {str(label): count for label, count in self._count.items()}
        return {"common": self._common.state_dict(), "own": own, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._common.load_state_dict(state["common"])
        self._own, self._count = {}, {}
        for label, saved in state["own"].items():
            self._own[int(label)] = self._make()
            self._own[int(label)].load_state_dict(saved)
            self._count[int(label)] = int(state["counts"][label])


class ChangeDetector:
    """Page-Hinkley's test on squared residuals: says when the world model has changed for the worse.

    Residuals are measured in units of their running variance, so the thresholds do not depend on the reward's scale.

    Args:
        threshold: accumulated excess at which it alarms; larger is rarer.
        slack: excess a pair that is taken as chance.
        warmup: pairs before it may alarm.

    Raises:
        ValueError: if an argument is not positive.

    >>> detector = ChangeDetector()
    >>> detector.update(np.full(200, 0.1)), detector.update(np.full(50, 0.4))
    (False, True)
    """

    def __init__(self, *, threshold: float = 40.0, slack: float = 0.5, warmup: int = 64) -> None:
        if not threshold > 0 or not slack > 0 or warmup < 1:
            raise ValueError(f"threshold, slack and warmup must be positive, got {threshold}, {slack} and {warmup}")
        self.threshold, self.slack, self.warmup = float(threshold), float(slack), int(warmup)
        self.n_alarms = 0
        self._restart()

    def _restart(self) -> None:
        self._count, self._variance, self._excess = 0, 0.0, 0.0

    def update(self, residual: ArrayLike) -> bool:
        """Fold residuals in, float64, shape (B,); True on an alarm, after which it starts anew."""
        for square in np.square(as_floats("residual", residual)).tolist():
            if not math.isfinite(square):
                continue
            self._count += 1
            if self._count > self.warmup and self._variance > 0:
                # One outlier must not raise an alarm alone: its excess is capped.
                step = min(square / self._variance, 9.0) - 1.0 - self.slack
                self._excess = max(self._excess + step, 0.0)
            self._variance += (min(square, 9.0 * self._variance or math.inf) - self._variance) / min(self._count, 500)
            if self._excess > self.threshold:
                self.n_alarms += 1
                self._restart()
                return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """The running sums."""
        return {
            "count": self._count,
            "variance": self._variance,
            "excess": self._excess,
            "n_alarms": self.n_alarms,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._count, self.n_alarms = int(state["count"]), int(state["n_alarms"])
        self._variance, self._excess = float(state["variance"]), float(state["excess"])


class Forgetful:
    """A :class:`SmoothMonotone` that drops most of its memory when its residuals jump.

    Between jumps it keeps everything, which a half-life does not; a slow drift does not trip it, for which a half-life is the
    cure.

    Args:
        calibrator: the map.
        detector: of jumps.
        keep: share of the memory's weight that survives one.

    Raises:
        ValueError: if ``keep`` leaves [0, 1].

    >>> f = Forgetful(SmoothMonotone())
    >>> x = np.random.default_rng(0).random(2000)
    >>> f.push(x, x**3)
    >>> for i in range(0, 400, 20):
    ...     f.push(x[i : i + 20], np.sqrt(x[i : i + 20]))
    >>> f.detector.n_alarms, bool(abs(f.predict([0.5])[0] - 0.5**0.5) < 0.1)
    (1, True)
    """

    def __init__(
        self, calibrator: SmoothMonotone | None = None, detector: ChangeDetector | None = None, *, keep: float = 0.02
    ) -> None:
        if not 0.0 <= keep <= 1.0:
            raise ValueError(f"keep must be in [0, 1], got {keep}")
        self.calibrator = SmoothMonotone() if calibrator is None else calibrator
        self.detector = ChangeDetector() if detector is None else detector
        self.keep = float(keep)
        self.reward_range = self.calibrator.reward_range

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Look for a jump in these pairs' residuals, then learn from them."""
        x, y = finite_pairs(predicted, real)
        c = as_ints("context", context, size=x.size)
        if self.detector.update(y - self.calibrator.predict(x, c)):
            self.calibrator.forget(self.keep)
        self.calibrator.push(x, y, c)

    def refit(self) -> None:
        """Fit now."""
        self.calibrator.refit()

    def predict(self, predicted: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The calibrated rewards; float64, shape (B,)."""
        return self.calibrator.predict(predicted, context)

    def state_dict(self) -> dict[str, Any]:
        """Map and detector."""
        return {"calibrator": self.calibrator.state_dict(), "detector": self.detector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.calibrator.load_state_dict(state["calibrator"])
        self.detector.load_state_dict(state["detector"])
