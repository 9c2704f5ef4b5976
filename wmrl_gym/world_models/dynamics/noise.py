"""Normal random numbers that belong to a rollout, whatever batch it is computed in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri


def normals(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal numbers from uniform ones, by the inverse of the distribution function."""
    return np.asarray(ndtri(uniform))
