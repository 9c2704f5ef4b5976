"""What a manipulation environment asks of a simulator: one protocol over Meta-World and LIBERO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Split = Literal["id", "ood", "all"]
"""Which initial states episodes start from: in-domain ones, out-of-distribution ones, or both."""


def checked_split(split: str) -> Split:
    """``split``, if there is one of this name.

    Raises:
        ValueError: there is none.
    """
    if split not in ("id", "ood", "all"):
        raise ValueError(f'split must be "id", "ood" or "all", got {split!r}')
    return split  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class SimStep:
    """What one step of a simulator says.

    Args:
        dense: the simulator's own shaped reward; NaN where it has none.
        success: whether the task is done now.
    """

    dense: float
    success: bool


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode starts.

    Args:
        task: which task.
        split: which initial states to draw from.
        state: number of a fixed initial state; None draws one.
    """

    task: str
    split: Split
    state: int | None = None


class Simulator(ABC):
    """A simulated robot with tasks. One instance runs one episode at a time.

    Copies and pickles are made anew from the arguments of the constructor, without an episode: what MuJoCo and OpenGL hold stays
    where it is.
    """

    tasks: tuple[str, ...]
    """The names of its tasks."""

    frames_per_second: int
    """Steps in a second of simulated time."""

    action_space: Box
    proprioception_space: Box

    @abstractmethod
    def start(self, start: Start, generator: np.random.Generator) -> None:
        """Begin an episode; the same start and generator give the same one."""

    @abstractmethod
    def step(self, action: NDArray[np.float32]) -> SimStep:
        """Apply an action that was checked: float32, inside :attr:`action_space`."""

    @abstractmethod
    def proprioception(self) -> NDArray[np.float32]:
        """The robot's own state: float32, inside :attr:`proprioception_space`. Nothing of objects or targets."""

    @abstractmethod
    def image(self, camera: str) -> NDArray[np.uint8]:
        """What a camera sees: uint8, shape (height, width, 3), upright."""

    @abstractmethod
    def sentences(self, phrasing: str) -> tuple[str, ...]:
        """Sentences that ask for the present episode's task, to draw from."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """The versions of the packages that simulate, by package."""

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """How to make it anew."""

    def expert_action(self) -> NDArray[np.float32]:
        """What the simulator's scripted expert would do now.

        Raises:
            NotImplementedError: it has none.
        """
        raise NotImplementedError(f"{type(self).__name__} ships no scripted expert")

    @abstractmethod
    def close(self) -> None:
        """Free what it holds."""


def inside(values: Any, space: Box) -> NDArray[np.float32]:
    """``values`` as float32, clipped into ``space``: an unstable simulation must not leave the space that it declared."""
    return np.clip(np.asarray(values, dtype=np.float32), space.low, space.high)
