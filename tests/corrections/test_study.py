"""The study's vectorised methods are the package's own, so that what is measured is what is shipped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.corrections_study.calibrators import Binned, Smooth
from benchmarks.corrections_study.methods import Batch, Entry, PaperWeight, Replace, Residual, grpo
from benchmarks.corrections_study.registry import METHODS
from benchmarks.corrections_study.run import add, load, save
from benchmarks.corrections_study.train import Scenario, coefficients, train
from benchmarks.corrections_study.world import BIASES, make_worlds, softmax
from wmrl_gym import corrections


def step(rng: np.random.Generator, seeds: int = 2) -> Batch:
    shape = (seeds, 32, 8)
    r = rng.random(shape).astype(np.float32)
    x = np.clip(r**2 + 0.1 * rng.standard_normal(shape), 0, 1).astype(np.float32)
    groups = np.stack([np.isin(np.arange(32), rng.permutation(32)[:3]) for _ in range(seeds)])
    episodes = np.stack([np.isin(np.arange(256), rng.permutation(256)[:26]) for _ in range(seeds)]).reshape(shape)
    return Batch(x, r, np.broadcast_to(groups[..., None], shape), episodes, np.full(shape, 0.1, np.float32), np.zeros(shape, int))


@pytest.mark.parametrize("half_life", [None, 200.0])
def test_smooth_is_smooth_monotone(half_life: float | None) -> None:
    rng = np.random.default_rng(0)
    twin, own = Smooth(2, half_life=half_life), [corrections.SmoothMonotone(half_life=half_life) for _ in range(2)]
    for _ in range(6):
        x, r = rng.random((2, 40)), rng.random((2, 40))
        c = rng.integers(0, 32, (2, 40))
        twin.push(x.astype(np.float32), r.astype(np.float32), c)
        for s in range(2):
            own[s].push(x[s], r[s], c[s])
    grid = np.broadcast_to(np.linspace(0, 1, 8, dtype=np.float32), (2, 32, 8))
    for s in range(2):
        expected = own[s].predict(grid[s].ravel(), np.repeat(np.arange(32), 8))
        np.testing.assert_allclose(twin.predict(grid)[s].ravel(), expected, atol=1e-5)


def test_binned_is_binned_isotonic() -> None:
    rng = np.random.default_rng(1)
    twin, own = Binned(2), [corrections.BinnedIsotonic() for _ in range(2)]
    for _ in range(20):
        x, r = rng.random((2, 25)).astype(np.float32), rng.random((2, 25)).astype(np.float32)
        twin.push(x, r, np.zeros((2, 25), int))
        for s in range(2):
            own[s].push(x[s], r[s])
    grid = np.broadcast_to(np.linspace(0, 1, 32, dtype=np.float32), (2, 32))
    for s in range(2):
        np.testing.assert_allclose(twin.predict(grid)[s], own[s].predict(grid[s]), atol=1e-5)


def test_the_papers_weight_is_anchor_weight() -> None:
    rng = np.random.default_rng(2)
    twin, own = PaperWeight(2), [corrections.AnchorWeight() for _ in range(2)]
    for _ in range(25):
        f, r = rng.random((2, 3, 8), dtype=np.float32), rng.random((2, 3, 8), dtype=np.float32)
        r[0, 1] = 0.5
        twin.update(f, r)
        for s in range(2):
            own[s].update(f[s].ravel(), r[s].ravel(), np.repeat([0, 1, 2], 8))
    np.testing.assert_allclose(twin.weight, [w.weight for w in own], rtol=1e-4)
    assert twin.weight[0] > 1.0


def test_the_papers_advantages_are_those_of_the_package() -> None:
    batch = step(np.random.default_rng(3))
    out = Replace(2, debias=True, weight=3.0).advantage(batch)
    for s in range(2):
        m = batch.by_group[s].ravel()
        reward = np.where(m, batch.r[s].ravel(), batch.x[s].ravel())
        expected = corrections.grpo(reward, np.repeat(np.arange(32), 8), weight=np.where(m, 3.0, 1.0))
        np.testing.assert_allclose(out[s].ravel(), expected.value, atol=1e-4)


def test_the_recommended_advantages_are_those_of_the_package() -> None:
    rng = np.random.default_rng(4)
    method, f = Residual(1), corrections.OnlineCalibration("smooth")
    context = np.repeat(np.arange(32), 8)
    for k in range(4):
        batch = step(rng, seeds=1)
        x, r, m = batch.x[0].ravel(), batch.r[0].ravel(), batch.by_episode[0].ravel()
        s2 = float(method._s2.value[0])
        out = method.advantage(batch)[0].ravel()
        real = np.where(m, r, np.nan)
        calibrated = f.predict(x, context=context)
        own = corrections.residual_advantages(calibrated, real, context, anchor=m, propensity=0.1, residual_var=s2)
        np.testing.assert_allclose(out, own.value, atol=2e-4, err_msg=f"step {k}")
        f.push(x, real, context=context)


def test_the_gradient_of_exact_advantages_is_the_exact_gradient() -> None:
    worlds = make_worlds(range(2))
    rng = np.random.default_rng(5)
    policy = softmax(rng.standard_normal(worlds.truth.shape).astype(np.float32), axis=-1)
    total = np.zeros(worlds.truth[0].size)
    draws = 3000
    for _ in range(draws):
        cumulative = np.cumsum(policy, axis=-1)
        arms = (rng.random((2, 32, 8))[..., None] > cumulative[:, :, None, :]).sum(-1).clip(max=31)
        advantage = np.take_along_axis(worlds.truth, arms, -1)
        total += coefficients(advantage, arms, policy)[0] / draws
    exact = (policy * (worlds.truth - (policy * worlds.truth).sum(-1, keepdims=True)))[0].ravel() / 32
    assert np.corrcoef(total, exact)[0, 1] > 0.97


def test_a_seed_has_the_same_bandit_whoever_it_is_made_with() -> None:
    one, many = make_worlds(range(7, 8)), make_worlds(range(5, 9))
    np.testing.assert_array_equal(one.truth[0], many.truth[2])
    assert one.best[0] == pytest.approx(many.best[2], abs=1e-6)


def test_every_bias_is_finite_and_the_spike_pays_bad_arms() -> None:
    worlds = make_worlds(range(2))
    for bias in BIASES.values():
        table = np.broadcast_to(bias(worlds, 0.7, np.full((2, 1, 1), 0.5, np.float32)), worlds.truth.shape)
        assert np.isfinite(table).all()
    assert worlds.spiked.mean() == pytest.approx(0.05, abs=0.005)
    assert worlds.truth[worlds.spiked].max() <= 0.2 + 1e-6


def test_training_is_reproducible_and_every_method_runs() -> None:
    worlds = make_worlds(range(2))
    runs = [train(worlds, Scenario("spike"), list(METHODS), steps=4, seed=3) for _ in range(2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.isfinite(runs[0]).all()


def test_standardised_advantages_have_unit_spread() -> None:
    np.testing.assert_allclose(grpo(np.random.default_rng(0).random((3, 4, 8), dtype=np.float32)).std(-1), 1.0, atol=0.01)


def test_rows_of_a_new_method_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "corrections.json"
    old, new = [next(e for e in METHODS if e.name == name) for name in ("mixture", "recommended")]
    scenario = Scenario("arm")

    def start(*entries: Entry) -> dict[str, Any]:
        setup = {"seeds": 2, "first_seed": 2000, "steps": 120, "fraction": 0.1, "rates": {e.name: e.rate for e in entries}}
        return load(path, setup)

    results = start(old)
    assert add(results, scenario, [old])
    save(path, results)
    before = results["scenarios"]["arm/0.15"]["mixture"]
    results = start(old, new)
    assert not add(results, scenario, [old, new], only=["mixture"]), "it is there"
    assert add(results, scenario, [old, new])
    row = results["scenarios"]["arm/0.15"]
    assert list(row) == ["mixture", "recommended"]
    assert row["mixture"] == before
    alone = {"setup": results["setup"], "scenarios": {}}
    add(alone, scenario, [old, new])
    np.testing.assert_allclose(alone["scenarios"]["arm/0.15"]["recommended"]["final"], row["recommended"]["final"], atol=0.002)
    assert not start(dataclasses.replace(old, rate=0.5))["scenarios"]["arm/0.15"], "another rate is another method"
