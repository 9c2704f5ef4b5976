"""Seeds of draws, by their numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mix(seed: int, stream: int, number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Seeds of 31 bits for draws of a stream, by their numbers: SplitMix64's finaliser, far cheaper than SeedSequence.

    >>> mix(0, 1, np.arange(3)).tolist() == [int(mix(0, 1, np.array(n))) for n in range(3)]
    True
    """
    start = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) % 2**64
    with np.errstate(over="ignore"):
        z = number.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(start)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)
