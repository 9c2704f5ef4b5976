"""Trees on bootstrap samples, which know their honest error on the very rows they were trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor


class BaggedTrees:
    """Extremely randomised regression trees, each grown on a bootstrap sample.

    Args:
        n_trees: number of trees.
        seed: of the samples and of the random splits: the same data and seed grow the same trees.

    >>> x = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
    >>> trees = BaggedTrees(8).fit(x, x[:, 0].astype(float))
    >>> mean, variance = trees.predict(x[:3])
    >>> mean.shape, variance.shape, trees.held_out_mean.shape
    ((3, 1), (3, 1), (50, 1))
    """

    held_out_mean: NDArray[np.float64]
    """float64, shape (N, K): for each training row, the mean over the trees that never saw it; NaN where all did."""
    held_out_variance: NDArray[np.float64]
    """float64, shape (N, K): the variance over those trees."""

    def __init__(self, n_trees: int = 48, *, seed: int = 0) -> None:
        self.n_trees = n_trees
        self.seed = seed

    def fit(self, x: NDArray[np.float32], y: NDArray[np.float64]) -> BaggedTrees:
        """Grow the trees.

        Args:
            x: float32, shape (N, F), finite.
            y: float64, shape (N, K), or (N,) for K = 1.
        """
        target = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        forest = ExtraTreesRegressor(self.n_trees, bootstrap=True, max_features=0.5, random_state=self.seed, n_jobs=1)
        forest.fit(x, target)
        self._trees = [tree.tree_ for tree in forest.estimators_]
        each = self._every(x)
        for row, indices in zip(each, forest.estimators_samples_, strict=True):
            row[indices] = np.nan
        count = np.isfinite(each).sum(axis=0)
        unseen = np.where(count > 0, count, np.nan)
        self.held_out_mean = np.nansum(each, axis=0) / unseen
        self.held_out_variance = np.nansum((each - self.held_out_mean) ** 2, axis=0) / unseen
        return self

    def predict(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance over the trees, each float64, shape (B, K)."""
        each = self._every(x)
        return each.mean(axis=0), each.var(axis=0)

    def _every(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        x = np.ascontiguousarray(x, dtype=np.float32)
        # One call a tree: scikit-learn's own predict spends several times longer on dispatch than on the trees.
        return np.stack([tree.predict(x).reshape(len(x), -1) for tree in self._trees])
