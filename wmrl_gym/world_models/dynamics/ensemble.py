"""The networks of a probabilistic ensemble: every member's weights in one tensor a layer, and how quickly they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu, softplus

from wmrl_gym.lazy import renamed
from wmrl_gym.world_models.torch_state import predicting

LOG_VARIANCE = (-12.0, 2.0)
"""Bounds of the predicted log-variances, in units of the normalised targets."""
_MIN_SCALE = 1e-8
_FAR = np.float32(10.0)
"""Inputs are taken at most so many standard deviations from the mean: nothing was learnt beyond."""
_PADDED = 128
"""Up to so many rows the number of calls costs more than the arithmetic: one product takes all members, padded alike."""
_BLOCK = 512
"""Rows evaluated at once: the activations of more would travel to memory and back between layers."""

_Layers = Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class Scale:
    """A normalisation: ``(x - mean) / std``.

    Args:
        mean: float64, shape (n,).
        std: float64, shape (n,), positive.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def of(cls, data: NDArray[np.float32], *, constant: float) -> Scale:
        """The normalisation of ``data``, shape (N, n); columns that never change get the standard deviation ``constant``."""
        mean, std = data.mean(axis=0, dtype=np.float64), data.std(axis=0, dtype=np.float64)
        # Float32 keeps seven digits: less spread than that is rounding, not data.
        changes = std > np.maximum(1e-6 * np.abs(mean), _MIN_SCALE)
        return cls(mean, np.where(changes, std, constant))

    def inputs(self, x: NDArray[np.float64] | NDArray[np.float32]) -> NDArray[np.float32]:
        """``x``, shape (B, n), in standard deviations from the mean, cut off where nothing was learnt."""
        scaled = self.targets(x)
        return np.minimum(np.maximum(scaled, -_FAR, out=scaled), _FAR, out=scaled)

    def targets(self, y: NDArray[np.float64] | NDArray[np.float32]) -> NDArray[np.float32]:
        """``y``, shape (B, n), in standard deviations from the mean."""
        return ((y - self.mean) / self.std).astype(np.float32)

    @classmethod
    def joined(cls, *scales: Scale) -> Scale:
        """The normalisation of columns that stand side by side."""
        return cls(np.concatenate([scale.mean for scale in scales]), np.concatenate([scale.std for scale in scales]))


@dataclass(frozen=True, slots=True)
class EnsembleMLP:
    """A multi-layer perceptron (SiLU) for each of E members.

    Args:
        weights: for each layer, float32, shape (E, in, out).
        biases: for each layer, float32, shape (E, 1, out).
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def random(cls, sizes: Sequence[int], n_members: int, rng: np.random.Generator) -> EnsembleMLP:
        """An untrained network; the last layer is small, so that it predicts the mean of its targets."""
        weights, biases = [], []
        for layer, (n_in, n_out) in enumerate(pairwise(sizes)):
            gain = 0.1 if layer == len(sizes) - 2 else 1.0
            drawn = rng.standard_normal((n_members, n_in, n_out), dtype=np.float32) * np.float32(gain / n_in**0.5)
            weights.append(torch.from_numpy(drawn))
            biases.append(torch.from_numpy(np.zeros((n_members, 1, n_out), np.float32)))
        return cls(tuple(weights), tuple(biases))

    @property
    def n_members(self) -> int:
        """E."""
        return len(self.weights[0])

    @property
    def parameters(self) -> list[Tensor]:
        """All tensors, each with the members along its first axis."""
        return [*self.weights, *self.biases]

    def with_parameters(self, parameters: Sequence[Tensor]) -> EnsembleMLP:
        """The same network with other tensors, in the order of :attr:`parameters`."""
        n = len(self.weights)
        return EnsembleMLP(tuple(parameters[:n]), tuple(parameters[n:]))

    def members(self, index: Sequence[int]) -> EnsembleMLP:
        """The network of some members only, copied, free of gradients."""
        return self.with_parameters([tensor.detach()[list(index)].contiguous() for tensor in self.parameters])

    def all(self, x: Tensor) -> Tensor:
        """Every member's answer to its own inputs: (E, B, in) -> (E, B, out)."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = silu(x) if layer < last else x
        return x


