"""Inverse-variance denoising: weigh each reward, and each gradient, by how noisy it is.

The anchors' gradient is clean and scarce (variance V_E), the world model's noisy and plentiful (V_WM). Both estimate the same
gradient, so the best linear fusion weights each by its inverse variance, and ``V_E V_WM / (V_E + V_WM)`` is below either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, as_floats, as_ints


class AnchorWeight:
    """The paper's weight on the advantages of anchor groups: ``w = clip(1 + c s^2, 1, most)``.

    s^2 is a running mean over groups of the within-group centred disagreement between the *calibrated* prediction and the
    truth, divided by the variance of the truth. c is fixed once, after ``warmup`` groups, so that w is ``target`` then; before
    that w is 1. Groups whose truths are all equal say nothing about ranking and are left out. In the paper the pairs are pushed
    into f first and the disagreement is measured after (Section "Inverse-Variance Denoising" of arXiv 2608.12564; settings of
    its public release).

    Where anchors are single episodes no group has two graded members: such singletons are pooled, ``pool`` in a row, into
    pseudo-groups. Their variance then contains the differences between groups and contexts, which makes s^2 smaller; c, being
    fixed relative to it, absorbs that.

    Args:
        half_life: groups after which a group counts half.
        warmup: groups before c is fixed.
        target: w at that moment.
        most: the cap on w.
        pool: singletons a pseudo-group.

    Raises:
        ValueError: if an argument is out of its range.

    >>> w = AnchorWeight(warmup=1)
    >>> w.weight
    1.0
    >>> w.update([0.2, 0.6], [0.0, 1.0], [7, 7])
    >>> w.weight
    2.0
    """

    def __init__(
        self, *, half_life: float = 64.0, warmup: int = 32, target: float = 2.0, most: float = 4.0, pool: int = 8
    ) -> None:
        if not half_life > 0 or warmup < 1 or pool < 2:
            raise ValueError(f"need half_life > 0, warmup >= 1 and pool >= 2, got {half_life}, {warmup} and {pool}")
        if not 1.0 <= target <= most:
            raise ValueError(f"target must be in [1, most], got target {target} and most {most}")
        self.half_life, self.warmup, self.target = float(half_life), int(warmup), float(target)
        self.most, self.pool = float(most), int(pool)
        self.disagreement = float("nan")
        self.n_groups = 0
        self._scale: float | None = None
        self._single: list[tuple[float, float]] = []

    @property
    def weight(self) -> float:
        """The present weight of an anchor group, in [1, most]."""
        if self._scale is None:
            return 1.0
        return float(np.clip(1.0 + self._scale * self.disagreement, 1.0, self.most))

    def update(self, calibrated: ArrayLike, real: ArrayLike, group: ArrayLike | None = None) -> None:
        """Measure the graded anchors of one step.

        Args:
            calibrated: f after these pairs were pushed; float64, shape (B,).
            real: float64, shape (B,), NaN where unknown.
            group: int64, shape (B,); None makes each a group of its own.
        """
        f = as_floats("calibrated", calibrated)
        r = as_floats("real", real, size=f.size)
        g = np.arange(f.size) if group is None else as_ints("group", group, size=f.size)
        ok = np.isfinite(f) & np.isfinite(r)
        graded: dict[int, list[tuple[float, float]]] = {}
        for label, *pair in zip(g[ok].tolist(), f[ok].tolist(), r[ok].tolist(), strict=True):
            graded.setdefault(label, []).append((pair[0], pair[1]))
        for members in graded.values():
            if len(members) >= 2:
                self._measure(members)
                continue
            self._single += members
            if len(self._single) == self.pool:
                pooled, self._single = self._single, []
                self._measure(pooled)

    def _measure(self, pairs: list[tuple[float, float]]) -> None:
        f, r = np.array(pairs).T
        spread = float(r.var())
        if spread < 1e-9:
            return
        ratio = float((f - r).var()) / spread
        keep = 0.0 if self.n_groups == 0 else 0.5 ** (1.0 / self.half_life)
        self.disagreement = ratio if self.n_groups == 0 else keep * self.disagreement + (1.0 - keep) * ratio
        self.n_groups += 1
        if self._scale is None and self.n_groups >= self.warmup and self.disagreement > 1e-12:
            self._scale = (self.target - 1.0) / self.disagreement

    def state_dict(self) -> dict[str, Any]:
        """The running estimate, c, and the anchors that are still alone in their group."""
        return {
            "disagreement": self.disagreement,
            "n_groups": self.n_groups,
            "scale": float("nan") if self._scale is None else self._scale,
            "single": np.array(self._single, dtype=np.float64).reshape(-1, 2),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.disagreement, self.n_groups = float(state["disagreement"]), int(state["n_groups"])
        scale = float(state["scale"])
        self._scale = None if np.isnan(scale) else scale
        self._single = [(float(f), float(r)) for f, r in np.asarray(state["single"]).reshape(-1, 2)]


@dataclass(frozen=True, slots=True)
class Fusion:
    """The best linear combination of an anchor gradient and a world model's.

    Args:
        anchor: weight of the anchors' mean gradient.
        model: weight of the model's mean gradient; the two sum to 1.
        variance: of the combination.
    """

    anchor: float
    model: float
    variance: float


def fuse_variances(anchor: float, model: float) -> Fusion:
    """Weights by inverse variance (variances V_E and V_WM of the two mean gradients).

    An infinite variance has the weight 0; a variance of 0 takes all.

    Raises:
        ValueError: if a variance is negative or NaN, or both are infinite or both 0.

    >>> fuse_variances(1.0, 3.0)
    Fusion(anchor=0.75, model=0.25, variance=0.75)
    """
    if not (anchor >= 0.0 and model >= 0.0) or (np.isinf(anchor) and np.isinf(model)) or anchor == model == 0.0:
        raise ValueError(f"variances must be >= 0 and not both infinite or both 0, got {anchor} and {model}")
    if np.isinf(model):
        return Fusion(1.0, 0.0, float(anchor))
    if np.isinf(anchor):
        return Fusion(0.0, 1.0, float(model))
    # By the ratio of the smaller to the larger: no sum or product of variances that could leave the range of floats.
    ratio = min(anchor, model) / max(anchor, model)
    major, variance = 1.0 / (1.0 + ratio), min(anchor, model) / (1.0 + ratio)
    share = major if anchor <= model else 1.0 - major
    return Fusion(share, 1.0 - share, variance)


def shrink(reward: ArrayLike, std: ArrayLike, group: ArrayLike | None = None) -> Floats:
    """Shrink each predicted reward towards its group's mean by how noisy the model says it is.

    Empirical Bayes in each group: ``m + t / (t + std_i^2) (x_i - m)``, m the mean weighted by precision and t the variance
    between members by the method of moments (observed minus noise, at least 0).

    Args:
        reward: float64, shape (B,).
        std: the model's standard deviation of each, float64, shape (B,); NaN, it does not know, leaves that reward as it is.
        group: int64, shape (B,); None is one group. A member alone stays as it is.

    Returns:
        float64, shape (B,).

    Raises:
        ValueError: if a standard deviation is negative.

    >>> shrink([0.0, 1.0], [0.1, 0.7])
    array([0.01, 0.51])
    """
    x = as_floats("reward", reward)
    s = as_floats("std", std, size=x.size)
    g = as_ints("group", group, size=x.size)
    if (s < 0).any():
        raise ValueError(f"std must not be negative, got {s[s < 0]}")
    out = x.copy()
    known = np.isfinite(s) & np.isfinite(x)
    for label in np.unique(g[known]):
        members = np.flatnonzero(known & (g == label))
        if members.size < 2:
            continue
        value, noise = x[members], s[members] ** 2
        between = max(float(value.var(ddof=1) - noise.mean()), 0.0)
        if between == 0.0 and not noise.all():
            continue
        precision = 1.0 / (between + noise)
        centre = float((precision * value).sum() / precision.sum())
        out[members] = centre + between * precision * (value - centre)
    return out


def fuse_samples(samples: ArrayLike, std: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """Fuse K predictions of each reward (replies, or members of an ensemble) by inverse variance.

    Args:
        samples: float64, shape (K, B); NaN where a reply could not be read.
        std: float64, shape (K, B); None weights all alike and measures the error from their spread.

    Returns:
        The fused reward and its standard deviation, float64, shape (B,) each; NaN where no sample is known, and a NaN deviation
        where one sample alone has none.

    >>> fuse_samples([[0.0], [1.0]], [[1.0], [1.0]])
    (array([0.5]), array([0.70710678]))
    """
    x = np.atleast_2d(np.asarray(samples, dtype=np.float64))
    known = np.isfinite(x)
    if std is None:
        weight = known.astype(np.float64)
    else:
        s = np.broadcast_to(np.asarray(std, dtype=np.float64), x.shape)
        if not (s[known] > 0).all():
            raise ValueError("std must be positive where a sample is known")
        weight = np.where(known, 1.0 / np.where(known, s, 1.0) ** 2, 0.0)
    total = weight.sum(axis=0)
    count = known.sum(axis=0)
    safe = np.where(total > 0, total, np.nan)
    mean: Floats = np.where(known, weight * np.where(known, x, 0.0), 0.0).sum(axis=0) / safe
    if std is not None:
        return mean, 1.0 / np.sqrt(safe)
    square = np.where(known, (np.where(known, x, 0.0) - mean) ** 2, 0.0).sum(axis=0)
    return mean, np.sqrt(square / np.where(count > 1, count * (count - 1), np.nan))
