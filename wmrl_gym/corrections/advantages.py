"""Group advantages for trainers that form their own: numpy in, numpy out, one rollout an element.

Rollouts without a valid reward are excluded from their group's baseline, and a group with fewer than 2 valid members is
skipped: its advantages are 0 and its mask False. Unknown is never a reward of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints
from wmrl_gym.corrections.residual import graded_anchors, residual_reward


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch of rollouts.

    Args:
        value: float64, shape (B,); 0 where ``mask`` is False.
        mask: bool, shape (B,); False must not enter the loss.
        skipped: groups left out because fewer than 2 of their members are valid.
        degenerate: groups used whose rewards are all equal: they teach nothing.
    """

    value: Floats
    mask: NDArray[np.bool_]
    skipped: int
    degenerate: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Rollouts by group: each one's group index, which are used, and how many used ones each group has."""

    index: Ints
    used: NDArray[np.bool_]
    count: Floats
    skipped: int

    def mean(self, values: Floats) -> Floats:
        """Mean of the used values of each group, spread to its rollouts; shape (B,)."""
        total = np.bincount(self.index, np.where(self.used, values, 0.0), self.count.size)
        out: Floats = (total / np.maximum(self.count, 1.0))[self.index]
        return out

    def degenerate(self, centred: Floats) -> int:
        """Used groups without a spread."""
        largest = np.zeros(self.count.size)
        np.maximum.at(largest, self.index[self.used], np.abs(centred[self.used]))
        return int(((self.count > 0) & (largest <= 1e-12)).sum())

    def finish(self, value: Floats, centred: Floats, weight: ArrayLike | None) -> Advantages:
        """``value`` times ``weight``, 0 where unused; degenerate are the groups in which ``centred`` does not vary."""
        w = 1.0 if weight is None else np.broadcast_to(np.asarray(weight, dtype=np.float64), value.shape)
        return Advantages(np.where(self.used, value * w, 0.0), self.used, self.skipped, self.degenerate(centred))


def group_rollouts(reward: Floats, group: ArrayLike, valid: ArrayLike | None) -> Groups:
    """Sort rollouts into groups; those invalid, not finite, or alone in their group are not used."""
    labels = as_ints("group", group, size=reward.size)
    ok = np.ones(reward.size, dtype=np.bool_) if valid is None else np.asarray(valid, dtype=np.bool_)
    if ok.shape != reward.shape:
        raise ValueError(f"valid must have shape {reward.shape}, got {ok.shape}")
    ok = ok & np.isfinite(reward)
    names, index = np.unique(labels, return_inverse=True)
    count = np.bincount(index, ok.astype(np.float64), names.size)
    used = ok & (count >= 2)[index]
    return Groups(index.astype(np.int64), used, np.where(count >= 2, count, 0.0), int((count < 2).sum()))


def grpo(
    reward: ArrayLike,
    group: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    eps: float = 1e-4,
) -> Advantages:
    """``weight (r - mean) / (std + eps)`` inside each group (population standard deviation), as GRPO and the paper have it.

    Args:
        reward: float64, shape (B,); not finite counts as invalid.
        group: int64, shape (B,).
        valid: bool, shape (B,); None is all.
        weight: float64, shape (B,) or a scalar, multiplied on at the end (anchor groups' weights).
        eps: keeps nearly equal groups from exploding.

    >>> grpo([0.0, 1.0, 0.5], [0, 0, 1]).value.round(3)
    array([-1.,  1.,  0.])
    """
    r = as_floats("reward", reward)
    groups = group_rollouts(r, group, valid)
    centred = r - groups.mean(r)
    return groups.finish(centred / (np.sqrt(groups.mean(centred**2)) + eps), centred, weight)


def dr_grpo(
    reward: ArrayLike, group: ArrayLike, *, valid: ArrayLike | None = None, weight: ArrayLike | None = None
) -> Advantages:
    """``weight (r - mean)``: Dr. GRPO, no division by the standard deviation. Arguments as in :func:`grpo`.

    >>> dr_grpo([0.0, 1.0], [0, 0]).value
    array([-0.5,  0.5])
    """
    r = as_floats("reward", reward)
    groups = group_rollouts(r, group, valid)
    centred = r - groups.mean(r)
    return groups.finish(centred, centred, weight)


