"""Evaluating a trained ensemble: each row by its own member, or by all of them, with activations that stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu

from wmrl_gym.world_models.dynamics.networks import EnsembleMLP, sigmoid

_ROWS = 512
"""Rows evaluated at once: the activations of more would travel to memory and back between layers."""
_FEW = 1024
"""Up to so many rows the number of calls costs more than the arithmetic: all members' rows go through each layer together."""

_Arrays = tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Some members of an ensemble, laid out for evaluation only.

    Args:
        layers: for each member, for each layer its weight, float32, shape (in, out), and bias, shape (out,).
        first: the first layers: weight, shape (E, in, out), and bias, shape (E, 1, out).
        wide: the members' first layers side by side: weight, shape (in, E * out), and bias, shape (E * out,).
        rest: the other layers, each with the members along its first axis: weight (E, in, out) and bias (E, 1, out).
        alone: ``layers``, as arrays that share their memory.
        together: ``first`` and ``rest``, as arrays that share their memory.
    """

    layers: tuple[tuple[tuple[Tensor, Tensor], ...], ...]
    first: tuple[Tensor, Tensor]
    wide: tuple[Tensor, Tensor]
    rest: tuple[tuple[Tensor, Tensor], ...]
    alone: tuple[_Arrays, ...] = field(init=False)
    together: _Arrays = field(init=False)

    def __post_init__(self) -> None:
        """Let numpy see the weights too."""
        object.__setattr__(self, "alone", tuple(map(_arrays, self.layers)))
        object.__setattr__(self, "together", _arrays((self.first, *self.rest)))

    @classmethod
    def of(cls, network: EnsembleMLP, members: Sequence[int]) -> Evaluator:
        """For the given members of ``network``, copied."""
        chosen = network.members(members)
        pairs = list(zip(chosen.weights, chosen.biases, strict=True))
        layers = tuple(tuple((weight[i].clone(), bias[i, 0].clone()) for weight, bias in pairs) for i in range(len(members)))
        weight, bias = pairs[0]
        wide = weight.transpose(0, 1).reshape(weight.shape[1], -1).contiguous(), bias.reshape(-1).clone()
        return cls(layers, (weight, bias), wide, tuple(pairs[1:]))

    def each(self, x: Tensor, member: NDArray[np.int64]) -> Tensor:
        """To each row the answer of its own member, and of no other: (B, in) -> (B, out).

        Args:
            x: float32, shape (B, in).
            member: int64, shape (B,). Place among the members.
        """
        if len(member) == 1:
            return torch.from_numpy(_alone(x.numpy(), self.alone[int(member[0])]))
        order = np.argsort(member, kind="stable")
        counts = np.bincount(member, minlength=len(self.layers))
        ends = np.cumsum(counts)
        if len(member) <= _FEW:
            # A numpy call costs a fraction of one of torch's.
            which, place = member[order], np.arange(len(member)) - np.repeat(ends - counts, counts)
            padded = np.zeros((len(counts), int(counts.max()), x.shape[1]), np.float32)
            padded[which, place] = x.numpy()[order]
            answers = np.empty((len(member), self._width), np.float32)
            answers[order] = self._together(torch.from_numpy(padded)).numpy()[which, place]
            return torch.from_numpy(answers)
        rows = torch.from_numpy(order)
        out = torch.empty(len(x), self._width)
        x, found = x[rows], torch.empty(len(x), self._width)
        for each, (count, end) in enumerate(zip(counts.tolist(), ends.tolist(), strict=True)):
            if count:
                self._through(x[end - count : end], each, found[end - count : end])
        out[rows] = found
        return out

    def every(self, x: Tensor) -> Tensor:
        """The answers of all members to the same rows: (B, in) -> (E, B, out)."""
        if len(x) == 1:
            return torch.from_numpy(_alone(x.numpy()[None], self.together))
        if len(x) <= _ROWS // 2:
            return self._side_by_side(x)
        out = torch.empty(len(self.layers), len(x), self._width)
        for start in range(0, len(x), _ROWS // 2):
            out[:, start : start + _ROWS // 2] = self._side_by_side(x[start : start + _ROWS // 2])
        return out

    def _side_by_side(self, x: Tensor) -> Tensor:
        """The same for few rows: the first layers of all members are one product."""
        return self._go_on(torch.addmm(self.wide[1], x, self.wide[0]).view(len(x), len(self.layers), -1).transpose(0, 1))

    @property
    def _width(self) -> int:
        return len(self.layers[0][-1][1])

    def _together(self, x: Tensor) -> Tensor:
        """Each member's answers to its own rows: (E, B, in) -> (E, B, out)."""
        return self._go_on(torch.baddbmm(self.first[1], x, self.first[0]))

    def _go_on(self, h: Tensor) -> Tensor:
        """Through the layers after the first, whose answers ``h`` are overwritten: (E, B, hidden) -> (E, B, out)."""
        for weight, bias in self.rest:
            h = torch.baddbmm(bias, silu(h, inplace=True), weight)
        return h

    def _through(self, x: Tensor, member: int, out: Tensor) -> Tensor:
        """One member's answers, written to ``out``."""
        *hidden, (last, offset) = self.layers[member]
        # The same memory again and again: fresh pages would cost more than the arithmetic.
        scratch = [torch.empty(min(_ROWS, len(x)), len(bias)) for _, bias in hidden]
        for start in range(0, len(x), _ROWS):
            h = x[start : start + _ROWS]
            n = len(h)
            for (weight, bias), into in zip(hidden, scratch, strict=True):
                h = silu(torch.addmm(bias, h, weight, out=into[:n]), inplace=True)
            torch.addmm(offset, h, last, out=out[start : start + n])
        return out


def _arrays(layers: Sequence[tuple[Tensor, Tensor]]) -> _Arrays:
    return tuple((weight.numpy(), bias.numpy()) for weight, bias in layers)


def _alone(x: NDArray[np.float32], layers: _Arrays) -> NDArray[np.float32]:
    """The answers to a single row, (..., 1, in) -> (..., 1, out): a call of numpy's costs a fraction of one of torch's."""
    *hidden, (last, offset) = layers
    for weight, bias in hidden:
        x = x @ weight + bias
        x *= sigmoid(x)
    return x @ last + offset
