"""Memory of what was executed: what a correction still misses of attempts that were seen before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmrl_gym.corrections.anchor_pairs import Floats
from wmrl_gym.corrections.gaussian_process import distinct

_PSEUDO_PAIRS = 2.0
"""How many repetitions the first guess of the noise counts for."""


@dataclass(frozen=True, slots=True)
class Recall:
    """The mean of what is missed at each place that was seen, shrunk by how much truths of one place differ.

    A regression smooths: it pulls the best attempt that was seen towards its neighbours. Where an outcome hardly differs from one
    execution to the next, it needs no regression. With n truths at a place, whose mean misses the prediction by e, the expected
    effect of the place is ``e tau^2 / (tau^2 + sigma^2 / n)`` (a random effect; sigma^2 the variance of truths within places,
    tau^2 that of the effects, both by moments). Places that were never seen have none.

    Args:
        effects: of each place that was seen, by the bytes of its features: the effect, its weight in [0, 1], and the variance of
            the mean of its truths.

    >>> z = np.array([[0.0], [0.0], [1.0]])
    >>> recall = Recall.of(z, np.array([0.3, 0.3, -0.3]), noise=0.0)
    >>> recall.effect(np.array([[0.0], [1.0], [2.0]]))[0].round(2)
    array([ 0.3, -0.3,  0. ])
    """

    effects: dict[bytes, tuple[float, float, float]]

    @classmethod
    def of(cls, features: Floats, missed: Floats, *, noise: float) -> Recall:
        """What is to be remembered of N pairs.

        Args:
            features: float64, shape (N, F), finite.
            missed: float64, shape (N,): truths less what is predicted.
            noise: first guess of the variance of one truth; counts for 2 repetitions.
        """
        places, place, count = distinct(features)
        mean = np.bincount(place, missed, len(places)) / count
        within = float(((missed - mean[place]) ** 2).sum())
        sigma = (within + _PSEUDO_PAIRS * noise) / (len(missed) - len(places) + _PSEUDO_PAIRS)
        tau = max(float(np.mean(mean**2 - sigma / count)), 0.0)
        own = sigma / count
        weight = tau / np.maximum(tau + own, np.finfo(float).tiny)
        rows = zip(places, weight * mean, weight, own, strict=True)
        return cls({row.tobytes(): (float(e), float(w), float(v)) for row, e, w, v in rows})

    def effect(self, features: Floats) -> tuple[Floats, Floats, Floats]:
        """Effect, weight and variance at places, float64, shape (B,) each; zeros where nothing was seen."""
        rows = np.ascontiguousarray(features + 0.0)
        found = [self.effects.get(row.tobytes(), _UNSEEN) for row in rows]
        effect, weight, variance = np.array(found, np.float64).reshape(len(rows), 3).T
        return effect, weight, variance


_UNSEEN = (0.0, 0.0, 0.0)
