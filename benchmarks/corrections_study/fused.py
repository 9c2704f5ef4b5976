"""The adaptive forms: the package's own classes, one a seed."""

from __future__ import annotations

import numpy as np

from benchmarks.corrections_study.calibrators import Smooth
from benchmarks.corrections_study.methods import Batch, Mask, Method, Residual, pairs
from benchmarks.corrections_study.world import CONTEXTS, Array
from wmrl_gym.corrections import ActionSigns, AdaptiveKappa, FusedAdvantages


class Fused(Method):
    """:class:`wmrl_gym.corrections.FusedAdvantages` on a smooth calibration that forgets, and a linear one that does not.

    Args:
        half_life: of the smooth calibration, in pairs; None never forgets.
        linear: whether the second prediction is given.
        options: of :class:`wmrl_gym.corrections.FusedAdvantages`.
    """

    def __init__(self, seeds: int, *, half_life: float | None = 500.0, linear: bool = True, **options: float) -> None:
        super().__init__(seeds)
        self._maps = [Smooth(seeds, half_life=half_life)] + [Smooth(seeds, ramps=1)] * linear
        self._fused = [FusedAdvantages(**options) for _ in range(seeds)]

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        m = batch.by_episode
        f, *more = (calibrator.predict(batch.x) for calibrator in self._maps)
        group = np.repeat(np.arange(m.shape[1]), m.shape[2])
        out = np.zeros_like(f)
        probes = np.zeros((2 + len(more), *f.shape), dtype=np.float32)
        for s, fused in enumerate(self._fused):
            real = np.where(m[s], batch.r[s], np.nan)
            value = fused.advantages(
                f[s].ravel(), real.ravel(), group, anchor=m[s].ravel(), more=[g[s].ravel() for g in more]
            ).value
            out[s] = value.reshape(f[s].shape)
            probes[:, s] = fused.probes().reshape(-1, *f[s].shape) * group.size
        self.probes = tuple(probes)
        for calibrator in self._maps:
            calibrator.push(*pairs(batch, m))
        return out

    def observe(self, gradients: Array) -> None:
        """See :class:`Method`."""
        for fused, gradient in zip(self._fused, gradients.astype(np.float64), strict=True):
            fused.update_gradients(gradient.T)


class AdaptiveReward(Residual):
    """The residual reward with :class:`wmrl_gym.corrections.AdaptiveKappa`: what a wrapper can do, which knows no policy."""

    def __init__(self, seeds: int, *, dimension: int = 256) -> None:
        super().__init__(seeds, scale="centre")
        self._adaptive = [AdaptiveKappa() for _ in range(seeds)]
        self._signs = ActionSigns(dimension)

    def kappa(self) -> Array | float:
        """See :class:`Residual`."""
        return np.array([k.kappa for k in self._adaptive], dtype=np.float32)[:, None, None]

    def learn(self, batch: Batch, mask: Mask, residual: Array, centred: Array) -> None:
        """See :class:`Residual`."""
        context = np.broadcast_to(np.arange(CONTEXTS)[:, None], mask.shape[1:])
        for s, adaptive in enumerate(self._adaptive):
            m = mask[s]
            adaptive.update(residual[s][m], self._signs(batch.arms[s][m], context[m]))
