"""The choices of the design environment, by name.

A design is one choice for each slot. The last four slots are read by the model family: what ``size``, ``strength``, ``rate`` and
``target`` mean for each family is in the tables of :mod:`~wmrl_gym.envs.autoresearch.design.models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOTS: dict[str, tuple[str, ...]] = {
    "imputation": ("none", "mean", "median", "median with flags", "nearest neighbours"),
    "scaling": ("none", "standard", "minmax", "robust", "quantile"),
    "encoding": ("drop", "one-hot", "ordinal", "target", "one-hot without rare"),
    "features": ("all", "best half", "best 10", "principal components", "products"),
    "family": (
        "linear",
        "nearest neighbours",
        "tree",
        "random forest",
        "extra trees",
        "boosting",
        "support vectors",
        "naive bayes",
        "neural network",
    ),
    "size": ("tiny", "small", "medium", "large", "huge"),
    "strength": ("weakest", "weak", "middling", "strong", "strongest"),
    "rate": ("a", "b", "c", "d"),
    "target": ("plain", "adjusted"),
}
"""The slots of the action and the choices of each. ``encoding`` chooses the vectoriser on a text column."""

VECTORISERS = ("word counts", "tf-idf of words", "tf-idf of words and pairs", "tf-idf of characters", "hashed words")
"""What the choices of ``encoding`` mean for a column of documents."""

NVEC = np.array([len(choices) for choices in SLOTS.values()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Design:
    """One choice for each slot, as its index."""

    imputation: int
    scaling: int
    encoding: int
    features: int
    family: int
    size: int
    strength: int
    rate: int
    target: int

    @classmethod
    def of(cls, action: Sequence[int] | NDArray[Any]) -> Design:
        """The design that an action stands for.

        >>> Design.of([0, 1, 1, 0, 3, 2, 0, 1, 0]).name("family")
        'random forest'

        Raises:
            ValueError: for the wrong number of choices, or one outside its slot.
        """
        choices = np.asarray(action)
        if choices.shape != NVEC.shape or choices.dtype.kind not in "iu":
            raise ValueError(f"a design is {len(NVEC)} whole numbers, got {action!r}")
        if (choices < 0).any() or (choices >= NVEC).any():
            raise ValueError(f"each choice must be at least 0 and below {NVEC.tolist()}, got {choices.tolist()}")
        return cls(*(int(choice) for choice in choices))

    def name(self, slot: str) -> str:
        """The name of the choice in a slot."""
        return SLOTS[slot][int(getattr(self, slot))]

    def __str__(self) -> str:
        return ", ".join(f"{field.name}: {self.name(field.name)}" for field in fields(self))


def one_hot(designs: NDArray[np.int64]) -> NDArray[np.float32]:
    """Designs as zeros and ones.

    Args:
        designs: int64, shape (B, 9).

    Returns:
        float32, shape (B, sum of the numbers of choices).
    """
    columns = np.concatenate([[0], np.cumsum(NVEC)[:-1]]) + designs
    hot = np.zeros((len(designs), int(NVEC.sum())), dtype=np.float32)
    hot[np.arange(len(designs))[:, None], columns] = 1.0
    return hot


_FAMILY, _WITH = 4, (1, 3, 5)
"""The slot of the family, and those whose meaning depends most on it: scaling, features and size."""


def crossed(designs: NDArray[np.int64]) -> NDArray[np.float32]:
    """Each design's family together with its scaling, its features and its size, as zeros and ones.

    Args:
        designs: int64, shape (B, 9).

    Returns:
        float32, shape (B, 135).
    """
    widths = NVEC[list(_WITH)]
    columns = designs[:, [_FAMILY]] * widths + designs[:, list(_WITH)]
    offsets = np.concatenate([[0], np.cumsum(NVEC[_FAMILY] * widths)[:-1]])
    hot = np.zeros((len(designs), int((NVEC[_FAMILY] * widths).sum())), dtype=np.float32)
    hot[np.arange(len(designs))[:, None], columns + offsets] = 1.0
    return hot


_KNOBS = (5, 6, 7)
"""The slots of size, strength and rate."""


def graded(designs: NDArray[np.int64]) -> NDArray[np.float32]:
    """Each choice as a quantity, and size, strength and rate within the family: what few examples teach best.

    Args:
        designs: int64, shape (B, 9).

    Returns:
        float32, shape (B, 36), each in [0, 1].
    """
    places = (designs / (NVEC - 1)).astype(np.float32)
    family = np.eye(int(NVEC[_FAMILY]), dtype=np.float32)[designs[:, _FAMILY]]
    return np.hstack([places, *(family * places[:, [slot]] for slot in _KNOBS)])
