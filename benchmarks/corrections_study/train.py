"""Train many methods side by side on the same bandits, with the same random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.corrections_study.methods import FRACTION, Batch, Entry, Mask
from benchmarks.corrections_study.world import (
    BIASES,
    FEATURES,
    GROUP,
    Adam,
    Array,
    Worlds,
    softmax,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way of being wrong.

    Args:
        kind: of bias, a key of ``BIASES``.
        sigma: root mean square of the noise.
        hetero: each arm has its own noise level.
    """

    kind: str
    sigma: float = 0.15
    hetero: bool = False

    @property
    def label(self) -> str:
        """As it is written in tables and files."""
        return f"{self.kind}/{'hetero' if self.hetero else self.sigma}"


def _choose(rng: np.random.Generator, shape: tuple[int, int], count: int) -> Mask:
    """``count`` of ``shape[1]`` places, at random for each row; bool."""
    rank = rng.random(shape).argsort(axis=1).argsort(axis=1)
    return rank < count


def _due(step: int, per_step: float) -> int:
    return int(np.floor(round(per_step * (step + 1), 9)) - np.floor(round(per_step * step, 9)))


@dataclass(frozen=True, slots=True)
class Draws:
    """A step's random numbers, the same for every method: (S, C, G) each."""

    uniform: Array
    noise: Array
    by_group: Mask
    by_episode: Mask


def draw(rng: np.random.Generator, step: int, seeds: int, contexts: int) -> Draws:
    """The random numbers of one step."""
    shape = (seeds, contexts, GROUP)
    groups = _choose(rng, (seeds, contexts), _due(step, FRACTION * contexts))
    episodes = _choose(rng, (seeds, contexts * GROUP), _due(step, FRACTION * contexts * GROUP)).reshape(shape)
    uniform = rng.random(shape, dtype=np.float32)
    noise = rng.standard_normal(shape, dtype=np.float32)
    return Draws(uniform, noise, np.broadcast_to(groups[..., None], shape), episodes)


def roll_out(worlds: Worlds, scenario: Scenario, policy: Array, draws: Draws, done: float) -> tuple[Batch, NDArray[np.int64]]:
    """Sample one step of one method: its batch, and the arms (S, C, G)."""
    cumulative = np.cumsum(policy, axis=-1)
    arms = (draws.uniform[..., None] * cumulative[:, :, None, -1:] > cumulative[:, :, None, :]).sum(axis=-1)
    arms = np.minimum(arms, policy.shape[-1] - 1)
    # Total variation from the uniform start: 0 at first, towards 1 as the policy concentrates.
    moved = 0.5 * np.abs(policy - 1.0 / policy.shape[-1]).sum(axis=-1).mean(axis=-1)
    table = BIASES[scenario.kind](worlds, done, moved[:, None, None].astype(np.float32))
    sigma = scenario.sigma * np.take_along_axis(worlds.spread, arms, -1) if scenario.hetero else np.float32(scenario.sigma)
    noise = np.broadcast_to(sigma, arms.shape).astype(np.float32)
    x = np.clip(np.take_along_axis(table, arms, -1) + noise * draws.noise, 0.0, 1.0).astype(np.float32)
    r = np.take_along_axis(worlds.truth, arms, -1)
    return Batch(x, r, draws.by_group, draws.by_episode, noise, arms, worlds.phi), arms


def coefficients(advantage: Array, arms: NDArray[np.int64], policy: Array) -> Array:
    """What each arm's features are multiplied by in ``mean_i A_i grad log pi(a_i)``: shape (S, C * A)."""
    seeds, contexts, arms_n = policy.shape
    flat = (np.arange(seeds * contexts).reshape(seeds, contexts, 1) * arms_n + arms).ravel()
    hit = np.bincount(flat, advantage.ravel(), minlength=policy.size).reshape(policy.shape)
    out = (hit - policy * advantage.sum(axis=-1)[..., None]) / advantage[0].size
    flat_out: Array = out.reshape(seeds, -1).astype(np.float32)
    return flat_out


def train(worlds: Worlds, scenario: Scenario, entries: list[Entry], *, steps: int, seed: int = 0) -> NDArray[np.float64]:
    """True return after each step, 0 at the start and 1 at the optimum: shape (M, S, steps)."""
    seeds, contexts, arms_n = worlds.truth.shape
    flat = worlds.phi.reshape(seeds, -1, FEATURES)
    theta = Adam((seeds, FEATURES, len(entries)), np.array([entry.rate for entry in entries]))
    methods = [entry.make(seeds) for entry in entries]
    rng = np.random.default_rng([72, seed])
    out = np.zeros((len(entries), seeds, steps))
    span = worlds.best - worlds.start
    policies = softmax((flat @ theta.value).reshape(seeds, contexts, arms_n, -1), axis=2)
    for step in range(steps):
        draws = draw(rng, step, seeds, contexts)
        main, probes, owner = [], [], []
        for k, method in enumerate(methods):
            policy = np.ascontiguousarray(policies[..., k])
            batch, arms = roll_out(worlds, scenario, policy, draws, step / steps)
            main.append(coefficients(method.advantage(batch), arms, policy))
            for probe in method.probes:
                probes.append(coefficients(probe, arms, policy))
                owner.append(k)
        gradient = flat.transpose(0, 2, 1) @ np.stack(main + probes, axis=-1)
        theta.step(gradient[..., : len(main)])
        for k in dict.fromkeys(owner):
            methods[k].observe(gradient[..., [len(main) + i for i, o in enumerate(owner) if o == k]])
        policies = softmax((flat @ theta.value).reshape(seeds, contexts, arms_n, -1), axis=2)
        returns = (policies * worlds.truth[..., None]).sum(axis=2).mean(axis=1, dtype=np.float64)
        out[:, :, step] = ((returns - worlds.start[:, None]) / span[:, None]).T
    return out
