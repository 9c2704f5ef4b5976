"""Shrinkage of predicted rewards by how noisy each of them is said to be, with running means as the prior."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints

_MOMENTS = 5  # weight, and the running means of prediction, its square, its noise's square, and what it was calibrated to


class RewardShrinkage:
    """Moves each predicted reward towards its group's mean: the noisier the prediction, the further.

    A prediction x of noise s, among rewards of variance t, is best read as ``m + t / (t + s^2) (x - m)`` (normal-normal Bayes,
    the prior being the group). A calibrated f(x) has been flattened already, by the factor that fits the *mean* noise; so after
    calibration the factor is taken relative to that one, and only predictions noisier than that are moved.

    t, and the mean where a group has one member only, are running moments of each context (its task): with one environment, too,
    there is a prior.

    Args:
        half_life: predictions of a context after which one counts half.
        least: predictions of a context before anything is shrunk.
        max_contexts: contexts beyond so many stay as they are.

    Raises:
        ValueError: if an argument is out of its range.

    >>> shrinkage = RewardShrinkage(least=2)
    >>> noisy, sharp = shrinkage.apply([0.0, 1.0], [0.4, 0.1], group=[0, 0]).tolist()
    >>> round(noisy, 2), round(sharp, 2)
    (0.46, 1.0)
    """

    def __init__(self, *, half_life: float = 500.0, least: int = 8, max_contexts: int = 4096) -> None:
        if not half_life > 0 or least < 2 or max_contexts < 1:
            raise ValueError(f"need half_life > 0, least >= 2 and max_contexts >= 1, got {half_life}, {least} and {max_contexts}")
        self.half_life, self.least, self.max_contexts = float(half_life), int(least), int(max_contexts)
        self._moments: dict[int, Floats] = {}
        self.factor = 1.0
        """Mean factor of the last rewards."""

    def apply(
        self,
        predicted: ArrayLike,
        std: ArrayLike,
        *,
        calibrated: ArrayLike | None = None,
        group: ArrayLike | None = None,
        context: ArrayLike | None = None,
    ) -> Floats:
        """The shrunk rewards of B steps.

        Args:
            predicted: raw predicted rewards x, float64, shape (B,).
            std: standard deviation of each one's error, float64, shape (B,); NaN leaves that reward as it is.
            calibrated: f(x), float64, shape (B,); None where there is no calibration: x itself is then shrunk.
            group: int64, shape (B,); rewards of one group have its mean as their prior. None is each alone.
            context: int64, shape (B,), e.g. the task.

        Returns:
            float64, shape (B,).

        Raises:
            ValueError: if a standard deviation is negative.
        """
        x = as_floats("predicted", predicted)
        s = as_floats("std", std, size=x.size)
        if (s < 0).any():
            raise ValueError(f"std must not be negative, got {s[s < 0]}")
        c = as_ints("context", context, size=x.size)
        g = np.arange(x.size) if group is None else as_ints("group", group, size=x.size)
        paid = x if calibrated is None else as_floats("calibrated", calibrated, size=x.size)
        rows = np.flatnonzero(np.isfinite(x) & np.isfinite(s) & np.isfinite(paid))
        out = paid.copy()
        if rows.size:
            labels, index = np.unique(c[rows], return_inverse=True)
            out[rows] = self._shrunk(x[rows], s[rows], paid[rows], g[rows], labels, index, relative=calibrated is not None)
        return out

    def _shrunk(self, x: Floats, s: Floats, paid: Floats, group: Ints, labels: Ints, index: Ints, *, relative: bool) -> Floats:
        """The rewards of n finite predictions, of which ``labels[index]`` are the contexts: float64, shape (n,)."""
        count = np.bincount(index)
        sums = np.stack([np.bincount(index, each) for each in (x, x**2, s**2, paid)], axis=1)
        moments = np.stack([self._learn(*each) for each in zip(labels.tolist(), count.tolist(), sums, strict=True)])
        taught = moments[:, 0] >= self.least
        factor = np.where(taught[index], _factors(moments, s, index, relative=relative), 1.0)
        mean = _means(paid, s, index, _joined(index, group), alone=moments[:, 4])
        if taught.any():
            self.factor = float((np.bincount(index, factor) / count)[taught].mean())
        return np.where(taught[index], mean + factor * (paid - mean), paid)

    def _learn(self, context: int, new: int, sums: Floats) -> Floats:
        """Fold predictions into the moments of their context, and return those; zeros for a context too many."""
        before = self._moments.get(context)
        if before is None:
            if len(self._moments) >= self.max_contexts:
                return np.zeros(_MOMENTS)
            before = np.zeros(_MOMENTS)
        keep = float(before[0]) * 0.5 ** (new / self.half_life)
        after = np.concatenate([[keep + new], (keep * before[1:] + sums) / (keep + new)])
        self._moments[context] = after
        return after

    def state_dict(self) -> dict[str, Any]:
        """The running moments."""
        rows = np.array(list(self._moments.values()), dtype=np.float64).reshape(-1, _MOMENTS)
        return {"contexts": np.array(list(self._moments), dtype=np.int64), "moments": rows, "factor": self.factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._moments = {int(c): np.array(row) for c, row in zip(state["contexts"], state["moments"], strict=True)}
        self.factor = float(state["factor"])


def _factors(moments: Floats, s: Floats, index: Ints, *, relative: bool) -> Floats:
    """``t / (t + s^2)`` of each of n, over that of its context's mean noise where ``relative``.

    Args:
        moments: float64, shape (contexts, 5).
        s: float64, shape (n,).
        index: int64, shape (n,). The row of each one's context.
        relative: see above.
    """
    _, mean, square, noise, _ = moments.T
    variance = np.maximum(square - mean**2, 0.0)
    between = np.maximum(variance - noise, 0.0)
    # Nothing but noise: a flat f says so by itself, and a raw reward is worth its mean.
    nothing = between <= 1e-12 * np.maximum(variance, 1e-12)
    flat = np.where((variance == 0.0) | relative, 1.0, 0.0)
    between = np.where(nothing, 1.0, between)
    factor: Floats = between[index] / (between[index] + s**2)
    if relative:
        factor = np.minimum(factor * ((between + noise) / between)[index], 1.0)
    return np.where(nothing[index], flat[index], factor)


def _joined(context: Ints, group: Ints) -> Ints:
    """Numbers of groups that are their context's own: int64, shape (n,)."""
    labels, index = np.unique(group, return_inverse=True)
    return context * labels.size + index


def _means(paid: Floats, s: Floats, context: Ints, group: Ints, *, alone: Floats) -> Floats:
    """The mean of each one's group, by precision; ``alone``, shape (contexts,), where it is the only member."""
    _, index, count = np.unique(group, return_inverse=True, return_counts=True)
    # A floor under the noise: one member without any would be all that counts.
    floor = 1e-3 * np.bincount(context, s**2) / np.bincount(context) + 1e-12
    precision = 1.0 / np.maximum(s**2, floor[context])
    mean = np.bincount(index, precision * paid) / np.bincount(index, precision)
    return np.where(count[index] > 1, mean[index], alone[context])
