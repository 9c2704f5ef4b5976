"""Contextual bandits with known truth, and the ways in which a world model can be wrong about them; vectorised over seeds.

Axes: S seeds (each its own bandit), C contexts, A arms, D policy features, G rollouts a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
CONTEXTS, ARMS, FEATURES, GROUP = 32, 32, 128, 8
KINDS = ("none", "affine", "mono", "ctx", "jump", "arm", "drift", "spike")
MILD, HARD = KINDS[:5], KINDS[5:]


@dataclass(frozen=True, slots=True)
class Worlds:
    """S bandits.

    Args:
        phi: float32, shape (S, C, A, D): the policy's features; unit variance of ``phi @ theta`` for unit-norm theta.
        truth: float32, shape (S, C, A): ladder rewards in [0, 1].
        lure: float32, shape (S, C, A): a direction unrelated to the truth, half of it seen by the policy; unit variance.
        gamma: float32, shape (S, C, 1): exponent of each context's warp.
        spiked: bool, shape (S, C, A): bad arms that score high.
        spread: float32, shape (S, C, A): noise of each arm where it is heteroscedastic, root mean square 1.
        start: float64, shape (S,): return of the uniform policy.
        best: float64, shape (S,): return of the best policy of the class.
    """

    phi: Array
    truth: Array
    lure: Array
    gamma: Array
    spiked: NDArray[np.bool_]
    spread: Array
    start: NDArray[np.float64]
    best: NDArray[np.float64]


def softmax(logits: Array, axis: int) -> Array:
    """Softmax along ``axis``, in place of a temporary copy."""
    out: Array = np.exp(logits - logits.max(axis=axis, keepdims=True))
    out /= out.sum(axis=axis, keepdims=True)
    return out


def _ladder(latent: Array) -> Array:
    """The ladder of the paper: the worst 10% earn 0, then 20% .1, 10% .2, and the rest .5 to 1 by their rank in the context."""
    rank = latent.argsort(axis=-1).argsort(axis=-1) / (ARMS - 1.0)
    percentile = np.clip((rank - 0.4) / 0.6, 0.0, 1.0)
    reward = np.select([rank < 0.1, rank < 0.3, rank < 0.4], [0.0, 0.1, 0.2], 0.5 + 0.5 * percentile)
    return reward.astype(np.float32)


def _unit(values: Array) -> Array:
    centred = values - values.mean(axis=(1, 2), keepdims=True)
    out: Array = centred / centred.std(axis=(1, 2), keepdims=True)
    return out.astype(np.float32)


def make_worlds(seeds: range) -> Worlds:
    """One bandit a seed; a seed's bandit does not depend on which others are made with it."""
    parts: list[tuple[Any, ...]] = [_make_one(np.random.default_rng([71, seed])) for seed in seeds]
    phi, truth, lure, gamma, spiked, spread = (np.stack([part[i] for part in parts]) for i in range(6))
    start = truth.mean(axis=(1, 2), dtype=np.float64)
    return Worlds(phi, truth, lure, gamma, spiked, spread, start, _best_return(phi, truth))


def _make_one(rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
    shape = (1, CONTEXTS, ARMS)
    phi = rng.standard_normal((*shape, FEATURES)).astype(np.float32)
    directions = rng.standard_normal((FEATURES, 2)).astype(np.float32)
    latent, lure = (_unit(phi @ direction) for direction in directions.T)
    latent = latent + 2.0 * rng.standard_normal(shape).astype(np.float32)
    truth = _ladder(latent)
    # 5% of all arms, among those that earn at most .2; one feature betrays them, as a hack is easy to repeat once found.
    order = np.where(truth <= 0.2, rng.random(shape), np.inf)
    spiked = order <= np.sort(order.ravel())[int(0.05 * CONTEXTS * ARMS) - 1]
    phi[..., -1] = 3.0 * spiked + rng.standard_normal(shape)
    lure = _unit(lure + 0.5 * rng.standard_normal(shape).astype(np.float32))
    gamma = np.exp(rng.uniform(-np.log(3.0), np.log(3.0), (1, CONTEXTS, 1))).astype(np.float32)
    spread = np.exp(0.8 * rng.standard_normal(shape)).astype(np.float32)
    spread /= np.sqrt((spread**2).mean())
    return phi[0], truth[0], lure[0], gamma[0], spiked[0], spread[0]


def _best_return(phi: Array, truth: Array, steps: int = 400, rate: float = 0.05) -> NDArray[np.float64]:
    """Return of the best policy of the class, by exact gradient ascent."""
    seeds = len(phi)
    flat = phi.reshape(seeds, -1, FEATURES)
    theta = Adam((seeds, FEATURES, 1), np.array([rate]))
    best = np.zeros(seeds)
    for _ in range(steps):
        policy = softmax((flat @ theta.value).reshape(truth.shape), axis=-1)
        returns = (policy * truth).sum(axis=-1)
        best = np.maximum(best, returns.mean(axis=-1, dtype=np.float64))
        slope = policy * (truth - returns[..., None])
        theta.step((slope.reshape(seeds, 1, -1) @ flat).transpose(0, 2, 1) / CONTEXTS)
    return best


class Adam:
    """Adam ascent on parameters of shape (S, D, M), with a learning rate a method: shape (M,)."""

    def __init__(self, shape: tuple[int, int, int], rate: NDArray[np.float64]) -> None:
        self.value: Array = np.zeros(shape, dtype=np.float32)
        self._rate = rate.astype(np.float32)
        self._mean, self._square = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        self._steps = 0

    def step(self, gradient: Array) -> None:
        """One ascent step."""
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.01 * (gradient**2 - self._square)
        mean = self._mean / (1.0 - 0.9**self._steps)
        square = self._square / (1.0 - 0.99**self._steps)
        self.value += self._rate * mean / (np.sqrt(square) + 1e-8)


# What the world model predicts before its noise, given the truth, the fraction of training done, and how far the policy has
# moved (0 at the start, towards 1); all broadcastable to (S, C, A).
Bias = Callable[[Worlds, float, Array], Array]


def _mono(truth: Array) -> Array:
    return (1.0 - (1.0 - truth) ** 3).astype(np.float32)


def _drift(w: Worlds, moved: Array) -> Array:
    return (1.0 - moved) * w.truth + moved * (_mono(w.truth) + 0.3 * w.lure)


BIASES: dict[str, Bias] = {
    "none": lambda w, done, moved: w.truth,
    "affine": lambda w, done, moved: 0.25 + 0.5 * w.truth,
    "mono": lambda w, done, moved: _mono(w.truth),
    "ctx": lambda w, done, moved: w.truth**w.gamma,
    "jump": lambda w, done, moved: w.truth if done < 0.5 else _mono(w.truth),
    "arm": lambda w, done, moved: w.truth + 0.3 * w.lure,
    "drift": lambda w, done, moved: _drift(w, moved),
    "spike": lambda w, done, moved: np.where(w.spiked, np.float32(0.95), w.truth),
}
