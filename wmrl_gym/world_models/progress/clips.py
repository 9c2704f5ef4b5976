"""What a progress model learns from: clips, from demonstrations or from real transitions as they arrive, and draws of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a network is trained.

    Args:
        batch_size: frames a gradient step.
        learning_rate: of AdamW at first; it falls to a tenth.
        wrong_share: share of the frames that get another task's sentence, and no progress.
        reversed_share: share of the frames that are compared with their episode's end, as in a clip played backwards.
        jitter: most that brightness is changed, as a share.
    """

    batch_size: int = 96
    learning_rate: float = 1e-3
    wrong_share: float = 0.35
    reversed_share: float = 0.15
    jitter: float = 0.15


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames to learn from; ``*_weight`` is 0 where a label is unknown."""

    now: Tensor
    start: Tensor
    text: Tensor
    progress: Tensor
    progress_weight: Tensor
    success: Tensor
    success_weight: Tensor


class ClipSampler:
    """Draws labelled frames from clips.

    In a successful episode progress is the time that has passed, and only its end is a success. How far a failed one got nobody
    says: all that is known of its frames is that they are no success.

    Args:
        clips: to draw from.
        vectors: of their sentences: float32, shape (clips, size).
        settings: shares of the negatives.
    """

    def __init__(self, clips: Sequence[Clip], vectors: NDArray[np.float32], settings: TrainSettings) -> None:
        self.clips, self.vectors, self.settings = clips, vectors, settings
        sentences = [clip.sentence for clip in clips]
        # Sentences that mean the same are not told apart from those that do not, so a negative is one that is far away.
        alike = vectors @ vectors.T
        self._others = [
            np.flatnonzero([other != own for other in sentences] & (alike[row] < 0.6)) for row, own in enumerate(sentences)
        ]
        won = np.array([clip.success for clip in clips])
        # Successes and failures are seen equally often, whatever the mix.
        share = np.where(won, 1.0 / max(won.sum(), 1), 1.0 / max((~won).sum(), 1))
        share = np.where(won, share, share * 0.5) if won.any() else share
        self._chance = share / share.sum()

    def draw(self, rng: np.random.Generator) -> Batch:
        """One batch."""
        s = self.settings
        chosen = rng.choice(len(self.clips), s.batch_size, p=self._chance)
        wrong = rng.random(s.batch_size) < s.wrong_share
        backwards = rng.random(s.batch_size) < s.reversed_share
        now, start, text = [], [], []
        labels = np.zeros((4, s.batch_size), np.float32)
        for row, number in enumerate(chosen.tolist()):
            clip, others = self.clips[number], self._others[number]
            last = len(clip.frames) - 1
            # A third of the draws are ends, or the few successes among the frames would be drowned.
            at = last if rng.random() < 0.3 else int(rng.integers(last + 1))
            now.append(clip.frames[at])
            start.append(clip.frames[last if backwards[row] else 0])
            mismatched = wrong[row] and len(others) > 0
            text.append(self.vectors[rng.choice(others) if mismatched else number])
            done = clip.success and at == last and not mismatched
            labels[:, row] = (0.0 if mismatched else clip.time[at], clip.success or mismatched, done, not backwards[row])
        parts = [torch.from_numpy(np.stack(part)) for part in (now, start, text)]
        return Batch(*parts, *torch.from_numpy(labels))
