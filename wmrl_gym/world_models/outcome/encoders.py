"""Ways to turn an attempt's text into numbers, for a model that cannot read."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.randomness import WEYL, scramble

WORD = r"[A-Za-z_]\w+"


class TextEncoder(ABC):
    """Encodes texts as vectors. An encoder is not changed by use: :meth:`fitted_on` gives another, fitted one."""

    kind: ClassVar[str]

    def fitted_on(self, texts: Sequence[str]) -> TextEncoder:
        """This encoder, having learnt from texts what it needs to learn."""
        return self

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text: float32, shape (B, W), finite."""

    def settings(self) -> dict[str, Any]:
        """What makes the same encoder again, as json."""
        return {"kind": self.kind}

    def remembered(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        """What was costly to compute about these texts, to be saved; None where nothing was."""
        return None

    def remember(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Take back what :meth:`remembered` gave."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to remember")


class NoEncoder(TextEncoder):
    """Says nothing of a text: the environment's own features must do."""

    kind: ClassVar[str] = "none"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.zeros((len(texts), 0), np.float32)


class HashingEncoder(TextEncoder):
    """Counts words and pairs of neighbouring words, in as many columns as ``width``, by their hash: it learns nothing.

    A batch is hashed at once by numpy: a polynomial hash of every run of word characters, from one cumulative sum over all bytes.

    Args:
        width: columns.

    >>> HashingEncoder(8).encode(["fit(x)", "x fit", ""]).round(1)
    array([[0. , 0. , 0. , 0.7, 0. , 0.7, 0. , 0.7],
           [0.7, 0. , 0. , 0.7, 0. , 0. , 0. , 0.7],
           [0. , 0. , 0. , 0. , 0. , 0. , 0. , 0. ]], dtype=float32)
    """

    kind: ClassVar[str] = "hashing"

    def __init__(self, width: int = 256) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.width = width

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        parts = [text.encode("utf-8", "replace") + b"\0" for text in texts]
        row, token = _hashed_tokens(parts)
        neighbours = row[1:] == row[:-1]
        with np.errstate(over="ignore"):
            pair = scramble(token[:-1] * _PAIR + token[1:])[neighbours]
        hashes = np.concatenate([token, pair])
        rows = np.concatenate([row, row[1:][neighbours]])
        cell = rows * self.width + (hashes % np.uint64(self.width)).astype(np.int64)
        counts = np.bincount(cell, minlength=len(texts) * self.width).reshape(len(texts), self.width)
        return np.log1p(counts).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "width": self.width}


class TfidfEncoder(TextEncoder):
    """The commonest words and pairs of words of the executed texts, weighted by how rare they are.

    Args:
        max_features: columns at most.
    """

    kind: ClassVar[str] = "tfidf"

    def __init__(self, max_features: int = 400) -> None:
        if max_features < 1:
            raise ValueError(f"max_features must be at least 1, got {max_features}")
        self.max_features = max_features
        self._vectorizer: Any = None

    def fitted_on(self, texts: Sequence[str]) -> TextEncoder:
        fitted = copy(self)
        fitted._vectorizer = None
        if any(texts):
            from sklearn.feature_extraction.text import TfidfVectorizer

            vectorizer = TfidfVectorizer(
                token_pattern=WORD, ngram_range=(1, 2), max_features=self.max_features, sublinear_tf=True, dtype=np.float32
            )
            try:
                fitted._vectorizer = vectorizer.fit(texts)
            except ValueError:  # not one word in all that was executed
                fitted._vectorizer = None
        return fitted

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._vectorizer is None or not len(texts):
            width = 0 if self._vectorizer is None else len(self._vectorizer.vocabulary_)
            return np.zeros((len(texts), width), np.float32)
        vectors: NDArray[np.float32] = self._vectorizer.transform(texts).toarray().astype(np.float32)
        return vectors

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_features": self.max_features}


