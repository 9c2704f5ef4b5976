"""Gaussian process regression of what anchors reveal on what was done, with its held-out errors in closed form.

Textbook formulas (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, eq. 2.23 to 2.30 and 5.12), for pairs
of which many have the same features: N pairs with M different features are a process at M places, whose noise is the smaller the
more pairs a place has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular

from wmrl_gym.corrections.anchor_pairs import Floats, Ints

_LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Length scales that are tried, in median distances of two places."""
_OFFSETS = (0.1, 1.0)
"""Variances of the constant offset that are tried, in units of the process' own."""
_GAINS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Variances of the process that are tried, in units of the noise's; besides 0."""
_CHOSEN_ON = 64
"""Places on which these are chosen, evenly spread over all."""
_NOISE_PAIRS = 2.0
"""Pseudo-pairs that the first guess of the noise counts for."""
_WIDTH = 64
"""Columns beyond which features are projected at random; squared distances then err by a sixth."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """``variance (1 / (1 + d^2 / (2 length^2)) + offset)``, and the noise of one pair.

    A rational quadratic kernel: squared exponentials of many length scales at once, at a fraction of their cost.

    Args:
        length: scale of distances d between scaled features.
        variance: of the process.
        offset: variance of a constant, in units of ``variance``.
        noise: variance of one pair's noise.
    """

    length: float
    variance: float
    offset: float
    noise: float

    def between(self, squares: Floats) -> Floats:
        """The prior covariance of places at these squared distances."""
        out: Floats = squares * (0.5 / self.length**2)
        out += 1.0
        np.divide(self.variance, out, out=out)
        out += self.variance * self.offset
        return out


@dataclass(frozen=True, slots=True)
class Scaling:
    """Makes columns comparable: divides each by its spread; those that are constant count nothing.

    Where the second half repeats the first (an episode of one attempt is described twice alike) it is left out too: that changes
    all distances by one factor, and length scales are relative to these.

    Args:
        columns: int64, shape (K,). Those that vary.
        weight: float64, shape (K,), or (K, 64) where K is more than 64: the projection, divided by the spread.
    """

    columns: Ints
    weight: Floats

    @classmethod
    def of(cls, features: Floats) -> Scaling:
        """The scaling of places, float64, shape (M, F)."""
        low, high = features.min(axis=0), features.max(axis=0)
        half = features.shape[1] // 2
        twice = features.shape[1] % 2 == 0 and np.array_equal(features[:, :half], features[:, half:])
        width = half if twice else features.shape[1]
        span = (high - low)[:width]
        columns = np.flatnonzero(span > 0.0)
        # A column that is nearly always the same must not outweigh all others the few times that it is not.
        scale = np.maximum(features[:, columns].std(axis=0), span[columns] / 4.0)
        if len(columns) <= _WIDTH:
            return cls(columns, 1.0 / scale)
        signs = np.random.default_rng(width).integers(0, 2, (width, _WIDTH))[columns]
        return cls(columns, (2.0 * signs - 1.0) / (np.sqrt(_WIDTH) * scale[:, None]))

    def __call__(self, features: Floats) -> Floats:
        """Scaled features: float64, shape (B, K), or (B, 64)."""
        used = features[:, self.columns]
        scaled: Floats = used * self.weight if self.weight.ndim == 1 else used @ self.weight
        return scaled


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Between the rows of a, shape (B, K), and of b, shape (M, K): float64, shape (B, M), not below 0."""
    out: Floats = a @ b.T
    out *= -2.0
    out += (a**2).sum(axis=1)[:, None]
    out += (b**2).sum(axis=1)
    return np.maximum(out, 0.0, out=out)


