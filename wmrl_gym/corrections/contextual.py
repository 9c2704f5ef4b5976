"""Contextual calibration: what anchors reveal beyond a monotone f, as a function of what was done.

A learned model's bias is mostly no function of its prediction: it overrates one kind of attempt and underrates another that it
predicts alike. So what f leaves, r - f(x), is regressed on features of what was done.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints
from wmrl_gym.corrections.gaussian_process import GaussianProcess, Kernel
from wmrl_gym.corrections.online_calibration import OnlineCalibration
from wmrl_gym.corrections.recall import Recall

_COLUMNS = ("predicted", "real", "context", "features", "key")
_LEAST = 6
"""Pairs before anything is regressed on features."""
_NOISE = 0.005
"""First guess of the variance of a pair's noise, for a reward of range 1: a standard deviation of .07."""


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
    """A calibration that knows what was done: ``(1 - share) f(x) + share (b(x) + delta(features))``, clipped to the range.

    f is :class:`SmoothMonotone`; delta is a Gaussian process on the residuals that b leaves (:class:`GaussianProcess`: zero mean,
    so no correction where nothing is known). b is f, or the prediction x itself: a bias that features explain is noise to f,
    against which it flattens itself. Which, and ``share``, in [0, 1], follow from how well each pair is predicted by all others:
    where the features explain nothing, or pairs are too few to tell, the share is 0, and the map f alone. What was done before is
    remembered: at the very features of an anchor the mean of what is still missed there is added, the more the less truths of the
    same features differ (:class:`Recall`). Without a pair it is the identity, bit for bit, clipped to the range.

    Pairs and predictions whose features are not known (NaN) are f's alone.

    Args:
        reward_range: lowest and highest reward; None is the running range of the pairs.
        window: how many of the newest pairs f keeps.
        inducing: at how many places, pairs with the same features, delta is fitted: those of the newest pairs, and at most four
            pairs a place on average. Time and memory are bounded by it.
        recall: remember what was done before; False regresses only.

    Raises:
        ValueError: if an argument is out of range.

    >>> calibration = ContextualCalibration()
    >>> kind = np.arange(64) % 2
    >>> calibration.push(np.full(64, 0.5), 0.4 + 0.2 * kind, features=kind[:, None])
    >>> calibration.predict([0.5, 0.5], features=[[0], [1]]).round(2)
    array([0.4, 0.6])
    """

    def __init__(
        self,
        *,
        reward_range: tuple[float, float] | None = (0.0, 1.0),
        window: int = 5000,
        inducing: int = 256,
        recall: bool = True,
    ) -> None:
        super().__init__("smooth", reward_range=reward_range, window=window)
        if inducing < _LEAST:
            raise ValueError(f"inducing must be at least {_LEAST}, got {inducing}")
        self.inducing, self.recall = int(inducing), bool(recall)
        self.share = 0.0
        """How much of delta is applied."""
        self._kept: tuple[Floats, Floats, Ints, Floats, Ints] | None = None
        self._process: GaussianProcess | None = None
        self._recall: Recall | None = None
        self._on_f = True
        self._chosen_at = 0
        self._gained: Floats = np.zeros(0)

    @property
    def evidence(self) -> float:
        """How sure it is, in [0, 1], that predictions err by more than noise: of f or of delta, the surer."""
        return max(self.share, trusted(self._gained))

    def push(
        self,
        predicted: ArrayLike,
        real: ArrayLike,
        *,
        context: ArrayLike | None = None,
        features: Any = None,
        key: ArrayLike | None = None,
    ) -> None:
        """Learn from anchor pairs; see :meth:`OnlineCalibration.push`.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            real: real rewards, float64, shape (B,), NaN where unknown.
            context: int64, shape (B,).
            features: what was done, float64, shape (B, F), rows of NaN where that is not known; None knows nothing.
            key: int64, shape (B,): by which :meth:`repredict` finds a pair again; negative where it never will.

        Raises:
            ValueError: a reward outside the declared range, or features of another width than before.
        """
        x = as_floats("predicted", predicted)
        r, c = as_floats("real", real, size=x.size), as_ints("context", context, size=x.size)
        z = self._checked(features, x.size)
        k = np.full(x.size, -1, np.int64) if key is None else as_ints("key", key, size=x.size)
        ok = np.isfinite(x) & np.isfinite(r)
        if self.n_pairs and ok.any():
            before = super().predict(x[ok], context=c[ok])
            self._gained = np.concatenate([self._gained, (r[ok] - x[ok]) ** 2 - (r[ok] - before) ** 2])[-512:]
        super().push(x, r, context=c)
        if z is not None:
            known = ok & np.isfinite(z).all(axis=1)
            self._keep((x[known], r[known], c[known], z[known], k[known]))
            if known.any():
                self._fit()

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

    def _keep(self, new: tuple[Floats, Floats, Ints, Floats, Ints]) -> None:
        if self._kept is not None:
            new = tuple(np.concatenate(parts) for parts in zip(self._kept, new, strict=True))  # type: ignore[assignment]
        first = max(0, len(new[0]) - 4 * self.inducing)
        if len(new[0]) - first > self.inducing:
            seen: set[bytes] = set()
            for row in range(len(new[0]) - 1, first - 1, -1):
                seen.add(new[3][row].tobytes())
                if len(seen) > self.inducing:
                    first = row + 1
                    break
        self._kept = tuple(part[first:] for part in new)  # type: ignore[assignment]

    def _fit(self, chosen: tuple[bool, Kernel] | None = None) -> None:
        """Fit delta to the kept pairs, judge it by what it says of each pair unseen, and remember what is missed after all.

        Args:
            chosen: whether delta is added to f, or to the prediction itself, and the kernel; None chooses, once pairs are by an
                eighth more than when that was done last.
        """
        if self._kept is None or self._calibrator is None:
            return
        x, r, c, z, _ = self._kept
        f = super().predict(x, context=c)
        if len(x) >= _LEAST:
            self._regress(f, chosen)
        missed = r - self._smoothed(f, x, delta=None if self._process is None else self._process.fitted())
        self._recall = Recall.of(z, missed, noise=_NOISE * self._width() ** 2) if self.recall else Recall.nothing(z.shape[1])

    def _regress(self, f: Floats, chosen: tuple[bool, Kernel] | None) -> None:
        """Fit delta on the kept pairs; f is what f makes of them, float64, shape (n,)."""
        if chosen is None and self._process is not None and self.n_pairs < self._chosen_at + self._chosen_at // 8:
            chosen = self._on_f, self._process.kernel
        if chosen is not None:
            tried = [self._tried(f, *chosen)]
        else:
            self._chosen_at = self.n_pairs
            tried = [self._tried(f, True, None), self._tried(f, False, None)]
        self._on_f, self._process, self.share, _ = min(tried, key=lambda each: each[3])

    def _smoothed(self, f: Floats, x: Floats, *, delta: Floats | None) -> Floats:
        """``(1 - share) f + share (b + delta)``, float64, shape (n,); f itself where there is no delta."""
        return f if delta is None or self.share == 0.0 else f + self.share * ((f if self._on_f else x) + delta - f)

    def _tried(self, f: Floats, on_f: bool, kernel: Kernel | None) -> tuple[bool, GaussianProcess, float, float]:
        """Delta on f or on the prediction: the process, its share, and the mean square of what is left of pairs held out."""
        assert self._kept is not None
        x, r, _, z, _ = self._kept
        base = f if on_f else x
        process = GaussianProcess(z, r - base, noise=_NOISE * self._width() ** 2, kernel=kernel)
        said = process.held_out()
        total = float(said @ said)
        best = min(max(float(said @ (r - base)) / total, 0.0), 1.0) if total > 0.0 else 0.0
        left = (r - base - best * said) ** 2
        # Whatever delta is added to: what it has to be better than is f.
        share = best * trusted((r - f) ** 2 - left) if best > 0.0 else 0.0
        return on_f, process, share, float(left.mean())

    @property
    def keys(self) -> Ints:
        """The keys of the pairs that delta is fitted to and that have one: int64, shape (n,)."""
        return np.zeros(0, np.int64) if self._kept is None else self._kept[4][self._kept[4] >= 0]

    def repredict(self, key: ArrayLike, predicted: ArrayLike, features: Any) -> None:
        """The model has learnt, and would predict pairs otherwise today: f and delta are fitted anew.

        f then knows of the newest pairs, which delta keeps, and no longer of older ones.

        Args:
            key: int64, shape (B,): as pairs were pushed with; others that are not kept are passed over.
            predicted: float64, shape (B,): today's predictions, held out.
            features: float64, shape (B, F).
        """
        k = np.atleast_1d(np.asarray(key, np.int64))
        x, z = as_floats("predicted", predicted, size=k.size), self._checked(features, k.size)
        if self._kept is None or z is None or self._make is None or self._calibrator is None:
            return
        at = {int(each): row for row, each in enumerate(self._kept[4]) if each >= 0}
        usable = np.isfinite(x) & np.isfinite(z).all(axis=1)
        rows = np.array([at.get(int(each), -1) if good else -1 for each, good in zip(k, usable, strict=True)], np.int64)
        if not (rows >= 0).any():
            return
        now, r, c, done, own = self._kept
        now, done = now.copy(), done.copy()
        now[rows[rows >= 0]], done[rows[rows >= 0]] = x[rows >= 0], z[rows >= 0]
        self._kept = now, r, c, done, own
        self._calibrator = self._make(self._calibrator.reward_range)
        self._calibrator.push(now, r, c)
        self._fit()

    def refit(self) -> None:
        """Fit f and delta now."""
        super().refit()
        self._fit()

    def predict(self, predicted: ArrayLike, *, context: ArrayLike | None = None, features: Any = None) -> Floats:
        """The expected real reward of each prediction; see :meth:`OnlineCalibration.predict`.

        Args:
            predicted: raw predicted rewards, float64, shape (B,).
            context: int64, shape (B,).
            features: float64, shape (B, F), rows of NaN where not known; None knows nothing, so that f alone is used.
        """
        x = as_floats("predicted", predicted)
        base = super().predict(x, context=context)
        z = self._checked(features, base.size)
        if z is None or self._recall is None or self._calibrator is None:
            return base
        finite = np.isfinite(z).all(axis=1) & np.isfinite(x)
        known: Any = slice(None) if finite.all() else finite  # the usual case makes no copies
        out = base.copy()
        delta = None if self._process is None or self.share == 0.0 else self._process.predict(z[known])
        out[known] = self._smoothed(base[known], x[known], delta=delta) + self._recall.effect(z[known])[0]
        low, high = self._calibrator.reward_range
        return np.minimum(np.maximum(out, low, out=out), high, out=out)

    def standard_error(self, predicted: ArrayLike, *, features: Any = None) -> Floats:
        """Standard error of the rewards: that of f and that of the process, mixed by ``share``; float64, shape (B,)."""
        error = super().standard_error(predicted)
        z = self._checked(features, error.size)
        if z is None or self._recall is None:
            return error
        known = np.isfinite(z).all(axis=1)
        variance = error[known] ** 2
        if self._process is not None and self.share > 0.0:
            variance = (1.0 - self.share) * variance + self.share * self._process.variance(z[known])
        _, weight, own = self._recall.effect(z[known])
        error = error.copy()
        error[known] = np.sqrt((1.0 - weight) * variance + weight * own)
        return error

    def state_dict(self) -> dict[str, Any]:
        """Pairs with their features, the kernel, and f's own state."""
        process = self._process
        kept = None if self._kept is None else dict(zip(_COLUMNS, self._kept, strict=True))
        kernel = None if process is None else np.array([float(self._on_f), *astuple(process.kernel)])
        own = {"kept": kept, "kernel": kernel, "chosen_at": self._chosen_at, "gained": self._gained.copy()}
        return super().state_dict() | {"contextual": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of an equally constructed one."""
        super().load_state_dict(state)
        own = state["contextual"]
        self._chosen_at, self._gained = int(own["chosen_at"]), np.array(own["gained"], np.float64)
        self._process, self.share, self._kept, self._recall = None, 0.0, None, None
        if own["kept"] is not None:
            kept = own["kept"]
            self._kept = (
                np.array(kept["predicted"], np.float64),
                np.array(kept["real"], np.float64),
                np.array(kept["context"], np.int64),
                np.array(kept["features"], np.float64),
                np.array(kept["key"], np.int64),
            )
        chosen = None
        if own["kernel"] is not None:
            on_f, *kernel = (float(value) for value in own["kernel"])
            chosen = bool(on_f), Kernel(*kernel)
        self._fit(chosen)
