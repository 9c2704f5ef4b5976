"""A monotone calibrator that starts as the identity, is never flat, and knows contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints, check_range
from wmrl_gym.corrections.calibration import finite_pairs


def _identity_moments(ramps: int) -> tuple[Floats, Floats]:
    """Mean (J,) and covariance (J, J) of the ramps under a uniform prediction."""
    mean = (ramps - np.arange(ramps) - 0.5) / ramps
    # Where the later of two ramps is above 0 the earlier is 1, so their product is the later one.
    second = np.minimum.outer(mean, mean)
    np.fill_diagonal(second, (ramps - 1 - np.arange(ramps) + 1.0 / 3.0) / ramps)
    return mean, second - np.outer(mean, mean)


class SmoothMonotone:
    """Continuous piecewise-linear monotone regression with a floor under its slope, and an offset a context.

    With u the prediction scaled to [0, 1] and J ramps, ``f_c(u) = a_c + sum_j beta_j clip(J u - j, 0, 1)`` and ``beta_j >=
    min_slope / J``: never flat, since ties between different predictions kill a group's advantage. The slopes are shared and
    fitted by non-negative least squares on statistics centred within contexts, together with ``prior_pairs`` pseudo-pairs of
    the identity: it needs no minimum of pairs. The offsets are pooled partially, with weight n_c / (n_c + pooling). Without a
    half-life the fit does not depend on the order of the pairs. Memory is fixed: sums, not pairs.

    Args:
        reward_range: lowest and highest reward; the ramps divide it.
        ramps: number of linear pieces.
        min_slope: least slope of the scaled map.
        prior_pairs: how many pairs the identity counts for.
        pooling: how many pairs of a context the pooled offset counts for.
        half_life: pairs after which a pair counts half; None never forgets.
        max_contexts: contexts beyond so many share the pooled offset.

    Raises:
        ValueError: if an argument is out of its range.

    >>> f = SmoothMonotone()
    >>> f.predict([0.2, 0.8]).round(12)
    array([0.2, 0.8])
    >>> x = np.linspace(0, 1, 2000)
    >>> f.push(x, x**2)
    >>> bool(np.abs(f.predict([0.25, 0.5, 0.75]) - [0.0625, 0.25, 0.5625]).max() < 0.01)
    True
    """

    def __init__(
        self,
        reward_range: tuple[float, float] = (0.0, 1.0),
        *,
        ramps: int = 12,
        min_slope: float = 0.05,
        prior_pairs: float = 32.0,
        pooling: float = 4.0,
        half_life: float | None = None,
        max_contexts: int = 4096,
    ) -> None:
        if ramps < 1:
            raise ValueError(f"ramps must be at least 1, got {ramps}")
        if not 0.0 <= min_slope <= 1.0:
            raise ValueError(f"min_slope must be in [0, 1], got {min_slope}")
        for name, value in (("prior_pairs", prior_pairs), ("pooling", pooling), ("half_life", half_life)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.reward_range = check_range(reward_range)
        self.ramps = int(ramps)
        self.min_slope = float(min_slope)
        self.prior_pairs = float(prior_pairs)
        self.pooling = float(pooling)
        self.half_life = half_life
        self.max_contexts = int(max_contexts)
        self._prior_mean, self._prior_cov = _identity_moments(self.ramps)
        self._row: dict[int, int] = {}
        self._sort_rows()
        # Sums over pairs of (1, ramps, truth): by context, and of their products over all contexts.
        self._sums = np.zeros((0, self.ramps + 2))
        self._products = np.zeros((self.ramps + 2, self.ramps + 2))
        self._slopes = np.full(self.ramps, 1.0 / self.ramps)
        self._intercept = 0.0
        self._offsets = np.zeros(0)
        low, high = self.reward_range
        self._knots = np.linspace(low, high, self.ramps + 1)
        self._heights = np.linspace(0.0, 1.0, self.ramps + 1)

    def _basis(self, predicted: Floats) -> Floats:
        low, high = self.reward_range
        u = (predicted - low) / (high - low)
        out: Floats = np.clip(self.ramps * u[:, None] - np.arange(self.ramps), 0.0, 1.0)
        return out

    def _rows(self, context: Ints) -> Ints:
        """The row of each context, -1 for one without; shape (B,)."""
        known, row = self._sorted_rows
        if known.size == 0:
            return np.full(context.size, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, context), known.size - 1)
        return np.where(known[at] == context, row[at], -1)

    def _sort_rows(self) -> None:
        """Lay contexts and their rows out in the contexts' order, for looking many up at once."""
        known = np.array(list(self._row), dtype=np.int64)
        order = np.argsort(known)
        self._sorted_rows = known[order], order.astype(np.int64)

    def _admit(self, context: Ints) -> None:
        for c in np.unique(context):
            if int(c) not in self._row and len(self._row) < self.max_contexts:
                self._row[int(c)] = len(self._row)
        missing = len(self._row) - len(self._sums)
        if missing:
            self._sort_rows()
        self._sums = np.concatenate([self._sums, np.zeros((missing, self.ramps + 2))])

    def push(self, predicted: ArrayLike, real: ArrayLike, context: ArrayLike | None = None) -> None:
        """Learn from pairs and refit."""
        x, y = finite_pairs(predicted, real)
        c = as_ints("context", context, size=x.size)
        if x.size == 0:
            return
        low, high = self.reward_range
        rows = np.concatenate([np.ones((x.size, 1)), self._basis(x), ((y - low) / (high - low))[:, None]], axis=1)
        weight = np.ones(x.size)
        if self.half_life is not None:
            weight = 0.5 ** (np.arange(x.size)[::-1] / self.half_life)
            self._sums *= 0.5 ** (x.size / self.half_life)
            self._products *= 0.5 ** (x.size / self.half_life)
        self._admit(c)
        where = self._rows(c)
        owned = where >= 0
        np.add.at(self._sums, where[owned], (rows * weight[:, None])[owned])
        self._products += (rows * weight[:, None]).T @ rows
        self.refit()

    def refit(self) -> None:
        """Solve for slopes and offsets from the sums: O(ramps^3 + contexts), whatever the number of pairs."""
        n = self._sums[:, 0]
        # sum_c w_c n_c mean mean' with w_c = n_c / (n_c + pooling) is sum_c sum sum' / (n_c + pooling).
        scaled = self._sums / np.sqrt(n + self.pooling)[:, None]
        centred = self._products - scaled.T @ scaled
        quadratic = centred[1:-1, 1:-1] + self.prior_pairs * self._prior_cov
        linear = centred[1:-1, -1] + self.prior_pairs * self._prior_cov.sum(axis=1) / self.ramps
        floor = self.min_slope / self.ramps
        factor = np.linalg.cholesky(quadratic)
        target = np.linalg.solve(factor, linear - quadratic.sum(axis=1) * floor)
        self._slopes = floor + nnls(factor.T, target)[0]
        total = self._products[0]
        prior = self.prior_pairs * (0.5 - self._slopes @ self._prior_mean)
        self._intercept = float((total[-1] - self._slopes @ total[1:-1] + prior) / (total[0] + self.prior_pairs))
        residual = self._sums[:, -1] - self._sums[:, 1:-1] @ self._slopes - n * self._intercept
        self._offsets = residual / (n + self.pooling)
        self._heights = self._intercept + np.concatenate([[0.0], np.cumsum(self._slopes)])

    def forget(self, keep: float) -> None:
        """Let all pairs so far count for ``keep`` of what they did, in [0, 1]; the identity's pseudo-pairs stay."""
        self._sums *= keep
        self._products *= keep
        self.refit()

    def predict(self, predicted: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The calibrated rewards; a context never seen has the pooled offset. float64, shape (B,)."""
        x = as_floats("predicted", predicted)
        where = self._rows(as_ints("context", context, size=x.size))
        low, high = self.reward_range
        # The ramps' sum is linear between knots.
        value = np.interp(x, self._knots, self._heights) + np.append(self._offsets, 0.0)[where]
        out: Floats = low + (high - low) * value
        return np.minimum(np.maximum(out, low, out=out), high, out=out)

    def state_dict(self) -> dict[str, Any]:
        """The sums; the fit follows from them."""
        contexts = np.array(list(self._row), dtype=np.int64)
        return {"contexts": contexts, "sums": self._sums.copy(), "products": self._products.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: if it was saved with another number of ramps.
        """
        products = np.array(state["products"], dtype=np.float64)
        if products.shape != self._products.shape:
            raise ValueError(f"the state must have {self.ramps} ramps, got {products.shape[0] - 2}")
        self._row = {int(c): i for i, c in enumerate(np.asarray(state["contexts"]))}
        self._sort_rows()
        self._sums = np.array(state["sums"], dtype=np.float64).reshape(len(self._row), self.ramps + 2)
        self._products = products
        self.refit()
