"""Memory of what was executed: what a correction still misses of attempts that were seen before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
        key: uint64, shape (M,), ascending: of each place that was seen, what its features hash to.
        places: float64, shape (M, F): its features.
        effects: float64, shape (M, 3): its effect, the effect's weight in [0, 1], and the variance of the mean of its truths.

    >>> z = np.array([[0.0], [0.0], [1.0]])
    >>> recall = Recall.of(z, np.array([0.3, 0.3, -0.3]), noise=0.0)
    >>> recall.effect(np.array([[0.0], [1.0], [2.0]]))[0].round(2)
    array([ 0.3, -0.3,  0. ])
    """

    key: NDArray[np.uint64]
    places: Floats
    effects: Floats

    @classmethod
    def nothing(cls, width: int) -> Recall:
        """Of no pairs, whose features have this width."""
        return cls(np.zeros(0, np.uint64), np.zeros((0, width)), np.zeros((0, 3)))

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
        key = _hashed(places)
        order = np.argsort(key)
        return cls(key[order], places[order], np.stack([weight * mean, weight, own], axis=1)[order])

    def effect(self, features: Floats) -> tuple[Floats, Floats, Floats]:
        """Effect, weight and variance at places, float64, shape (B,) each; zeros where nothing was seen."""
        found = np.zeros((len(features), 3))
        if len(self.key):
            rows = np.ascontiguousarray(features + 0.0)  # one zero, not two
            at = np.minimum(np.searchsorted(self.key, _hashed(rows)), len(self.key) - 1)
            seen = (self.places[at] == rows).all(axis=1)
            found[seen] = self.effects[at[seen]]
        effect, weight, variance = found.T
        return effect, weight, variance


def _hashed(rows: Floats) -> NDArray[np.uint64]:
    """The same number for equal rows, float64, shape (B, F) of one zero; others share one by a chance of 2^-64.

    A place that shares its number with another one is forgotten, or that one: nothing is confused, since features are compared.
    """
    bits = rows.view(np.uint64)
    hashed: NDArray[np.uint64] = (bits ^ (bits >> _SHIFT)) @ _odd(rows.shape[1])
    return hashed


_SHIFT = np.uint64(29)
"""Whole numbers differ in their highest bits alone, which odd factors would not mix into the others."""


@lru_cache(maxsize=16)
def _odd(width: int) -> NDArray[np.uint64]:
    """Odd factors, uint64, shape (width,)."""
    return np.random.default_rng(0).integers(0, 2**63, width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
