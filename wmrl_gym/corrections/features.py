"""Features of what was done, for evidence of bias where no policy's score is at hand."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.pairs import Floats, as_ints
from wmrl_gym.randomness import scramble

_UInts = NDArray[np.uint64]


class ActionSigns:
    """Random signs of the parts of an action and of its context: the same parts, the same signs, in every process.

    A bias that a policy can exploit depends on what is done. Residuals times these signs, averaged over anchors, are a random
    projection of that bias, whatever the policy is. Integer actions are taken apart by position, texts by word; a real-valued
    action is projected linearly.

    Args:
        dimension: number of features.
        seed: of the signs.

    Raises:
        ValueError: if ``dimension`` is not positive.

    >>> signs = ActionSigns(4)
    >>> signs([[0, 2], [0, 2]], [1, 1]).tolist()[0] == signs([[0, 2]], [1]).tolist()[0]
    True
    >>> signs(["fit a tree", "fit a line"]).shape
    (2, 4)
    """

    def __init__(self, dimension: int = 256, *, seed: int = 0) -> None:
        if dimension < 1:
            raise ValueError(f"dimension must be at least 1, got {dimension}")
        self.dimension, self.seed = int(dimension), int(seed)
        salt = np.random.default_rng(seed).integers(0, 2**63, dimension, dtype=np.uint64)
        self._salt = scramble(salt)

    def _signs(self, keys: _UInts) -> Floats:
        """Shape (..., D), of values -1 and 1, for keys of shape (...)."""
        bits = scramble(keys[..., None] ^ self._salt) >> np.uint64(63)
        return 2.0 * bits.astype(np.float64) - 1.0

    def __call__(self, action: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The features of B actions.

        Args:
            action: shape (B, ...): integers or booleans, reals, or texts.
            context: int64, shape (B,), e.g. the task.

        Returns:
            float64, shape (B, D), of about unit size.
        """
        actions = np.asarray(action)
        c = as_ints("context", context, size=len(actions)).astype(np.uint64)
        where = scramble(c + np.uint64(self.seed) + np.uint64(1))
        if actions.dtype.kind in "OUS":
            return np.stack([self._text(str(text), key) for text, key in zip(actions.ravel(), where, strict=True)])
        parts = actions.reshape(len(actions), -1)
        place = scramble(np.arange(parts.shape[1], dtype=np.uint64) + np.uint64(1))
        if parts.dtype.kind == "f":
            signs = self._signs(where[:, None] ^ place)
            projected: Floats = np.einsum("bp,bpd->bd", np.nan_to_num(parts), signs) / np.sqrt(max(parts.shape[1], 1))
            return projected
        keys = scramble(where[:, None] ^ place ^ scramble(parts.astype(np.int64).astype(np.uint64) + np.uint64(7)))
        out: Floats = self._signs(keys).sum(axis=1) / np.sqrt(max(parts.shape[1], 1))
        return out

    def _text(self, text: str, key: np.uint64) -> Floats:
        words = sorted(set(text.split())) or [""]
        codes = np.array([zlib.crc32(word.encode()) for word in words], dtype=np.uint64)
        out: Floats = self._signs(scramble(codes) ^ key).sum(axis=0) / np.sqrt(len(words))
        return out
