"""Clips: what a progress model learns from, put together from demonstrations or from real transitions as they arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data.demonstrations import Episode
from wmrl_gym.data.transitions import Transitions

Prepare = Callable[[NDArray[np.uint8]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Clip:
    """The frames of one episode.

    Args:
        frames: what is kept of each frame, oldest first: shape (N, ...).
        time: float32, shape (N,). When each was seen, from 0 at the episode's start to 1 at its end.
        sentence: what was asked for.
        success: whether it was done at the end.
    """

    frames: NDArray[Any]
    time: NDArray[np.float32]
    sentence: str
    success: bool


def rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The newest image of each stack on the channel axis: (N, H, W, 3 * count) -> (N, H, W, 3)."""
    return images[..., -3:]


def clip_of(episode: Episode, prepare: Prepare, *, image_key: str, frames: int) -> Clip:
    """The clip of a demonstration: at most ``frames`` frames, evenly spaced, the first and the last among them."""
    at = spaced(len(episode) + 1, frames)
    images = rgb(np.asarray(episode.observation[image_key])[at])
    return Clip(prepare(images), (at / max(len(episode), 1)).astype(np.float32), episode.instruction, episode.success)


def spaced(length: int, count: int) -> NDArray[np.int64]:
    """At most ``count`` numbers from 0 to ``length - 1``, evenly spaced, both ends among them.

    >>> spaced(9, 3)
    array([0, 4, 8])
    """
    return np.unique(np.round(np.linspace(0, length - 1, min(count, length))).astype(np.int64))


@dataclass(slots=True)
class _Open:
    images: list[NDArray[np.uint8]]
    seen: list[int]
    sentence: str
    steps: int = 0
    rewarded: float = 0.0
    known: bool = True


@dataclass(slots=True)
class Assembler:
    """Puts transitions together to clips: a step goes on where its observation was the last one's next.

    Transitions of several environments arrive mixed, and an update may cut episodes in two: what has not ended waits. An image
    that only repeats the one before it, as between the pictures of a slow camera, is no new frame: it would be taken for what the
    scene looked like later. The last one always is.

    Args:
        image_key: of the image in observations.
        text_key: of the sentence.
        frames: kept of each episode at most.
        most_open: episodes under way that are remembered; the oldest is forgotten.
    """

    image_key: str
    text_key: str
    frames: int
    most_open: int = 64
    _open: dict[bytes, deque[_Open]] = field(default_factory=dict)

    def add(self, transitions: Transitions, prepare: Prepare) -> list[Clip]:
        """Take in transitions; returns the clips of the episodes that have ended with them."""
        finished = []
        for row in range(len(transitions)):
            finished += self._add(transitions, row, prepare)
        return finished

    def _add(self, transitions: Transitions, row: int, prepare: Prepare) -> list[Clip]:
        before, after = (rgb(batch[self.image_key][row]) for batch in (transitions.observation, transitions.next_observation))
        sentence = str(transitions.observation[self.text_key][row])
        waiting = self._open.get(_key(before, sentence))
        if waiting:
            episode = waiting.popleft()
            if not waiting:
                del self._open[_key(before, sentence)]
        else:
            episode = _Open([before.copy()], [0], sentence)
        over = bool(transitions.terminated[row] or transitions.truncated[row])
        episode.steps += 1
        if over or not np.array_equal(after, episode.images[-1]):
            episode.images.append(after.copy())
            episode.seen.append(episode.steps)
        episode.rewarded += float(transitions.reward[row])
        episode.known &= bool(transitions.reward_valid[row])
        if not over:
            self._open.setdefault(_key(after, sentence), deque()).append(episode)
            while len(self._open) > self.most_open:
                self._open.pop(next(iter(self._open)))
            return []
        if not episode.known:
            return []
        at = spaced(len(episode.images), self.frames)
        images = np.stack([episode.images[int(number)] for number in at])
        time = (np.array(episode.seen)[at] / episode.steps).astype(np.float32)
        return [Clip(prepare(images), time, sentence, episode.rewarded > 0.5)]


def _key(image: NDArray[np.uint8], sentence: str) -> bytes:
    from hashlib import blake2b

    digest = blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16)
    digest.update(sentence.encode())
    return digest.digest()
