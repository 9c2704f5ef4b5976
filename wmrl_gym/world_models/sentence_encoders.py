"""Sentences as vectors, by encoders that do not learn."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.lazy import renamed


class SentenceEmbedder(Protocol):
    """Turns sentences into vectors; the same sentence always into the same one."""

    @property
    def size(self) -> int:
        """Numbers in a vector."""

    def __call__(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """One vector of length 1 for each sentence: float32, shape (N, size)."""


class HashedWords:
    """Words and their trigrams, hashed to a random direction each and summed: no weights, nothing to download.

    Sentences that share words, or stems of words, are alike; it knows nothing of meaning.

    Args:
        size: numbers in a vector.

    Raises:
        ValueError: a size below 8.

    >>> encode = HashedWords(64)
    >>> open_, opened, other = encode(["open the drawer", "open a drawer", "turn the dial"])
    >>> float(open_ @ opened) > float(open_ @ other)
    True
    """

    def __init__(self, size: int = 64) -> None:
        if size < 8:
            raise ValueError(f"size must be at least 8, got {size}")
        self.size = size

    def __call__(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.stack([self._one(sentence) for sentence in sentences]) if sentences else np.zeros((0, self.size))
        return vectors.astype(np.float32)

    def _one(self, sentence: str) -> NDArray[np.float64]:
        total = np.zeros(self.size)
        for word in re.findall(r"\w+", sentence.lower()):
            marked = f"<{word}>"
            parts = [word, *(marked[at : at + 3] for at in range(len(marked) - 2))]
            for weight, part in zip([1.0] + [0.3] * (len(parts) - 1), parts, strict=True):
                total += weight * np.random.default_rng(zlib.crc32(part.encode())).standard_normal(self.size)
        norm = float(np.linalg.norm(total))
        return total / norm if norm > 0 else total


class TransformerSentences:
    """The mean of a transformer's last hidden states, made to length 1. The model is loaded with the first sentence.

    Args:
        name: of a model that ``transformers.AutoModel`` loads, or a folder that holds one.
        device: where it runs.
        max_tokens: the rest of a longer sentence is left out.
    """

    def __init__(self, name: str, *, device: str = "cpu", max_tokens: int = 64) -> None:
        self.name, self.device, self.max_tokens = name, device, max_tokens
        self._parts: Any = None

    @property
    def size(self) -> int:
        return int(self._loaded()[1].config.hidden_size)

    def __call__(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        import torch

        from wmrl_gym.world_models.torch_state import predicting

        tokenizer, model = self._loaded()
        with predicting():
            tokens = tokenizer(list(sentences), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt")
            tokens = tokens.to(self.device)
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            unit: NDArray[np.float32] = torch.nn.functional.normalize(mean.float(), dim=1).cpu().numpy()
        return unit

    def _loaded(self) -> Any:
        if self._parts is None:
            from transformers import AutoModel, AutoTokenizer

            from wmrl_gym.world_models.torch_state import learning

            with learning():
                model = AutoModel.from_pretrained(self.name).eval().to(self.device)
            self._parts = AutoTokenizer.from_pretrained(self.name), model
        return self._parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None}  # weights are loaded again where they are needed


def sentence_encoder(encoder: str | SentenceEmbedder) -> SentenceEmbedder:
    """The encoder that a name stands for: ``"hashed"``, or a model or folder that transformers loads.

    >>> sentence_encoder("hashed").size
    64
    """
    if not isinstance(encoder, str):
        return encoder
    return HashedWords() if encoder == "hashed" else TransformerSentences(encoder)


__getattr__ = renamed(__name__, {"SentenceEncoder": "SentenceEmbedder"})