class NeuralEncoder(TextEncoder):
    """A network's vectors, and of them the directions in which the executed texts differ most.

    Args:
        network: a model of ``transformers`` with hidden states, such as ``AutoModel`` loads.
        tokenizer: its tokenizer.
        name: what the network is called: a saved model can be loaded where the encoder has the same name.
        components: directions kept.
        max_tokens: of a text; the beginning of a longer one counts.
        batch_size: texts in one pass.
        memory: texts whose vectors are kept.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        *,
        name: str = "",
        components: int = 32,
        max_tokens: int = 256,
        batch_size: int = 16,
        memory: int = 16_384,
    ) -> None:
        for what, value in (
            ("components", components),
            ("max_tokens", max_tokens),
            ("batch_size", batch_size),
            ("memory", memory),
        ):
            if value < 1:
                raise ValueError(f"{what} must be at least 1, got {value}")
        self.network, self.tokenizer = network.eval(), tokenizer
        self.name = name or str(getattr(network, "name_or_path", "") or type(network).__name__)
        self.components, self.max_tokens, self.batch_size, self.memory = components, max_tokens, batch_size, memory
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._pca: Any = None

    def fitted_on(self, texts: Sequence[str]) -> TextEncoder:
        from sklearn.decomposition import PCA

        vectors = self.raw(texts)
        fitted = copy(self)  # shares the network and what is remembered
        fitted._pca = None
        if len(vectors) >= 2:
            fitted._pca = PCA(min(self.components, *vectors.shape), svd_solver="full").fit(vectors.astype(np.float64))
        return fitted

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._pca is None:
            return np.zeros((len(texts), 0), np.float32)
        mean, directions = self._pca.mean_, self._pca.components_
        # Row by row: a product of matrices rounds differently for other batches, and the trees would see it.
        centred = self.raw(texts).astype(np.float64) - mean
        return np.array([directions @ row for row in centred], np.float32).reshape(len(texts), -1)

    def raw(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The network's own vectors: float32, shape (B, H); each text is computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        by_length = sorted(new, key=len)
        found: dict[str, NDArray[np.float32]] = {}
        for start in range(0, len(by_length), self.batch_size):
            chunk = by_length[start : start + self.batch_size]
            found |= dict(zip(chunk, self._compute(chunk), strict=True))
        rows = [found[text] if text in found else self._vectors[text] for text in texts]
        self._keep(found)
        return np.stack(rows) if rows else np.zeros((0, self.network.config.hidden_size), np.float32)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "components": self.components, "max_tokens": self.max_tokens}

    def remembered(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        return self.raw(texts)

    def remember(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._keep(dict(zip(texts, vectors, strict=True)))

    def _keep(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        self._vectors |= vectors
        while len(self._vectors) > self.memory:
            self._vectors.popitem(last=False)

    def _compute(self, texts: list[str]) -> NDArray[np.float32]:
        """The mean of the last hidden states over each text's tokens."""
        from wmrl_gym.world_models.torch_state import predicting

        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # A text without tokens has no mean.
        filled = [text or " " for text in texts]
        with predicting():
            given = self.tokenizer(
                filled, padding=True, padding_side="right", truncation=True, max_length=self.max_tokens, return_tensors="pt"
            ).to(self.network.device)
            hidden = self.network(**given).last_hidden_state.float()
            mask = given["attention_mask"][:, :, None].float()
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            vectors: NDArray[np.float32] = self._scaled(mean).cpu().numpy().astype(np.float32)
        return vectors

    def _scaled(self, mean: Any) -> Any:
        return mean


class SentenceEncoder(NeuralEncoder):
    """A sentence encoder of ``transformers``, such as all-MiniLM-L6-v2: mean-pooled, of length 1."""

    kind: ClassVar[str] = "sentence"

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", dtype: str = "float32", **options: Any) -> SentenceEncoder:
        """Load a network from a folder, or by a name that is in the cache of the hub; ``options`` as the class has them."""
        return cls(*_load(path, device=device, dtype=dtype), name=Path(path).name, **options)

    def _scaled(self, mean: Any) -> Any:
        import torch

        return torch.nn.functional.normalize(mean, dim=-1)


class CausalLMEncoder(NeuralEncoder):
    """A causal language model's last hidden states, mean-pooled: the agent's own, so that no other model teaches anything.

    A model with a head, as ``AutoModelForCausalLM`` loads it, is taken without its head.
    """

    kind: ClassVar[str] = "causal_lm"

    def __init__(self, network: Any, tokenizer: Any, **options: Any) -> None:
        headless = network.base_model if hasattr(network, "lm_head") else network
        options.setdefault("name", str(getattr(network, "name_or_path", "")))
        super().__init__(headless, tokenizer, **options)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", dtype: str = "float32", **options: Any) -> CausalLMEncoder:
        """Load a network from a folder, or by a name that is in the cache of the hub; ``options`` as the class has them."""
        return cls(*_load(path, device=device, dtype=dtype), name=Path(path).name, **options)


def make_encoder(settings: dict[str, Any]) -> TextEncoder | None:
    """The encoder that has these settings; None for one that needs a network."""
    options = dict(settings)
    kind = options.pop("kind")
    for simple in (NoEncoder, HashingEncoder, TfidfEncoder):
        if simple.kind == kind:
            return simple(**options)
    return None


def _load(path: str | Path, *, device: str, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from wmrl_gym.world_models.torch_state import learning

    with learning():
        network = AutoModel.from_pretrained(str(path), dtype=getattr(torch, dtype)).to(device)
    return network, AutoTokenizer.from_pretrained(str(path))


_IS_WORD = np.array([chr(byte).isalnum() or byte == ord("_") or byte >= 128 for byte in range(256)])
_BASE = np.uint64(WEYL)
_BASE_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))
_PAIR = np.uint64(0xD1B54A32D192ED03)


def _hashed_tokens(parts: list[bytes]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """For each run of word characters: which part it is in, and its hash.

    With H(i) the sum of byte(j) base^j over j < i, the bytes from a to b have (H(b) - H(a)) base^-a, wherever they stand.
    """
    data = np.frombuffer(b"".join(parts), np.uint8)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    word = _IS_WORD[data]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], word, [False]]).astype(np.int8)))
    start, end = edges[::2], edges[1::2]
    power, back = _powers(1 << (len(data) - 1).bit_length())
    with np.errstate(over="ignore"):
        summed = np.zeros(len(data) + 1, np.uint64)
        np.cumsum((data.astype(np.uint64) + np.uint64(1)) * power[: len(data)], out=summed[1:])
        token = scramble((summed[end] - summed[start]) * back[start])
    row = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[start]
    return row, token


@functools.lru_cache(maxsize=4)
def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The base's powers from 0, and their inverses, modulo 2^64: uint64, shape (count,) each."""
    with np.errstate(over="ignore"):
        pair = [np.cumprod(np.concatenate([[np.uint64(1)], np.full(count - 1, base)])) for base in (_BASE, _BASE_INVERSE)]
    return pair[0], pair[1]
