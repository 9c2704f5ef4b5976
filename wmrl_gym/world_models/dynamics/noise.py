"""Random numbers that belong to a rollout, whatever batch it is computed in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def uniforms(seed: NDArray[np.int64], key: int, n: int) -> NDArray[np.float64]:
    """``n`` numbers in (0, 1) for each seed: a pure function of the seed, the key and the column.

    A generator that draws for a whole batch gives a rollout other numbers in another batch; these stay the same. SplitMix64's
    finaliser (Steele, Lea and Flood 2014), vectorised.

    Args:
        seed: int64, shape (B,).
        key: not negative, below 2**63; another one for each step.
        n: numbers for each seed.

    Returns:
        float64, shape (B, n).

    >>> uniforms(np.arange(3), 5, 2)[2] == uniforms(np.array([2]), 5, 2)[0]
    array([ True,  True])
    """
    column = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        # The seeds are scrambled alone first: seeds that follow each other must not walk along another one's columns.
        z = _scramble(_scramble(seed.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019))[:, None] ^ np.uint64(key)) + column
        z = _scramble(z)
    z >>= np.uint64(11)
    drawn = z.astype(np.float64)
    drawn += 0.5
    drawn *= 2.0**-53
    return drawn


def normals(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal numbers from uniform ones, by the inverse of the distribution function."""
    return np.asarray(ndtri(uniform))


def _scramble(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in _ROUNDS:
        z = z ^ (z >> shift)
        z *= factor
    z ^= z >> _LAST_SHIFT
    return z
