"""The contextual forms: the package's own classes, one a seed. What was done is the context and the arm, as zeros and ones."""

from __future__ import annotations

import numpy as np

from benchmarks.corrections_study.calibrators import Smooth
from benchmarks.corrections_study.fused import Fused
from benchmarks.corrections_study.methods import FRACTION, Batch, Residual, pairs
from benchmarks.corrections_study.world import ARMS, CONTEXTS, Array
from wmrl_gym.corrections import ContextualCalibration

_WHICH = np.eye(CONTEXTS + ARMS)


class Contextual:
    """:class:`wmrl_gym.corrections.ContextualCalibration` over S seeds.

    Pairs are learnt from once they are a 32nd of those known, as the wrappers do it.
    """

    def __init__(self, seeds: int) -> None:
        self.maps = [ContextualCalibration() for _ in range(seeds)]
        self._waiting: list[tuple[np.ndarray, ...]] = []

    def predict(self, batch: Batch) -> Array:
        """Calibrated predictions (S, C, G)."""
        context = np.repeat(np.arange(CONTEXTS), batch.x.shape[2])
        out = np.empty(batch.x.shape, np.float32)
        for s, calibration in enumerate(self.maps):
            done = _WHICH[context] + _WHICH[CONTEXTS + batch.arms[s].ravel()]
            value = calibration.predict(batch.x[s].ravel().astype(np.float64), context=context, features=done)
            out[s] = value.reshape(out[s].shape)
        return out

    def push(self, batch: Batch, mask: np.ndarray) -> None:
        """Learn from the anchors in ``mask``."""
        arms = batch.arms[mask].reshape(len(mask), -1)
        self._waiting.append((*pairs(batch, mask), arms))
        x, r, context, arms = (np.concatenate(parts, axis=1) for parts in zip(*self._waiting, strict=True))
        if x.shape[1] < min(self.maps[0].n_pairs // 32, 128):
            return
        self._waiting = []
        for s, calibration in enumerate(self.maps):
            done = _WHICH[context[s]] + _WHICH[CONTEXTS + arms[s]]
            calibration.push(x[s].astype(np.float64), r[s].astype(np.float64), context=context[s], features=done)


class ContextualResidual(Residual):
    """The contextual calibration in the residual form, whose kappa falls to that of the plain mixture where it has no evidence.

    Args:
        kappa: where it is sure. :data:`FRACTION` is the mixture itself: an anchor counts as its truth, like any other reward.
    """

    def __init__(self, seeds: int, *, kappa: float = 0.5) -> None:
        super().__init__(seeds, kappa=kappa)
        self._contextual = Contextual(seeds)

    def kappa(self) -> Array | float:
        """See :class:`Residual`."""
        evidence = np.array([each.evidence for each in self._contextual.maps], np.float32)[:, None, None]
        out: Array = FRACTION + evidence * (self._kappa - FRACTION)
        return out

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        self._f = _Now(self._contextual, batch, batch.by_episode)  # type: ignore[assignment]
        return super().advantage(batch)


class _Now:
    """A contextual calibration at one step's batch, in the shape of a calibrator."""

    def __init__(self, contextual: Contextual, batch: Batch, mask: np.ndarray) -> None:
        self._contextual, self._batch, self._mask = contextual, batch, mask

    def predict(self, x: Array) -> Array:
        """Calibrated predictions of the batch."""
        return self._contextual.predict(self._batch)

    def push(self, x: Array, r: Array, context: np.ndarray) -> None:
        """Learn from the batch's anchors."""
        self._contextual.push(self._batch, self._mask)


class ContextualAdaptive(Fused):
    """:class:`Fused` with the contextual calibration in the place of the smooth one that forgets."""

    def __init__(self, seeds: int) -> None:
        super().__init__(seeds)
        self._contextual = Contextual(seeds)
        self._linear = Smooth(seeds, ramps=1)

    def advantage(self, batch: Batch) -> Array:
        """See :class:`Method`."""
        self._maps = [_Now(self._contextual, batch, batch.by_episode), self._linear]  # type: ignore[list-item]
        return super().advantage(batch)
