"""What an outcome model learns from executed attempts, and how it is fitted: two stages, with calibrated doubt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.ensemble import ExtraTreesRegressor

from wmrl_gym import batch
from wmrl_gym.factored import Outcome
from wmrl_gym.lazy import renamed
from wmrl_gym.world_models.outcome.encoders import TextEncoder

PRIOR_STD = 0.3
"""Standard deviation, as a share of the reward's range, that an unfitted or hardly fitted model admits to."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """N executed attempts, the training data.

    Args:
        features: float32, shape (N, F). The environment's own features.
        text: object, shape (N,). The code.
        context: int64, shape (N,). Which task.
        outcome: what execution returned.
        number: int64, shape (N,), ascending. Which of all executions ever given each one was, from 0.
    """

    features: NDArray[np.float32]
    text: NDArray[np.object_]
    context: NDArray[np.int64]
    outcome: Outcome
    number: NDArray[np.int64]

    def rows_like(self, features: NDArray[np.float32], text: Sequence[str]) -> list[NDArray[np.int64]]:
        """For each of B attempts the rows that hold the same one: B int64 arrays."""
        rows: dict[tuple[bytes, str], list[int]] = {}
        for at, (own, code) in enumerate(zip(np.ascontiguousarray(self.features), self.text, strict=True)):
            rows.setdefault((own.tobytes(), code), []).append(at)
        wanted = np.ascontiguousarray(features, self.features.dtype)
        return [np.array(rows.get((own.tobytes(), code), ()), np.int64) for own, code in zip(wanted, text, strict=True)]

    def thinned(self, capacity: int, *, seed: int) -> Evidence:
        """At most ``capacity`` of them: what is too much goes at random from the older half, which thins out slowly."""
        surplus = len(self.text) - capacity
        if surplus <= 0:
            return self
        older = max(len(self.text) - capacity // 2, surplus)
        rng = np.random.default_rng([seed, int(self.number[-1])])
        kept = np.ones(len(self.text), bool)
        kept[rng.choice(older, surplus, replace=False)] = False
        return batch.take(self, kept)


@dataclass(frozen=True, slots=True)
class StatusCalibration:
    """Corrects the probabilities that a forest gives: ``(1 - mixing) p^(1/temperature) / Z + mixing base``.

    Args:
        temperature: below 1 where the forest is too shy.
        mixing: how much of the base rates is mixed in, so that nothing is impossible.
        base: float64, shape (S,). Base rates.
    """

    temperature: float
    mixing: float
    base: NDArray[np.float64]

    def __call__(self, chances: NDArray[np.float64]) -> NDArray[np.float64]:
        """Corrected probabilities, float64, shape (B, S)."""
        sharpened = chances ** (1.0 / self.temperature) if self.temperature != 1.0 else chances
        total = sharpened.sum(axis=1, keepdims=True)
        mixed: NDArray[np.float64] = (1.0 - self.mixing) * sharpened / total + self.mixing * self.base
        return mixed

    @classmethod
    def fitted(cls, chances: NDArray[np.float64], status: NDArray[np.int64]) -> StatusCalibration:
        """The one under which what really happened was likeliest.

        Args:
            chances: float64, shape (N, S). What the forest says of rows that it did not see.
            status: int64, shape (N,). What happened.
        """
        counts = np.bincount(status, minlength=chances.shape[1]).astype(np.float64)
        base = (counts + 0.5 * (counts > 0)) / (counts + 0.5 * (counts > 0)).sum()
        if len(status) < _FEW:
            return cls(1.0, 1.0 / (len(status) + 2), base)
        happened = np.arange(len(status)), status
        # What a third of the trees say of the rows that they did not see is noisier than what all
        # of them say of new ones: the little that the fit gains by that alone is not gained on new ones.
        tried = [cls(1.0, _LEAST, base), *(cls(t, m, base) for t in _TEMPERATURES for m in _MIXINGS)]
        losses = [float(-np.log(each(chances)[happened]).mean()) for each in tried]
        best = int(np.argmin(losses))
        return tried[best if losses[best] < losses[0] - _CLEARLY else 0]


_FEW = FEW = 30
_LEAST = 0.01
"""Mixed in at least."""
_CLEARLY = 0.03
"""Nats by which a correction must be likelier."""
_TEMPERATURES = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5)
_MIXINGS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model: everything that is computed from the evidence, replaced as a whole.

    Args:
        encoder: fitted on the evidence's text.
        x: float32, shape (N, F + W). The encoded evidence.
        scale: float32, shape (F + W,). The span of each column, 1 where it has none.
        marks: float64, shape (N, F + W). The encoded evidence as :meth:`marked` has it.
        chances: the forest over the statuses.
        calibration: of its probabilities.
        value: the forest over the value where the status leaves it open; None before two such executions.
        noise: variance of the value that nothing explains.
        slope: variance of the value's error for each unit of the trees' variance.
        measures: of the fit, for a log.
    """

    encoder: TextEncoder
    x: NDArray[np.float32]
    scale: NDArray[np.float32]
    marks: NDArray[np.float64]
    chances: BaggedTrees
    calibration: StatusCalibration
    value: BaggedTrees | None
    noise: float = 0.0
    slope: float = 1.0
    measures: dict[str, float] = field(default_factory=dict)

    def distances(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Root mean square difference to each execution, in spans of the columns: float64, shape (B, N)."""
        marks = marked(x, self.scale)
        squared = (marks**2).sum(axis=1)[:, None] + (self.marks**2).sum(axis=1) - 2.0 * marks @ self.marks.T
        return np.asarray(np.sqrt(squared / x.shape[1]) / _MARKS)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an update brings.

    Args:
        evidence: the executed attempts that are kept.
        executions: how many there have ever been.
        fit: of the oldest ``fitted`` of the evidence; None before there are enough.
        fitted: those that came later wait for the next fit.
    """

    evidence: Evidence | None
    executions: int
    fit: Fit | None
    fitted: int = 0


def marked(x: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float64]:
    """Encoded attempts in whole marks of 1/64 of a column's span: float64, of x's shape.

    Products and sums of whole numbers are exact, so that a distance is the same in any batch, whatever order they are summed in.
    """
    return np.clip(np.rint(x / scale * _MARKS), -(2**15), 2**15).astype(np.float64)


_MARKS = 64.0


def encode(encoder: TextEncoder, features: NDArray[np.float32], text: Sequence[str]) -> NDArray[np.float32]:
    """The environment's features, and the text's: float32, shape (B, F + W)."""
    encoded = encoder.encode(text)
    return np.hstack([features, encoded]) if encoded.shape[1] else features


@dataclass(frozen=True, slots=True)
class Stages:
    """The arithmetic of two stages, for statuses whose values are ``fixed``, NaN where open.

    Args:
        fixed: float64, shape (S,). The value of each status; NaN where it varies.
        reward_range: (low, high) of the value.
    """

    fixed: NDArray[np.float64]
    reward_range: tuple[float, float]

    @property
    def open(self) -> NDArray[np.bool_]:
        """Which statuses leave the value open: bool, shape (S,)."""
        which: NDArray[np.bool_] = np.isnan(self.fixed)
        return which

    def guess(self, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of an open value of which nothing is known, each float64, shape (n,)."""
        low, high = self.reward_range
        middle = (max([low, *self.fixed[~self.open]]) + high) / 2
        return np.full(n, middle), np.full(n, PRIOR_STD**2)

    def mix(
        self, chances: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the value over statuses, each float64, shape (B,), from those of an open value."""
        values = np.where(self.open, mean[:, None], self.fixed)
        whole = (chances * values).sum(axis=1)
        between = (chances * (values - whole[:, None]) ** 2).sum(axis=1)
        return whole, between + (chances * self.open).sum(axis=1) * variance


@dataclass(frozen=True, slots=True)
class Growth:
    """How trees are grown.

    Args:
        n_trees: in each forest.
        seed: of the samples and of the random splits.
        min_leaf: executions in a leaf at least.
        max_features: the share of columns that are tried at each split.
    """

    n_trees: int = 48
    seed: int = 0
    min_leaf: int = 1
    max_features: float = 0.5

    def trees(self, another: int = 0) -> BaggedTrees:
        """A forest to be; ``another`` is added to the seed."""
        return BaggedTrees(self.n_trees, seed=self.seed + another, min_leaf=self.min_leaf, max_features=self.max_features)


def fit(
    evidence: Evidence, stages: Stages, *, encoder: TextEncoder, growth: Growth, min_executions: int, judged_from: int = 0
) -> Fit:
    """Fit both stages, and the doubt of both together, on executed attempts; doubt on those numbered from ``judged_from``."""
    fitted = encoder.fitted_on(evidence.text.tolist()) if any(evidence.text) else encoder.fitted_on([])
    x = encode(fitted, evidence.features, evidence.text.tolist())
    span = np.ptp(x, axis=0)
    status, value = evidence.outcome.status, evidence.outcome.value
    chances = growth.trees().fit(x, np.eye(len(stages.fixed))[status])
    judged = evidence.number >= judged_from
    unseen = judged & np.isfinite(chances.held_out_mean).all(axis=1)
    calibration = StatusCalibration.fitted(chances.held_out_mean[unseen], status[unseen])
    scored = stages.open[status]
    trees = growth.trees(1).fit(x[scored], value[scored]) if scored.sum() >= 2 else None
    scale = np.where(span == 0, 1.0, span).astype(np.float32)
    whole = Fit(fitted, x, scale, marked(x, scale), chances, calibration, trees)
    return _with_doubt(whole, stages, status, value=value, judged=judged, min_executions=min_executions)


def _with_doubt(
    whole: Fit,
    stages: Stages,
    status: NDArray[np.int64],
    *,
    value: NDArray[np.float64],
    judged: NDArray[np.bool_],
    min_executions: int,
) -> Fit:
    """Fit ``error^2 ~ noise + slope variance`` on what the trees that never saw a row say of it."""
    mean, variance = stages.guess(len(value))
    if whole.value is not None:
        predicted, spread = whole.value.predict(whole.x)
        scored = stages.open[status]
        mean, variance = predicted[:, 0], spread[:, 0]
        mean[scored], variance[scored] = whole.value.held_out_mean[:, 0], whole.value.held_out_variance[:, 0]
    chances = whole.chances.held_out_mean
    unseen: NDArray[np.bool_] = np.asarray(np.isfinite(chances).all(axis=1))
    calibrated = whole.calibration(np.where(unseen[:, None], chances, 1.0))
    mean, variance = stages.mix(chances, mean, variance)
    honest = judged & np.isfinite(mean) & np.isfinite(variance)
    if honest.sum() < min_executions:
        return replace(whole, noise=PRIOR_STD**2, slope=0.0)
    error2 = (value - mean)[honest] ** 2
    noise, slope = nnls(np.stack([np.ones(len(error2)), variance[honest]], axis=1), error2)[0]
    spread_of_value = float(np.var(value[honest]))
    happened = calibrated[honest, status[honest]]
    measures = {
        "wm/held_out_rmse": float(np.sqrt(error2.mean())),
        "wm/held_out_r2": 1.0 - float(error2.mean()) / spread_of_value if spread_of_value > 0 else float("nan"),
        "wm/held_out_log_loss": float(-np.log(np.maximum(happened, 1e-12)).mean()),
    }
    return replace(whole, noise=float(noise), slope=float(slope), measures=measures)


def objects(items: Sequence[Any]) -> NDArray[np.object_]:
    """A one-dimensional array of objects."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


class BaggedTrees:
    """Extremely randomised regression trees, each grown on a bootstrap sample.

    Args:
        n_trees: number of trees.
        seed: of the samples and of the random splits: the same data and seed grow the same trees.
        min_leaf: rows in a leaf at least.
        max_features: the share of columns that are tried at each split.

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

    def __init__(self, n_trees: int = 48, *, seed: int = 0, min_leaf: int = 1, max_features: float = 0.5) -> None:
        self.n_trees, self.seed, self.min_leaf, self.max_features = n_trees, seed, min_leaf, max_features

    def fit(self, x: NDArray[np.float32], y: NDArray[np.float64]) -> BaggedTrees:
        """Grow the trees.

        Args:
            x: float32, shape (N, F), finite.
            y: float64, shape (N, K), or (N,) for K = 1.
        """
        target = y.reshape(len(y), -1)
        # A column that never changes, such as a status that never happened, splits nothing and would be paid for in each node.
        self._varies = np.flatnonzero(np.ptp(target, axis=0) > 0)
        self._constant = target[0].copy()
        grown = target[:, self._varies] if len(self._varies) else target[:, :1]
        forest = ExtraTreesRegressor(
            self.n_trees,
            bootstrap=True,
            min_samples_leaf=self.min_leaf,
            max_features=self.max_features,
            random_state=self.seed,
            n_jobs=1,
        )
        forest.fit(x, grown[:, 0] if grown.shape[1] == 1 else grown)
        self._trees = [tree.tree_ for tree in forest.estimators_]
        each = np.stack(list(self._answers(x)))
        for row, indices in zip(each, forest.estimators_samples_, strict=True):
            row[indices] = np.nan
        count = np.isfinite(each[..., 0]).sum(axis=0)[:, None]
        unseen = np.where(count > 0, count, np.nan)
        mean = np.nansum(each, axis=0) / unseen
        variance = np.nansum((each - mean) ** 2, axis=0) / unseen
        self.held_out_mean = self._whole(mean, self._constant) + 0.0 * unseen
        self.held_out_variance = self._whole(variance, np.zeros(len(self._constant))) + 0.0 * unseen
        return self

    def predict(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance over the trees, each float64, shape (B, K)."""
        each = np.stack(list(self._answers(x)))
        nothing = np.zeros(len(self._constant))
        return self._whole(each.mean(axis=0), self._constant), self._whole(each.var(axis=0), nothing)

    def mean(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The mean alone, float64, shape (B, K): answers that no variance is needed of are summed up and not kept."""
        answers = self._answers(x)
        total = next(answers).copy()
        for answer in answers:
            total += answer
        total /= len(self._trees)
        return self._whole(total, self._constant)

    def _answers(self, x: NDArray[np.float32]) -> Iterator[NDArray[np.float64]]:
        """What each tree says of the columns that vary, float64, shape (B, V)."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        # One call a tree: scikit-learn's own predict spends several times longer on dispatch than on the trees.
        return (tree.predict(x).reshape(len(x), -1) for tree in self._trees)

    def _whole(self, varying: NDArray[np.float64], constant: NDArray[np.float64]) -> NDArray[np.float64]:
        """All K columns, of which those that vary are given."""
        if len(self._varies) == len(constant):
            return varying
        whole = np.tile(constant, (len(varying), 1))
        whole[:, self._varies] = varying[:, : len(self._varies)]
        return whole


__getattr__ = renamed(__name__, {"Calibration": "StatusCalibration"})
