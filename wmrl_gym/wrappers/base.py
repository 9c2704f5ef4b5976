"""What every correction of rewards shares: where it may stand, what it is connected to, and how it is saved.

A correction reads and writes the info arrays of one step (n rows) and returns the rewards. It never touches a step on which no
reward is due, one whose reward is not valid, or the step at which a vector environment resets a slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wmrl_gym.engine.engine import Engine
    from wmrl_gym.engine.info import StepInfo as Info

_DEPTHS = 16
"""Classes of depth."""
RIGHT_ORDER = "the order is WorldModelWrapper, OnlineDebiasing, ResidualCorrection, InverseVarianceDenoising (innermost first)"


class OrderError(ValueError):
    """Wrappers stand in an order that makes no sense; the message gives the one that does."""


class Correction(ABC):
    """Base class of corrections: changes predicted rewards by what the stream of anchor pairs shows."""

    name: ClassVar[str]
    written: tuple[str, ...] = ()
    """Info keys that :meth:`correct` changes."""
    below: list[Correction]
    """The corrections that act before this one, once it is attached."""

    def attach(self, engine: Engine, below: list[Correction]) -> None:
        """Connect this correction to the engine, to its anchor stream, and to the corrections that act before this one.

        Raises:
            OrderError: this correction does not belong above those.
        """
        self.check_order([type(correction) for correction in below])
        self.engine = engine
        self.stream = engine.stream
        self.cursor = engine.stream.added
        self.below = below
        self.group_size = engine.episodes.group_size

    def contexts(self, context: NDArray[np.int64], depth: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a calibrator takes for the context of each step: the task, and where states are predicted too the depth.

        A reward that is predicted from a predicted state is the worse the longer that chain is; depths are taken together by
        doublings (1, 2 and 3, 4 to 7, ...), since errors compound.

        Args:
            context: int64, shape (n,).
            depth: steps since the episode's start, int64, shape (n,).
        """
        if not self.engine.by_depth:
            return context
        doublings = np.log2(np.maximum(depth, 1)).astype(np.int64)
        return context * _DEPTHS + np.minimum(doublings, _DEPTHS - 1)

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        """Raise :class:`OrderError` unless this correction may stand above those."""
        if cls.name in [each.name for each in below]:
            raise OrderError(f"{cls.name} is there twice; {RIGHT_ORDER}")

    @abstractmethod
    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        """The corrected rewards of n steps, float64, shape (n,); the arrays in ``info`` may be changed.

        Args:
            reward: float64, shape (n,).
            info: arrays of n rows.
            action: the n actions, for corrections that learn from what was done.
        """

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """What a log should say."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run."""
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to what :meth:`state_dict` described."""
        self.cursor = int(state["cursor"])


def payable(info: Info) -> NDArray[np.bool_]:
    """The steps that owe a valid reward which the model predicted: bool, shape (n,)."""
    rows: NDArray[np.bool_] = info["reward_due"] & info["reward_valid"] & np.isfinite(info["wm_reward"])
    return rows


class Denoising(Correction):
    """Weighs each reward by how noisy it is; the modes are in :mod:`wmrl_gym.wrappers.denoising`."""

    name = "InverseVarianceDenoising"
    joins_late: ClassVar[bool] = True
    """Whether background anchors need a trainer that joins their late truths."""