@dataclass(frozen=True, slots=True)
class MemberRows:
    """Which member answers each of B rows.

    Args:
        member: int64, shape (B,). Place among the members.
        order: int64, shape (B,). The rows, those of one member after those of another.
        counts: for each member, how many rows it has.
    """

    member: NDArray[np.int64]
    order: NDArray[np.int64]
    counts: list[int]

    @classmethod
    def of(cls, member: NDArray[np.int64], n_members: int) -> MemberRows:
        """Sort B rows by their members."""
        narrow = member.astype(np.uint8) if n_members <= 256 else member  # so narrow, they are sorted by counting
        return cls(member, np.argsort(narrow, kind="stable"), np.bincount(member, minlength=n_members).tolist())


class Members:
    """Some members of an ensemble, laid out to answer: each row by its own member, or by all of them.

    Args:
        network: the ensemble.
        members: which of its members.
    """

    def __init__(self, network: EnsembleMLP, members: Sequence[int]) -> None:
        chosen = network.members(members)
        self.n, self.width = len(members), chosen.weights[-1].shape[2]
        self._layers = tuple(zip(chosen.weights, chosen.biases, strict=True))
        self._alone = tuple((weight.numpy(), bias.numpy()) for weight, bias in self._layers)
        *hidden, (weight, bias) = self._layers
        self._hidden = [list(zip(weights, biases[:, 0], strict=True)) for weights, biases in hidden]
        self._widest = max(weights.shape[2] for weights, _ in hidden)
        self._last = list(zip(weight.transpose(1, 2).contiguous(), bias.transpose(1, 2), strict=True))
        # The first layers side by side: all members take the same rows.
        weight, bias = self._layers[0]
        self._first = weight.transpose(0, 1).reshape(weight.shape[1], -1).contiguous(), bias.reshape(-1)

    def own(self, x: NDArray[np.float32], rows: MemberRows) -> NDArray[np.float32]:
        """To each row the answer of its own member, and of no other: (B, in) -> (B, out), float32."""
        if len(x) == 1:
            member = int(rows.member[0])
            return self._through(x, [(weight[member], bias[member]) for weight, bias in self._alone])
        found = np.empty((len(x), self.width), np.float32)
        with predicting():
            found[rows.order] = self._padded(x, rows) if len(x) <= _PADDED else self._sorted(x, rows)
        return found

    def every(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The answers of all members to the same rows: (B, in) -> (E, B, out), float32."""
        if len(x) == 1:
            return self._through(x[None], self._alone)
        found = np.empty((self.n, len(x), self.width), np.float32)
        weight, bias = self._first
        with predicting():
            for start in range(0, len(x), _BLOCK // 2):
                block = torch.from_numpy(x[start : start + _BLOCK // 2])
                first = torch.addmm(bias, block, weight).view(len(block), self.n, -1).transpose(0, 1)
                found[:, start : start + _BLOCK // 2] = self._after_first(first).numpy()
        return found

    def _sorted(self, x: NDArray[np.float32], rows: MemberRows) -> NDArray[np.float32]:
        """The answers of :meth:`own`, in the order of the members."""
        x = x[rows.order]
        ends = np.cumsum([0, *rows.counts])
        # Memory of numpy's, and the same again and again: fresh pages take more time than the arithmetic, and where torch is told
        # to be deterministic it fills what it allocates.
        scratch = tuple(torch.from_numpy(np.empty(min(_BLOCK, len(x)) * self._widest, np.float32)) for _ in range(2))
        answers = np.empty((self.width, len(x)), np.float32)
        for start in range(0, len(x), _BLOCK):
            counts = np.diff(np.clip(ends - start, 0, _BLOCK)).tolist()
            self._block(
                torch.from_numpy(x[start : start + _BLOCK]), counts, scratch, torch.from_numpy(answers[:, start : start + _BLOCK])
            )
        return answers.T

    def _block(self, x: Tensor, counts: list[int], scratch: tuple[Tensor, ...], answers: Tensor) -> None:
        """The answers to sorted rows, (B, in), of which each member has so many, written to ``answers``, shape (out, B)."""
        asked = [member for member, count in enumerate(counts) if count]
        counts = [counts[member] for member in asked]
        parts = x.split_with_sizes(counts)
        for number, layer in enumerate(self._hidden):
            width = len(layer[0][1])
            hidden = scratch[number % 2][: len(x) * width].view(len(x), width)
            into = hidden.split_with_sizes(counts)
            for member, part, out in zip(asked, parts, into, strict=True):
                weight, bias = layer[member]
                torch.addmm(bias, part, weight, out=out)
            silu(hidden, inplace=True)
            parts = into
        # The last layer is narrow, and a product with few columns takes twice as long as one with few rows.
        for member, part, out in zip(asked, parts, answers.split_with_sizes(counts, 1), strict=True):
            weight, bias = self._last[member]
            torch.addmm(bias, weight, part.t(), out=out)

    def _padded(self, x: NDArray[np.float32], rows: MemberRows) -> NDArray[np.float32]:
        """The same for few rows: each member gets as many as the one that has most."""
        counts = np.array(rows.counts)
        which, place = rows.member[rows.order], np.arange(len(x)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = np.zeros((self.n, int(counts.max()), x.shape[1]), np.float32)
        padded[which, place] = x[rows.order]
        weight, bias = self._layers[0]
        answers = self._after_first(torch.baddbmm(bias, torch.from_numpy(padded), weight)).numpy()
        return np.asarray(answers[which, place])

    def _after_first(self, hidden: Tensor) -> Tensor:
        """Through the layers after the first, whose answers ``hidden`` are overwritten: (E, B, hidden) -> (E, B, out)."""
        for weight, bias in self._layers[1:]:
            hidden = torch.baddbmm(bias, silu(hidden, inplace=True), weight)
        return hidden

    @staticmethod
    def _through(x: NDArray[np.float32], layers: _Layers) -> NDArray[np.float32]:
        """The answers to a single row, (..., 1, in) -> (..., 1, out): a call of numpy's costs a fraction of one of torch's."""
        *hidden, (last, offset) = layers
        for weight, bias in hidden:
            x = x @ weight
            x += bias
            x *= sigmoid(x)
        return x @ last + offset


def bounded_log_variance(raw: Tensor) -> Tensor:
    """``raw``, bent smoothly to lie within :data:`LOG_VARIANCE`."""
    low, high = LOG_VARIANCE
    return softplus((high - low) - softplus(high - raw)) + low


def bounded_variance(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """The exponential of :func:`bounded_log_variance`, which comes to a scaled sigmoid plus a constant: for predictions.

    >>> raw = torch.linspace(-20, 8, 57)
    >>> np.allclose(bounded_variance(raw.numpy()), torch.exp(bounded_log_variance(raw)), rtol=1e-4)
    True
    """
    variance = sigmoid(raw - _HIGH)
    variance *= _VARIANCES[1]
    variance += _VARIANCES[0]
    return variance


_HIGH = np.float32(LOG_VARIANCE[1])
_VARIANCES = np.exp(np.array(LOG_VARIANCE, np.float32))


def sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logistic function, in float32 throughout: an order of magnitude quicker than scipy's."""
    out: NDArray[np.float32] = np.minimum(-x, np.float32(80.0))  # the exponential of more overflows
    np.exp(out, out=out)
    out += np.float32(1.0)
    return np.divide(np.float32(1.0), out, out=out)


def rescale_inputs(network: EnsembleMLP, old: Scale, new: Scale) -> None:
    """Change the first layer so that inputs normalised by ``new`` give what those normalised by ``old`` gave. In place.

    So normalisation can follow the data while all that was learnt stays.
    """
    weight, bias = network.weights[0], network.biases[0]
    bias += (torch.from_numpy((new.mean - old.mean) / old.std).float() @ weight).unsqueeze(1)
    weight *= torch.from_numpy(new.std / old.std).float()[:, None]


def rescale_outputs(network: EnsembleMLP, old: Scale, new: Scale, *, mean: slice, log_variance: slice) -> None:
    """Change the last layer so that its Gaussian heads, read with ``new``, say what they said with ``old``. In place."""
    weight, bias = network.weights[-1], network.biases[-1]
    ratio = torch.from_numpy(old.std / new.std).float()
    weight[..., mean] *= ratio
    bias[..., mean] = bias[..., mean] * ratio + torch.from_numpy((old.mean - new.mean) / new.std).float()
    bias[..., log_variance] += 2 * torch.log(ratio)


__getattr__ = renamed(__name__, {"Rows": "MemberRows"})
