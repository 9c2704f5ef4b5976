"""Instructions for a robot: sentences for each Meta-World task, and words for where a target in empty space is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy.typing import NDArray

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Phrasing = Literal["plain", "train", "held_out"]
"""Which sentences are drawn from: the plainest one only, all of those for training, or those that training never shows."""

MAX_INSTRUCTION = 256
"""The longest instruction, in characters."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The sentences of one task.

    Args:
        sentences: for training, the plainest first.
        held_out: others of the same meaning.
    """

    sentences: tuple[str, ...]
    held_out: tuple[str, ...]

    def of(self, phrasing: Phrasing) -> tuple[str, ...]:
        """The sentences to draw from.

        Raises:
            ValueError: another phrasing.
        """
        choices = {"plain": self.sentences[:1], "train": self.sentences, "held_out": self.held_out}
        if phrasing not in choices:
            raise ValueError(f"phrasing must be one of {sorted(choices)}, got {phrasing!r}")
        return choices[phrasing]


@cache
def instruction_table() -> dict[str, Instructions]:
    """The sentences of every Meta-World task.

    >>> instruction_table()["drawer-open"].sentences[0]
    'open the drawer'
    """
    text = (files("wmrl_gym.envs.manipulation") / "instructions.toml").read_text(encoding="utf-8")
    return {
        task: Instructions(tuple(entry["sentences"]), tuple(entry["held_out"]))
        for task, entry in sorted(tomllib.loads(text).items())
    }


def known_task(task: str, tasks: Sequence[str]) -> str:
    """``task``, if it is one of ``tasks``.

    Raises:
        ValueError: it is not; names the closest ones.

    >>> known_task("draw-open", ["drawer-open", "reach"])
    Traceback (most recent call last):
        ...
    ValueError: there is no task 'draw-open'; the closest are drawer-open
    """
    if task in tasks:
        return task
    close = get_close_matches(str(task), list(tasks), n=3, cutoff=0.4)
    hint = f"the closest are {', '.join(close)}" if close else f"the tasks are {', '.join(tasks)}"
    raise ValueError(f"there is no task {task!r}; {hint}")


def checked_instruction(instruction: str) -> str:
    """``instruction``, if it says something.

    Raises:
        TypeError: it is not a text.
        ValueError: it is empty, or too long.
    """
    if not isinstance(instruction, str):
        raise TypeError(f"an instruction must be a str, got {type(instruction).__name__}")
    if not instruction.strip():
        raise ValueError(f"an instruction must say something, got {instruction!r}")
    if len(instruction) > MAX_INSTRUCTION:
        raise ValueError(f"an instruction has at most {MAX_INSTRUCTION} characters, got {len(instruction)}")
    return instruction


_WORDS = (("on the left", "in the middle", "on the right"), ("near", "half-way", "far"), ("low", "at medium height", "high up"))


def whereabouts(point: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    """Where ``point`` is between ``low`` and ``high``, in words: each axis that varies in thirds, seen from the robot.

    Args:
        point: metres, shape (3,): to the right of the robot, away from it, up.
        low: the least that each of them can be, shape (3,).
        high: the most.

    >>> whereabouts(np.array([-0.09, 0.85, 0.2]), np.array([-0.1, 0.8, 0.2]), np.array([0.1, 0.9, 0.2]))
    'on the left and half-way'
    """
    extent = high - low
    thirds = np.clip(np.floor(3 * (point - low) / np.where(extent > 0, extent, 1.0)), 0, 2).astype(int)
    said = [words[third] for words, third, wide in zip(_WORDS, thirds, extent > 1e-6, strict=True) if wide]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
