"""Random numbers that are a pure function of what they are for, such as an episode's number or a rollout's seed.

A generator that draws for a whole batch gives a rollout other numbers in another batch, and one generator for each of hundreds of
rollouts costs more than all else that a step does. These stay the same whatever they are computed with. All stand on SplitMix64's
finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), vectorised.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WEYL = 0x9E3779B97F4A7C15
"""SplitMix64's increment: 2**64 over the golden ratio, odd."""
_START = 0x632BE59BD9B4E019
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def scramble(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: any change of a key changes half of the bits of the result. uint64 of any shape."""
    with np.errstate(over="ignore"):
        for shift, factor in _ROUNDS:
            z = z ^ (z >> shift)
            z *= factor
        z ^= z >> np.uint64(31)
    return z


def mix(seed: int, stream: int, number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Seeds of 31 bits for the draws of a stream, by their numbers: int64, of the shape of ``number``.

    >>> mix(0, 1, np.arange(3)).tolist() == [int(mix(0, 1, np.array(n))) for n in range(3)]
    True
    """
    start = (seed * WEYL + stream * 0xD1B54A32D192ED03 + _START) % 2**64
    with np.errstate(over="ignore"):
        keys = np.asarray(number).astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(start)
    return (scramble(keys) >> np.uint64(33)).astype(np.int64)


def draw(seed: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """A number below ``n`` for each seed, all equally likely: int64, shape (B,).

    >>> draw(np.arange(6), 3)
    array([2, 1, 1, 1, 0, 2])
    """
    with np.errstate(over="ignore"):
        keys = seed.astype(np.uint64) * np.uint64(WEYL) + np.uint64(_START)
    return (scramble(keys) % np.uint64(n)).astype(np.int64)


def words(seed: NDArray[np.int64], key: int, n: int) -> NDArray[np.uint64]:
    """``n`` words of 64 random bits for each seed: a pure function of the seed, the key and the column.

    Args:
        seed: int64, shape (B,).
        key: not negative, below 2**63; another one for each step.
        n: words for each seed.

    Returns:
        uint64, shape (B, n).
    """
    column = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(WEYL)
    with np.errstate(over="ignore"):
        # The seeds are scrambled alone first: seeds that follow each other must not walk along another one's columns.
        z = scramble(scramble(seed.astype(np.uint64) + np.uint64(_START))[:, None] ^ np.uint64(key)) + column
    return scramble(z)


def uniforms(seed: NDArray[np.int64], key: int, n: int) -> NDArray[np.float64]:
    """``n`` numbers in (0, 1) for each seed: float64, shape (B, n). Arguments as for :func:`words`.

    >>> uniforms(np.arange(3), 5, 2)[2] == uniforms(np.array([2]), 5, 2)[0]
    array([ True,  True])
    """
    drawn = (words(seed, key, n) >> np.uint64(11)).astype(np.float64)
    drawn += 0.5
    drawn *= 2.0**-53
    return drawn


def halves(bits: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The upper and the lower 32 bits of words: uint32, of the shape of ``bits``."""
    return (bits >> np.uint64(32)).astype(np.uint32), bits.astype(np.uint32)


def normals(bits: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Two standard normal numbers from each word of random bits (Box and Muller, 1958): float32, shape (B, 2 * n).

    >>> drawn = normals(words(np.arange(5_000), 0, 2))
    >>> drawn.shape, bool(abs(drawn.mean()) < 0.02), bool(abs(drawn.std() - 1) < 0.02)
    ((5000, 4), True, True)
    """
    upper, lower = halves(bits)
    radius, angle = upper.astype(np.float32), lower.astype(np.float32)
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-32)
    radius = np.sqrt(np.log(radius, out=radius) * np.float32(-2.0))
    angle *= np.float32(2.0**-31 * np.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
