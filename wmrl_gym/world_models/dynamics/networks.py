"""The networks of a probabilistic ensemble: every member's weights in one tensor a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu, softplus

LOG_VARIANCE = (-12.0, 2.0)
"""Bounds of the predicted log-variances, in units of the normalised targets."""
_MIN_SCALE = 1e-8
_FAR = np.float32(10.0)
"""Inputs are taken at most so many standard deviations from the mean: nothing was learnt beyond."""


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
        scaled = ((x - self.mean) / self.std).astype(np.float32)
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
        weights: for each layer float32, shape (E, in, out).
        biases: for each layer float32, shape (E, 1, out).
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def random(cls, sizes: Sequence[int], n_members: int, rng: np.random.Generator) -> EnsembleMLP:
        """New weights; those of the last layer are small, so that the first predictions are about the mean."""
        weights, biases = [], []
        for layer, (n_in, n_out) in enumerate(pairwise(sizes)):
            gain = 0.1 if layer == len(sizes) - 2 else 1.0
            drawn = rng.standard_normal((n_members, n_in, n_out), dtype=np.float32) * (gain / n_in**0.5)
            weights.append(torch.from_numpy(drawn))
            biases.append(torch.zeros(n_members, 1, n_out))
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
        """The network of some members only, free of gradients."""
        return self.with_parameters([tensor.detach()[list(index)].contiguous() for tensor in self.parameters])

    def all(self, x: Tensor) -> Tensor:
        """Every member's answer to its own inputs: (E, B, in) -> (E, B, out)."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = silu(x) if layer < last else x
        return x


def bounded_log_variance(raw: Tensor) -> Tensor:
    """``raw``, bent smoothly to lie within :data:`LOG_VARIANCE`."""
    low, high = LOG_VARIANCE
    return softplus((high - low) - softplus(high - raw)) + low


def bounded_variance(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """The exponential of :func:`bounded_log_variance`, which comes to a scaled sigmoid plus a constant: for evaluation.

    >>> raw = torch.linspace(-20, 8, 57)
    >>> np.allclose(bounded_variance(raw.numpy()), torch.exp(bounded_log_variance(raw)), rtol=1e-4)
    True
    """
    low, high = np.exp(np.array(LOG_VARIANCE, np.float32))
    return low + high * sigmoid(raw - np.float32(LOG_VARIANCE[1]))


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
