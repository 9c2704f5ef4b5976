"""Training of a progress model: time is the label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from wmrl_gym.world_models.progress.clips import Clip


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


def train(network: nn.Module, sampler: ClipSampler, *, steps: int, rng: np.random.Generator) -> dict[str, float]:
    """Take ``steps`` gradient steps.

    Returns:
        The mean losses over the last tenth of them: ``wm/progress_loss`` and ``wm/success_loss``, in nats; nothing
        without a step.
    """
    s = sampler.settings
    optimizer = torch.optim.AdamW(network.parameters(), lr=s.learning_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1), eta_min=s.learning_rate / 10)
    network.train()
    seen: list[tuple[float, float]] = []
    for _ in range(steps):
        batch = sampler.draw(rng)
        now, start = _jittered(batch, s.jitter, rng)
        logits = network(now, start, batch.text)
        progress = _weighted(logits[:, 0], batch.progress, batch.progress_weight)
        success = _weighted(logits[:, 1], batch.success, batch.success_weight)
        optimizer.zero_grad(set_to_none=True)
        (progress + 0.5 * success).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seen.append((float(progress.detach()), float(success.detach())))
    network.eval()
    if not seen:
        return {}
    last = np.mean(seen[-max(1, steps // 10) :], axis=0)
    return {"wm/progress_loss": float(last[0]), "wm/success_loss": float(last[1])}


def _weighted(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    loss = binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (loss * weight).sum() / weight.sum().clamp(min=1.0)


def _jittered(batch: Batch, jitter: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Images (uint8) with their brightness changed, now and start alike; features stay as they are."""
    if batch.now.dtype != torch.uint8 or jitter <= 0:
        return batch.now, batch.start
    gain = torch.from_numpy(rng.uniform(1 - jitter, 1 + jitter, len(batch.now)).astype(np.float32))
    shape = (-1, *([1] * (batch.now.dim() - 1)))
    return tuple((part.float() * gain.reshape(shape)).clamp(0, 255) for part in (batch.now, batch.start))  # type: ignore[return-value]
