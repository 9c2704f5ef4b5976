"""The package's calibrators, vectorised over seeds. ``tests/corrections/test_study.py`` holds them against the originals."""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from benchmarks.corrections_study.world import CONTEXTS, Array


class Identity:
    """No calibration."""

    def predict(self, x: Array) -> Array:
        """Predictions (S, C, G), unchanged."""
        return x

    def push(self, x: Array, r: Array, context: np.ndarray) -> None:
        """Pairs, each of shape (S, n); ignored."""


class Binned:
    """:class:`wmrl_gym.corrections.BinnedIsotonic` over S seeds that get equally many pairs a step."""

    def __init__(self, seeds: int) -> None:
        self._x: list[Array] = []
        self._r: list[Array] = []
        self._count, self._since = 0, 0
        self._knots: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._seeds = seeds

    def predict(self, x: Array) -> Array:
        """Calibrated predictions, same shape (S, ...)."""
        if self._knots is None:
            return x
        return np.stack([np.interp(row, *knots) for row, knots in zip(x, self._knots, strict=True)]).astype(np.float32)

    def push(self, x: Array, r: Array, context: np.ndarray) -> None:
        """Pairs, each of shape (S, n), in order of arrival."""
        start = 0
        while start < x.shape[1]:
            due = max(64 - self._since, 200 - self._count, 1)
            part = x[:, start : start + due]
            self._x.append(part)
            self._r.append(r[:, start : start + due])
            self._count += part.shape[1]
            self._since += part.shape[1]
            start += due
            if self._count >= 200 and self._since >= 64:
                self._fit()

    def _fit(self) -> None:
        self._x, self._r = [np.concatenate(self._x, axis=1)[:, -5000:]], [np.concatenate(self._r, axis=1)[:, -5000:]]
        self._since = 0
        knots = [] if self._knots is None else self._knots
        fitted = []
        for s, (x, r) in enumerate(zip(self._x[0].astype(float), self._r[0].astype(float), strict=True)):
            cell = np.digitize(x, np.linspace(0.0, 1.0, 11)[1:-1])
            count = np.bincount(cell, minlength=10).astype(float)
            filled = count > 0
            if filled.sum() < 2:
                fitted.append(knots[s] if knots else (np.array([0.0, 1.0]), np.array([0.0, 1.0])))
                continue
            mean_x = np.bincount(cell, x, 10)[filled] / count[filled]
            mean_r = np.bincount(cell, r, 10)[filled] / count[filled]
            fitted.append((mean_x, isotonic_regression(mean_r, weights=count[filled]).x))
        self._knots = fitted


class Smooth:
    """:class:`wmrl_gym.corrections.SmoothMonotone` over S seeds. ``pooled`` makes all contexts one."""

    def __init__(self, seeds: int, *, pooled: bool = False, half_life: float | None = None, ramps: int = 12) -> None:
        self._ramps = ramps
        mean = (ramps - np.arange(ramps) - 0.5) / ramps
        second = np.minimum.outer(mean, mean)
        np.fill_diagonal(second, (ramps - 1 - np.arange(ramps) + 1.0 / 3.0) / ramps)
        self._mean, self._cov = mean, second - np.outer(mean, mean)
        self._pooled, self._half_life = pooled, half_life
        self._sums = np.zeros((seeds, 1 if pooled else CONTEXTS, ramps + 2))
        self._products = np.zeros((seeds, ramps + 2, ramps + 2))
        self._slopes = np.full((seeds, ramps), 1.0 / ramps)
        self._offsets = np.zeros((seeds, self._sums.shape[1]))

    def _basis(self, x: Array) -> np.ndarray:
        return np.clip(self._ramps * x[..., None].astype(np.float64) - np.arange(self._ramps), 0.0, 1.0)

    def predict(self, x: Array) -> Array:
        """Calibrated predictions (S, C, G)."""
        # The map is linear between the ends of the ramps: interpolate the cumulated slopes.
        knots = np.concatenate([np.zeros((len(x), 1)), np.cumsum(self._slopes, axis=1)], axis=1)
        place = np.clip(x.astype(np.float64), 0.0, 1.0) * self._ramps
        left = np.minimum(place.astype(np.int64), self._ramps - 1)
        seed = np.arange(len(x))[:, None, None]
        value = knots[seed, left] + self._slopes[seed, left] * (place - left)
        return np.clip(value + self._offsets[:, :, None], 0.0, 1.0).astype(np.float32)

    def push(self, x: Array, r: Array, context: np.ndarray) -> None:
        """Pairs, each of shape (S, n)."""
        rows = np.concatenate([np.ones((*x.shape, 1)), self._basis(x), r[..., None]], axis=-1)
        weight = np.ones(x.shape[1])
        if self._half_life is not None:
            weight = 0.5 ** (np.arange(x.shape[1])[::-1] / self._half_life)
            self._sums *= 0.5 ** (x.shape[1] / self._half_life)
            self._products *= 0.5 ** (x.shape[1] / self._half_life)
        where = np.zeros_like(context) if self._pooled else context
        np.add.at(self._sums, (np.arange(len(x))[:, None], where), rows * weight[:, None])
        self._products += np.einsum("snj,snk->sjk", rows * weight[:, None], rows)
        self._fit()

    def _fit(self) -> None:
        n = self._sums[..., 0]
        scaled = self._sums / np.sqrt(n + 4.0)[..., None]
        centred = self._products - scaled.transpose(0, 2, 1) @ scaled
        quadratic = centred[:, 1:-1, 1:-1] + 32.0 * self._cov
        linear = centred[:, 1:-1, -1] + 32.0 * self._cov.sum(axis=1) / self._ramps
        floor = 0.05 / self._ramps
        factor = np.linalg.cholesky(quadratic)
        target = np.linalg.solve(factor, (linear - quadratic.sum(axis=-1) * floor)[..., None])[..., 0]
        self._slopes = np.stack([floor + nnls(a.T, b)[0] for a, b in zip(factor, target, strict=True)])
        total = self._products[:, 0]
        fitted = (self._slopes * total[:, 1:-1]).sum(axis=1)
        prior = 32.0 * (0.5 - self._slopes @ self._mean)
        intercept = (total[:, -1] - fitted + prior) / (total[:, 0] + 32.0)
        residual = self._sums[..., -1] - (self._sums[..., 1:-1] @ self._slopes[..., None])[..., 0] - n * intercept[:, None]
        self._offsets = intercept[:, None] + residual / (n + 4.0)
