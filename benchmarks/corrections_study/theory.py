"""The paper's two theorems as measurements, and what each method does to the gradient of a fixed policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.corrections_study.methods import Entry, grpo
from benchmarks.corrections_study.train import Scenario, coefficients, draw, roll_out
from benchmarks.corrections_study.world import CONTEXTS, FEATURES, Adam, Array, Worlds, make_worlds, softmax
from wmrl_gym.corrections import BinnedIsotonic, SmoothMonotone, fuse_variances

Floats = NDArray[np.float64]


def halfway_policy(worlds: Worlds, steps: int = 25, rate: float = 0.02) -> Array:
    """A policy part of the way to the optimum, by exact ascent: shape (S, C, A)."""
    seeds = len(worlds.phi)
    flat = worlds.phi.reshape(seeds, -1, FEATURES)
    theta = Adam((seeds, FEATURES, 1), np.array([rate]))
    for _ in range(steps):
        policy = softmax((flat @ theta.value).reshape(worlds.truth.shape), axis=-1)
        slope = _slope(policy, worlds.truth).reshape(seeds, 1, -1)
        theta.step(((slope @ flat) / CONTEXTS).transpose(0, 2, 1).astype(np.float32))
    return softmax((flat @ theta.value).reshape(worlds.truth.shape), axis=-1)


def _slope(policy: Array, reward: Array) -> Array:
    out: Array = policy * (reward - (policy * reward).sum(axis=-1, keepdims=True))
    return out


def exact_gradient(worlds: Worlds, policy: Array, reward: Array) -> Floats:
    """The gradient of the mean of ``reward`` (S, C, A) under the policy: shape (S, D)."""
    flat = worlds.phi.reshape(len(policy), -1, FEATURES)
    out: Floats = (_slope(policy, reward).reshape(len(policy), 1, -1) @ flat)[:, 0].astype(np.float64) / CONTEXTS
    return out


def gradient_errors(
    entries: tuple[Entry, ...], scenario: Scenario, *, seeds: range, steps: int = 60
) -> dict[str, dict[str, float]]:
    """Squared bias, variance and mean squared error of each method's gradient, relative to the true gradient's square.

    The policy stands still while ``steps`` steps teach the calibrators and as many more are measured. Each method is scaled by
    the one number that fits its mean to the truth best: Adam does not see scales.
    """
    worlds = make_worlds(seeds)
    policy = halfway_policy(worlds)
    truth = exact_gradient(worlds, policy, worlds.truth)
    flat = worlds.phi.reshape(len(policy), -1, FEATURES)
    methods = [entry.make(len(policy)) for entry in entries]
    rng = np.random.default_rng([73, seeds.start])
    seen = np.zeros((len(entries), steps, *truth.shape))
    for step in range(2 * steps):
        draws = draw(rng, step, len(policy), CONTEXTS)
        for k, method in enumerate(methods):
            batch, arms = roll_out(worlds, scenario, policy, draws, 0.75)
            main = coefficients(method.advantage(batch), arms, policy)
            columns = np.stack([main, *(coefficients(probe, arms, policy) for probe in method.probes)], axis=-1)
            gradient = flat.transpose(0, 2, 1) @ columns
            method.observe(gradient[..., 1:])
            if step >= steps:
                seen[k, step - steps] = gradient[..., 0]
    return {entry.name: _errors(seen[k], truth) for k, entry in enumerate(entries)}


def _errors(seen: Floats, truth: Floats) -> dict[str, float]:
    mean, size = seen.mean(axis=0), (truth**2).sum(axis=-1)
    variance = seen.var(axis=0, ddof=1).sum(axis=-1)
    # The square of a mean of K noisy gradients is too large by variance / K.
    square = np.maximum((mean**2).sum(axis=-1) - variance / len(seen), 1e-12)
    scale = (mean * truth).sum(axis=-1) / square
    bias = np.maximum(1.0 - scale**2 * square / size, 0.0)
    noise = scale**2 * variance / size
    return {"bias2": float(bias.mean()), "variance": float(noise.mean()), "mse": float((bias + noise).mean())}


def error_floor(counts: tuple[int, ...], *, seeds: range, sigma: float = 0.15) -> dict[str, Any]:
    """Theorem 1: squared gradient bias that is left after n pairs, for a monotone bias; it should fall as 1 / (1 + n / n0).

    What is left is measured against the same calibrator fitted on very many pairs: what no monotone map removes stays out of it.
    """
    worlds = make_worlds(seeds)
    policy = halfway_policy(worlds)
    out: dict[str, Any] = {"pairs": list(counts)}
    for name, make in (("smooth", SmoothMonotone), ("binned", lambda: BinnedIsotonic(min_pairs=10**9))):
        left = np.zeros((len(seeds), len(counts)))
        for i in range(len(seeds)):
            rng = np.random.default_rng([74, seeds[i]])
            x, r = _pairs(rng, worlds, policy, i, sigma, 200_000)
            test_x, grid = _pairs(rng, worlds, policy, i, sigma, 4000)[0], np.linspace(0, 1, 201)
            limit = SmoothMonotone() if name == "smooth" else BinnedIsotonic(min_pairs=10**9, window=200_000)
            limit.push(x, r)
            limit.refit()
            for k, n in enumerate(counts):
                for repeat in range(4):
                    f = make()
                    part = slice(50_000 + repeat * counts[-1], 50_000 + repeat * counts[-1] + n)
                    f.push(x[part], r[part])
                    f.refit()
                    wrong = np.interp(test_x, grid, f.predict(grid) - limit.predict(grid))
                    left[i, k] += ((wrong - wrong.mean()) ** 2).mean() / 4
        mean = left.mean(axis=0)
        slope, _ = np.polyfit(np.log(np.array(counts[-4:])), np.log(mean[-4:]), 1)
        out[name] = {"left": mean.tolist(), "slope": float(slope)}
    return out


def _pairs(rng: np.random.Generator, worlds: Worlds, policy: Array, seed: int, sigma: float, n: int) -> tuple[Floats, Floats]:
    chance = policy[seed].astype(np.float64).ravel()
    arms = rng.choice(chance.size, n, p=chance / chance.sum())
    r = worlds.truth[seed].ravel()[arms].astype(np.float64)
    return np.clip(1.0 - (1.0 - r) ** 3 + sigma * rng.standard_normal(n), 0.0, 1.0), r


def fused_variance(*, seeds: range, steps: int = 400, sigma: float = 0.3) -> dict[str, float]:
    """Theorem 2: V_E, V_WM, and the measured variance of their fusion against ``V_E V_WM / (V_E + V_WM)``; unbiased noise."""
    worlds = make_worlds(seeds)
    policy = halfway_policy(worlds)
    flat = worlds.phi.reshape(len(policy), -1, FEATURES)
    rng = np.random.default_rng([75, seeds.start])
    streams = np.zeros((2, steps, len(policy), FEATURES))
    for step in range(steps):
        columns = []
        for k in range(2):
            # Rollouts of their own for each stream: the theorem is about independent ones.
            draws = draw(rng, step, len(policy), CONTEXTS)
            batch, arms = roll_out(worlds, Scenario("none", sigma), policy, draws, 0.0)
            m = batch.by_group if k == 0 else ~batch.by_group
            part = grpo(batch.r if k == 0 else batch.x) * m / m.mean()
            columns.append(coefficients(part.astype(np.float32), arms, policy))
        streams[:, step] = np.moveaxis(flat.transpose(0, 2, 1) @ np.stack(columns, axis=-1), -1, 0)
    # A noisy group is standardised by a larger deviation: bring both means to one length before they are fused.
    means = streams.mean(axis=1)
    streams[1] *= ((means[0] * means[1]).sum(-1) / (means[1] ** 2).sum(-1))[None, :, None]
    v_e, v_wm = (streams[k].var(axis=0, ddof=1).sum(axis=-1) for k in (0, 1))
    # Weights from the first half, variance from the second: else the fit would flatter itself.
    half = steps // 2
    w = [fuse_variances(*(float(streams[k, :half, s].var(axis=0).sum()) for k in (0, 1))) for s in range(len(policy))]
    share = np.array([fusion.anchor for fusion in w])[None, :, None]
    fused = (share * streams[0, half:] + (1.0 - share) * streams[1, half:]).var(axis=0, ddof=1).sum(axis=-1)
    later = [streams[k, half:].var(axis=0, ddof=1).sum(axis=-1) for k in (0, 1)]
    predicted = later[0] * later[1] / (later[0] + later[1])
    return {
        "V_E": float(v_e.mean()),
        "V_WM": float(v_wm.mean()),
        "fused": float(fused.mean()),
        "predicted": float(predicted.mean()),
        "ratio": float((fused / predicted).mean()),
        "ratio_se": float((fused / predicted).std(ddof=1) / np.sqrt(len(policy))),
    }
