"""The networks of a progress model, a small convolutional one or a small head on a frozen transformer, and their training."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from wmrl_gym.world_models.progress.clips import Batch, ClipSampler
from wmrl_gym.world_models.torch_state import learning, predicting

SIDE = 64
"""Pixels of each side that the small network sees."""


class Vision(Protocol):
    """How frames are kept and compared."""

    def prepare(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """What is kept of N frames: an array of N rows."""

    def network(self, text_size: int) -> nn.Module:
        """An untrained network: (now, start, text) -> (N, 2), the logits of progress and of success."""


class SmallVision:
    """Frames as they are, shrunk to 64 x 64, for a convolutional network that compares each with the episode's first."""

    @predicting()
    def prepare(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """Shrink N frames (N, H, W, 3): uint8, shape (N, 3, 64, 64)."""
        frames = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        if frames.shape[-2:] != (SIDE, SIDE):
            frames = nn.functional.adaptive_avg_pool2d(frames.float(), SIDE).round().to(torch.uint8)
        kept: NDArray[np.uint8] = frames.contiguous().numpy()
        return kept

    def network(self, text_size: int) -> nn.Module:
        """The convolutional network."""
        return _Convolutional(text_size)


class FrozenVision:
    """Features of a vision encoder that does not learn, with a head that does.

    Args:
        name: of a model that ``transformers.AutoModel`` loads, or a folder that holds one; of a model for images and texts its
            vision part is used.
        device: where it runs.
        batch_size: frames at once.
    """

    def __init__(self, name: str, *, device: str = "cpu", batch_size: int = 32) -> None:
        self.name, self.device, self.batch_size = name, device, batch_size
        self._parts: Any = None

    @predicting()
    def prepare(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """Features of N frames (N, H, W, 3): float32, shape (N, features), each of length 1."""
        processor, model = self._loaded()
        found = []
        for at in range(0, len(images), self.batch_size):
            pixels = processor(images=list(images[at : at + self.batch_size]), return_tensors="pt")["pixel_values"]
            said = model(pixel_values=pixels.to(self.device))
            pooled = getattr(said, "pooler_output", None)
            pooled = said.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1)
            found.append(nn.functional.normalize(pooled.float(), dim=1).cpu().numpy())
        return np.concatenate(found)

    def network(self, text_size: int) -> nn.Module:
        """A head over the features."""
        features = len(self.prepare(np.zeros((1, SIDE, SIDE, 3), np.uint8))[0])
        return _FeatureHead(features, text_size)

    @learning()
    def _loaded(self) -> Any:
        if self._parts is None:
            from transformers import AutoImageProcessor, AutoModel

            model = AutoModel.from_pretrained(self.name).eval().to(self.device)
            self._parts = AutoImageProcessor.from_pretrained(self.name), getattr(model, "vision_model", model)
        return self._parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None}


def vision_of(name: str) -> Vision:
    """The vision that a name stands for: "small", or a model or folder that transformers loads."""
    return SmallVision() if name == "small" else FrozenVision(name)


def _head() -> nn.Module:
    first, last = nn.Linear(128, 64, dtype=torch.float32), nn.Linear(64, 2, dtype=torch.float32)
    return nn.Sequential(nn.ReLU(), first, nn.ReLU(), last)


class _Convolutional(nn.Module):
    def __init__(self, text_size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        # The first stride is long: a step must cost less than the rendering of its image.
        for before, after, size, stride in ((6, 16, 6, 4), (16, 32, 3, 2), (32, 64, 3, 2)):
            layers += [nn.Conv2d(before, after, size, stride=stride, padding=1, dtype=torch.float32), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.look = nn.Linear(64 * (SIDE // 16) ** 2, 128, dtype=torch.float32)
        self.gate = nn.Linear(text_size, 128, dtype=torch.float32)
        self.read = nn.Linear(text_size, 128, dtype=torch.float32)
        self.head = _head()

    def forward(self, now: Tensor, start: Tensor, text: Tensor) -> Tensor:
        """(N, 3, 64, 64) uint8 twice, and (N, text_size) -> (N, 2)."""
        seen = torch.cat([now.float(), now.float() - start.float()], dim=1) / 255.0 - 0.5
        looked = self.look(self.body(seen))
        # The sentence chooses which of what is seen matters.
        return self.head(looked * (1.0 + self.gate(text)) + self.read(text))


class _FeatureHead(nn.Module):
    def __init__(self, features: int, text_size: int) -> None:
        super().__init__()
        self.look = nn.Linear(2 * features, 128, dtype=torch.float32)
        self.gate = nn.Linear(text_size, 128, dtype=torch.float32)
        self.read = nn.Linear(text_size, 128, dtype=torch.float32)
        self.head = _head()

    def forward(self, now: Tensor, start: Tensor, text: Tensor) -> Tensor:
        """(N, features) twice, and (N, text_size) -> (N, 2)."""
        looked = self.look(torch.cat([now, now - start], dim=1) * now.shape[1] ** 0.5)
        return self.head(looked * (1.0 + self.gate(text)) + self.read(text))


@learning()
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