class GaussianProcess:
    """A zero-mean Gaussian process fitted to N pairs of features and a target.

    Length scale, variances and noise are those of the largest marginal likelihood on a small grid, chosen on at most 64 places. A
    process without any variance is on the grid: targets that the features do not explain are predicted as 0.

    Args:
        features: float64, shape (N, F), finite.
        target: float64, shape (N,), finite.
        noise: first guess of the variance of one pair's noise, in squared units of the target; counts for 2 pairs.
        kernel: to be used as it is; None chooses one.

    >>> z = np.linspace(0, 1, 40)[:, None]
    >>> process = GaussianProcess(z, np.sin(6 * z[:, 0]), noise=0.01)
    >>> bool(np.abs(process.predict(z) - np.sin(6 * z[:, 0])).max() < 0.05)
    True
    >>> bool(process.variance(z).max() < process.variance(z + 9.0).min())
    True
    """

    def __init__(self, features: Floats, target: Floats, *, noise: float, kernel: Kernel | None = None) -> None:
        places, self._place, count = distinct(features)
        self._count = count.astype(np.float64)
        self._mean = np.bincount(self._place, target, len(places)) / self._count
        self._target = target
        self._scaling = Scaling.of(places)
        self._z = self._scaling(places)
        self._squares = squared_distances(self._z, self._z)
        self.kernel = kernel or self._chosen(noise)
        self._factor: Floats = np.zeros((0, 0))
        self._weights: Floats = np.zeros(0)
        if self.kernel.variance > 0.0:
            covariance = self.kernel.between(self._squares)
            covariance[np.diag_indices_from(covariance)] += self.kernel.noise / self._count
            self._factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
            self._weights = cho_solve((self._factor, True), self._mean, check_finite=False)
            # What predictions need: one product with these rows is 1 + d^2, in units in which the kernel is its reciprocal.
            self._unit = np.sqrt(0.5) / self.kernel.length
            near = self._unit * self._z
            self._near = np.column_stack([near, np.ones(len(near)), (near**2).sum(axis=1)]).T
        del self._squares

    def _chosen(self, noise: float) -> Kernel:
        """The kernel of the largest marginal likelihood."""
        m = len(self._count)
        some = np.unique(np.linspace(0, m - 1, min(m, _CHOSEN_ON)).round().astype(np.int64))
        count, mean, squares = self._count[some], self._mean[some], self._squares[np.ix_(some, some)]
        n = float(count.sum())
        within = float(((self._target - self._mean[self._place]) ** 2)[np.isin(self._place, some)].sum()) if n > m else 0.0
        near = squares[np.triu_indices(len(some), 1)]
        unit = float(np.sqrt(np.median(near[near > 0.0]))) if (near > 0.0).any() else 1.0
        spread = noise * _NOISE_PAIRS + within

        def likelihood(quadratic: Floats, logs: Floats) -> Floats:
            return -0.5 * ((n + _NOISE_PAIRS) * np.log(quadratic + spread) + logs)

        root = np.sqrt(count)
        nothing = float(likelihood(np.array((count * mean**2).sum()), np.zeros(())))
        best, kernel = nothing, Kernel(unit, 0.0, 0.0, noise)
        gains = np.array(_GAINS)[:, None]
        for length in _LENGTHS:
            for offset in _OFFSETS:
                shape = Kernel(length * unit, 1.0, offset, 0.0).between(squares)
                values, vectors = np.linalg.eigh(shape * np.outer(root, root))
                grown = 1.0 + gains * np.maximum(values, 0.0)
                quadratic = ((vectors.T @ (root * mean)) ** 2 / grown).sum(axis=1)
                logs = likelihood(quadratic, np.log(grown).sum(axis=1))
                at = int(np.argmax(logs))
                if logs[at] > best:
                    best, variance = float(logs[at]), float(quadratic[at] + spread) / (n + _NOISE_PAIRS)
                    kernel = Kernel(length * unit, float(gains[at, 0]) * variance, offset, variance)
        return kernel

    def predict(self, features: Floats) -> Floats:
        """The expected targets: float64, shape (B,)."""
        if not self._weights.size:
            return np.zeros(len(features))
        z = self._unit * self._scaling(features)
        covariance = np.column_stack([-2.0 * z, 1.0 + (z**2).sum(axis=1), np.ones(len(z))]) @ self._near
        np.maximum(covariance, 1.0, out=covariance)
        np.reciprocal(covariance, out=covariance)
        offset = self.kernel.offset * float(self._weights.sum())
        out: Floats = self.kernel.variance * (covariance @ self._weights + offset)
        return out

    def fitted(self) -> Floats:
        """What is expected of each pair by all, itself included: float64, shape (N,)."""
        if not self._weights.size:
            return np.zeros(self._target.size)
        out: Floats = (self._mean - self.kernel.noise / self._count * self._weights)[self._place]
        return out

    def variance(self, features: Floats) -> Floats:
        """The variance of the process, without a pair's noise: float64, shape (B,)."""
        prior = self.kernel.variance * (1.0 + self.kernel.offset)
        if not self._weights.size:
            return np.full(len(features), prior)
        cross = self.kernel.between(squared_distances(self._scaling(features), self._z))
        known = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        out: Floats = np.maximum(prior - (known**2).sum(axis=0), 0.0)
        return out

    def held_out(self) -> Floats:
        """What is expected of each pair by all others: float64, shape (N,).

        A pair's leverage is the variance of the process at its place over the noise; the error that leaving it out makes is the
        error that is left, over one less the leverage.
        """
        if not self._weights.size:
            return np.zeros(self._target.size)
        inverse, _ = lapack.dpotri(self._factor, lower=1)
        noise = self.kernel.noise
        mean = self._mean - noise / self._count * self._weights
        leverage = 1.0 / self._count - noise / self._count**2 * np.diagonal(inverse)
        error = (self._target - mean[self._place]) / np.maximum(1.0 - leverage, 1e-9)[self._place]
        out: Floats = self._target - error
        return out


def distinct(features: Floats) -> tuple[Floats, Ints, NDArray[np.int64]]:
    """The different rows in order of their first pair, the row of each pair, and how many pairs each has."""
    rows = np.ascontiguousarray(features + 0.0)  # one zero, not two
    known: dict[bytes, int] = {}
    place = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)
    first = np.unique(place, return_index=True)[1]
    return rows[first], place, np.bincount(place)
