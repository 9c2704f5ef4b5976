"""Contextual calibration: what anchors reveal beyond a monotone f, as a function of what was done.

A learned model's bias is mostly no function of its prediction: it overrates one kind of attempt and underrates another that it
predicts alike. So what f leaves, r - f(x), is regressed on features of what was done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints
from wmrl_gym.corrections.gaussian_process import GaussianProcess, Kernel
from wmrl_gym.corrections.online_calibration import OnlineCalibration

_LEAST = 6
"""Pairs before anything is regressed on features."""
_NOISE = 0.02
"""First guess of a pair's noise, for a reward of range 1: that of a smooth f."""


def trusted(gains: Floats) -> float:
    """How much of a correction to apply that lowered squared errors by ``gains``, shape (N,): 0 to 1.

    ``1 - (standard error / mean)^2``, and 0 below: the share of the mean gain that is not to be expected of chance.
    """
    n = gains.size
    if n < 2:
        return 0.0
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / np.sqrt(n)
    return 0.0 if mean <= error else float(1.0 - (error / mean) ** 2)


class ContextualCalibration(OnlineCalibration):
    """A calibration that knows what was done: ``f(x) + share * delta(features)``, clipped to the reward's range.

    f is :class:`SmoothMonotone`, delta a Gaussian process on the residuals that f leaves (:class:`GaussianProcess`: zero mean, so
    no correction where nothing is known). ``share`` is in [0, 1], by how well delta predicts the residual of each pair from all
    the others: where the features explain nothing, or pairs are too few to tell, it is 0, and the map f alone. Without a pair it
    is the identity, bit for bit, clipped to the range.

    Pairs and predictions whose features are not known (NaN) are f's alone.

    Args:
        reward_range: lowest and highest reward; None is the running range of the pairs.
        window: how many of the newest pairs f keeps.
        inducing: how many of the newest pairs delta is fitted to: time and memory are bounded by it.

    Raises:
        ValueError: if an argument is out of range.

    >>> calibration = ContextualCalibration()
    >>> kind = np.arange(64) % 2
    >>> calibration.push(np.full(64, 0.5), 0.4 + 0.2 * kind, features=kind[:, None])
    >>> calibration.predict([0.5, 0.5], features=[[0], [1]]).round(2)
    array([0.4, 0.6])
    """

    def __init__(self, *, reward_range: tuple[float, float] | None = (0.0, 1.0), window: int = 5000, inducing: int = 512) -> None:
        super().__init__("smooth", reward_range=reward_range, window=window)
        if inducing < _LEAST:
            raise ValueError(f"inducing must be at least {_LEAST}, got {inducing}")
        self.inducing = int(inducing)
        self.share = 0.0
        """How much of delta is applied."""
        self._kept: tuple[Floats, Floats, Ints, Floats] | None = None
        self._process: GaussianProcess | None = None
        self._chosen_at = 0
        self._gained: Floats = np.zeros(0)

    @property
    def evidence(self) -> float:
        """How sure it is, in [0, 1], that predictions err by more than noise: of f or of delta, the surer."""
        return max(self.share, trusted(self._gained))

    def push(self, predicted: ArrayLike, real: ArrayLike, *, context: ArrayLike | None = None, features: Any = None) -> None:
        """Learn from anchor pairs; see :meth:`OnlineCalibration.push`.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            real: real rewards, float64, shape (B,), NaN where unknown.
            context: int64, shape (B,).
            features: what was done, float64, shape (B, F), rows of NaN where that is not known; None knows nothing.

        Raises:
            ValueError: a reward outside the declared range, or features of another width than before.
        """
        x = as_floats("predicted", predicted)
        r, c = as_floats("real", real, size=x.size), as_ints("context", context, size=x.size)
        z = self._checked(features, x.size)
        ok = np.isfinite(x) & np.isfinite(r)
        if self.n_pairs and ok.any():
            before = super().predict(x[ok], context=c[ok])
            self._gained = np.concatenate([self._gained, (r[ok] - x[ok]) ** 2 - (r[ok] - before) ** 2])[-self.inducing :]
        super().push(x, r, context=c)
        if z is not None:
            known = ok & np.isfinite(z).all(axis=1)
            self._keep(x[known], r[known], c[known], z[known])
            if known.any():
                self._regress()

    def _checked(self, features: Any, n: int) -> Floats | None:
        """Features as float64, shape (n, F)."""
        if features is None:
            return None
        z = np.asarray(features, np.float64)
        if z.ndim != 2 or len(z) != n:
            raise ValueError(f"features must have shape ({n}, F), got {z.shape}")
        if self._kept is not None and z.shape[1] != self._kept[3].shape[1]:
            raise ValueError(f"features must have {self._kept[3].shape[1]} columns as before, got {z.shape[1]}")
        return z

    def _keep(self, x: Floats, r: Floats, c: Ints, z: Floats) -> None:
        new = (x, r, c, z)
        if self._kept is not None:
            new = tuple(np.concatenate(parts) for parts in zip(self._kept, new, strict=True))  # type: ignore[assignment]
        self._kept = tuple(part[-self.inducing :] for part in new)  # type: ignore[assignment]

    def _regress(self, kernel: Kernel | None = None) -> None:
        """Fit delta to what f leaves of the kept pairs, and judge it by what it says of each pair unseen."""
        assert self._kept is not None
        x, r, c, z = self._kept
        if len(x) < _LEAST or self._calibrator is None:
            return
        target = r - super().predict(x, context=c)
        if kernel is None and self._process is not None and self.n_pairs < self._chosen_at + self._chosen_at // 8:
            kernel = self._process.kernel
        elif kernel is None:
            self._chosen_at = self.n_pairs
        self._process = GaussianProcess(z, target, noise=_NOISE * self._width() ** 2, kernel=kernel)
        said = self._process.held_out()
        total = float(said @ said)
        best = min(max(float(said @ target) / total, 0.0), 1.0) if total > 0.0 else 0.0
        self.share = best * trusted(target**2 - (target - best * said) ** 2) if best > 0.0 else 0.0

    def refit(self) -> None:
        """Fit f and delta now."""
        super().refit()
        if self._kept is not None:
            self._regress()

    def predict(self, predicted: ArrayLike, *, context: ArrayLike | None = None, features: Any = None) -> Floats:
        """The expected real reward of each prediction; see :meth:`OnlineCalibration.predict`.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            context: int64, shape (B,).
            features: float64, shape (B, F), rows of NaN where not known; None knows nothing, so that f alone is used.
        """
        base = super().predict(predicted, context=context)
        z = self._checked(features, base.size)
        if z is None or self.share == 0.0 or self._process is None or self._calibrator is None:
            return base
        known = np.isfinite(z).all(axis=1)
        out = base.copy()
        out[known] += self.share * self._process.predict(z[known])
        low, high = self._calibrator.reward_range
        return np.minimum(np.maximum(out, low, out=out), high, out=out)

    def standard_error(self, predicted: ArrayLike, *, features: Any = None) -> Floats:
        """Standard error of the rewards: that of f and that of the process, mixed by ``share``; float64, shape (B,)."""
        error = super().standard_error(predicted)
        z = self._checked(features, error.size)
        if z is None or self.share == 0.0 or self._process is None:
            return error
        known = np.isfinite(z).all(axis=1)
        error = error.copy()
        own = self._process.variance(z[known])
        error[known] = np.sqrt((1.0 - self.share) * error[known] ** 2 + self.share * own)
        return error

    def state_dict(self) -> dict[str, Any]:
        """Pairs with their features, the kernel, and f's own state."""
        kernel = None if self._process is None else self._process.kernel
        kept = None if self._kept is None else dict(zip(("predicted", "real", "context", "features"), self._kept, strict=True))
        values = None if kernel is None else np.array([kernel.length, kernel.variance, kernel.offset, kernel.noise])
        own = {"kept": kept, "kernel": values, "chosen_at": self._chosen_at, "gained": self._gained.copy()}
        return super().state_dict() | {"contextual": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of an equally constructed one."""
        super().load_state_dict(state)
        own = state["contextual"]
        self._chosen_at, self._gained = int(own["chosen_at"]), np.array(own["gained"], np.float64)
        self._process, self.share, self._kept = None, 0.0, None
        if own["kept"] is not None:
            kept = own["kept"]
            self._kept = (
                np.array(kept["predicted"], np.float64),
                np.array(kept["real"], np.float64),
                np.array(kept["context"], np.int64),
                np.array(kept["features"], np.float64),
            )
        if own["kernel"] is not None:
            self._regress(Kernel(*(float(value) for value in own["kernel"])))