def rloo(reward: ArrayLike, group: ArrayLike, *, valid: ArrayLike | None = None, weight: ArrayLike | None = None) -> Advantages:
    """``weight (r - mean of the others)``: REINFORCE leave-one-out, unbiased. Arguments as in :func:`grpo`.

    >>> rloo([0.0, 1.0, 2.0], [0, 0, 0]).value
    array([-1.5,  0. ,  1.5])
    """
    r = as_floats("reward", reward)
    groups = group_rollouts(r, group, valid)
    centred = r - groups.mean(r)
    n = groups.count[groups.index]
    return groups.finish(centred * n / np.maximum(n - 1.0, 1.0), centred, weight)


def clip_rms(value: Floats, used: NDArray[np.bool_], bound: float | None) -> Floats:
    """``value`` clipped at ``bound`` root mean squares over the used rollouts; None does not clip."""
    if bound is None or not used.any():
        return value
    limit = bound * float(np.sqrt((value[used] ** 2).mean()))
    return np.clip(value, -limit, limit) if limit > 0 else value


def residual_advantages(
    calibrated: ArrayLike,
    real: ArrayLike,
    group: ArrayLike,
    *,
    anchor: ArrayLike,
    propensity: ArrayLike,
    residual_var: float,
    kappa: float = 0.5,
    valid: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    clip: float | None = 5.0,
) -> Advantages:
    """The recommended advantage: centred predictions plus anchors' residuals, on one posterior scale a group.

    ``A_i = (f_i - mean f + kappa m_i / p_i (r_i - f_i)) / sqrt(var f + s^2)``. The residual is added after centring: one anchor
    then tells about its own rollout, and not about the baseline of its neighbours. ``s^2`` keeps a group whose predictions are
    nearly equal from being blown up to unit advantages.

    Args:
        calibrated: f, from before these pairs were pushed; float64, shape (B,).
        real: float64, shape (B,), NaN where unknown or not executed.
        group: int64, shape (B,).
        anchor: bool, shape (B,).
        propensity: float64, shape (B,) or a scalar.
        residual_var: s^2, see :class:`ResidualVariance`.
        kappa: share of the residual that is passed on.
        valid: bool, shape (B,); None is all.
        weight: float64, shape (B,) or a scalar.
        clip: advantages are clipped at so many of their root mean square over the batch; None does not clip.

    Raises:
        ValueError: if ``residual_var`` is not positive, or an argument of :func:`residual_reward` is out of its range.

    >>> residual_advantages([0.4, 0.6], [np.nan, 1.0], [0, 0], anchor=[False, True], propensity=0.5, residual_var=0.03).value
    array([-0.5,  2.5])
    """
    if not residual_var > 0:
        raise ValueError(f"residual_var must be positive, got {residual_var}")
    f = as_floats("calibrated", calibrated)
    groups = group_rollouts(f, group, valid)
    centred = f - groups.mean(f)
    extra = _residual(f, as_floats("real", real, size=f.size), anchor, propensity, kappa)
    value = (centred + extra) / np.sqrt(groups.mean(centred**2) + residual_var)
    return groups.finish(clip_rms(value, groups.used, clip), centred + extra, weight)


def anchored_rloo(
    calibrated: ArrayLike,
    real: ArrayLike,
    group: ArrayLike,
    *,
    anchor: ArrayLike,
    propensity: ArrayLike,
    kappa: float = 1.0,
    valid: ArrayLike | None = None,
    weight: ArrayLike | None = None,
) -> Advantages:
    """Leave-one-out with anchors: ``f_i + kappa m_i / p_i (r_i - f_i) - mean of the others' f``.

    The baseline of a rollout does not contain that rollout, so that at kappa = 1 the policy gradient is unbiased for any f.
    Arguments as in :func:`residual_advantages`.

    >>> anchored_rloo([0.4, 0.6], [np.nan, 1.0], [0, 0], anchor=[False, True], propensity=0.5).value
    array([-0.2,  1. ])
    """
    f = as_floats("calibrated", calibrated)
    groups = group_rollouts(f, group, valid)
    centred = f - groups.mean(f)
    n = groups.count[groups.index]
    extra = _residual(f, as_floats("real", real, size=f.size), anchor, propensity, kappa)
    return groups.finish(centred * n / np.maximum(n - 1.0, 1.0) + extra, centred + extra, weight)


def _residual(f: Floats, real: Floats, anchor: ArrayLike, propensity: ArrayLike, kappa: float) -> Floats:
    """kappa m / p (r - f), 0 off the graded anchors; float64, shape (B,)."""
    corrected = residual_reward(f, real, anchor=anchor, propensity=propensity, kappa=kappa)
    return np.where(graded_anchors(real, anchor), corrected - f, 0.0)
