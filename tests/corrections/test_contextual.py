"""Contextual calibration: what was done explains what a monotone f leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.corrections import ContextualCalibration, OnlineCalibration
from wmrl_gym.corrections.contextual import trusted
from wmrl_gym.corrections.gaussian_process import GaussianProcess, Kernel, squared_distances

SEEDS = st.integers(0, 2**32 - 1)


def of_arms(n: int, *, arms: int = 6, seed: int = 0, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, truths and features of n pairs, whose bias is a function of the arm and of nothing else."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(arms, size=n)
    truth = rng.uniform(0.3, 0.7, n)
    bias = 0.2 * (-1.0) ** np.arange(arms)
    return truth + bias[arm] + noise * rng.standard_normal(n), truth, np.eye(arms)[arm]


def pushed(*pairs: Any, **options: Any) -> ContextualCalibration:
    calibration = ContextualCalibration(**options)
    calibration.push(pairs[0], pairs[1], features=pairs[2])
    return calibration


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=8), SEEDS)
def test_without_a_pair_it_is_the_identity_bit_for_bit(x: list[float], seed: int) -> None:
    features = np.random.default_rng(seed).normal(size=(len(x), 3))
    said = ContextualCalibration().predict(x, features=features)
    assert (said == np.clip(x, 0.0, 1.0)).all()
    assert (ContextualCalibration(reward_range=None).predict(x, features=features) == x).all()


def test_it_removes_a_bias_that_is_a_function_of_the_action_and_f_cannot() -> None:
    x, r, z = of_arms(64)
    fresh = of_arms(500, seed=1)
    contextual, monotone = pushed(x, r, z), OnlineCalibration()
    monotone.push(x, r)
    after = rms(contextual.predict(fresh[0], features=fresh[2]) - fresh[1])
    assert after < 0.05
    assert after < 0.4 * rms(monotone.predict(fresh[0]) - fresh[1])


def test_a_few_pairs_are_enough_where_the_bias_is_large() -> None:
    fresh = of_arms(500, seed=1, arms=2)
    errors = [rms(pushed(*of_arms(16, arms=2, seed=s)).predict(fresh[0], features=fresh[2]) - fresh[1]) for s in range(10)]
    assert np.median(errors) < 0.5 * rms(fresh[0] - fresh[1])


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(6, 120), st.integers(1, 40))
def test_noise_that_no_feature_explains_leaves_it_with_f(seed: int, n: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    x, z = rng.random(n), rng.normal(size=(n, width))
    r = np.clip(x + 0.1 * rng.standard_normal(n), 0.0, 1.0)
    contextual, monotone = pushed(x, r, z), OnlineCalibration()
    monotone.push(x, r)
    new, what = rng.random(200), rng.normal(size=(200, width))
    moved = contextual.predict(new, features=what) - monotone.predict(new)
    # Of noise of .1, chance may be taken for a signal now and then, and hardly moves predictions.
    assert rms(moved) < 0.08
    assert contextual.share <= 0.9


def test_on_noise_alone_it_is_f_itself_nearly_always_and_costs_next_to_nothing() -> None:
    alike, lost = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, z = rng.random(60), rng.normal(size=(60, 5))
        r = np.clip(x + 0.1 * rng.standard_normal(60), 0.0, 1.0)
        contextual, monotone = pushed(x, r, z), OnlineCalibration()
        monotone.push(x, r)
        new, what = rng.random(200), rng.normal(size=(200, 5))
        said, f = contextual.predict(new, features=what), monotone.predict(new)
        alike.append(bool((said == f).all()))
        lost.append(rms(said - new) - rms(f - new))
    assert np.mean(alike) > 0.6
    assert np.mean(lost) < 0.005


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_the_order_of_pairs_within_a_push_does_not_matter(seed: int) -> None:
    x, r, z = of_arms(40, noise=0.05)
    order = np.random.default_rng(seed).permutation(40)
    one, other = pushed(x, r, z), pushed(x[order], r[order], z[order])
    np.testing.assert_allclose(one.predict(x, features=z), other.predict(x, features=z), rtol=0, atol=1e-8)


def test_pairs_beyond_the_bound_make_room_and_memory_stays() -> None:
    x, r, z = of_arms(500)
    calibration, many = ContextualCalibration(inducing=16), ContextualCalibration(inducing=16)
    sizes = []
    for start in range(0, 500, 50):
        part = slice(start, start + 50)
        calibration.push(x[part], r[part], features=z[part])
        sizes.append(sum(np.asarray(each).nbytes for each in calibration.state_dict()["contextual"]["kept"].values()))
        many.push(x[part], r[part], features=np.random.default_rng(start).normal(size=(len(x[part]), 4)))
    assert len(set(sizes[1:])) == 1, "six places, four pairs each of the sixteen that are allowed"
    assert rms(calibration.predict(x, features=z) - r) < 0.05
    assert len(many.state_dict()["contextual"]["kept"]["real"]) == 16


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 60))
def test_a_saved_state_goes_on_as_the_original(seed: int, n: int) -> None:
    x, r, z = of_arms(n + 40, seed=seed, noise=0.05)
    original = pushed(x[:n], r[:n], z[:n])
    resumed = ContextualCalibration()
    resumed.load_state_dict(original.state_dict())
    assert (resumed.predict(x, features=z) == original.predict(x, features=z)).all()
    for each in (original, resumed):
        each.push(x[n:], r[n:], features=z[n:])
    assert (resumed.predict(x, features=z) == original.predict(x, features=z)).all()
    assert resumed.evidence == original.evidence


def test_constant_features_and_fewer_pairs_than_features_are_no_error() -> None:
    x, r, _ = of_arms(40)
    constant, monotone = pushed(x, r, np.ones((40, 3))), OnlineCalibration()
    monotone.push(x, r)
    assert rms(constant.predict(x, features=np.ones((40, 3))) - monotone.predict(x)) < 0.05
    many = pushed(*of_arms(10)[:2], np.random.default_rng(0).normal(size=(10, 300)))
    assert np.isfinite(many.predict(x[:5], features=np.zeros((5, 300)))).all()


def test_rows_whose_features_are_not_known_are_left_to_f() -> None:
    x, r, z = of_arms(60)
    unknown = np.full((5, 6), np.nan)
    calibration = pushed(np.append(x, x[:5]), np.append(r, r[:5]), np.concatenate([z, unknown]))
    monotone = OnlineCalibration()
    monotone.push(np.append(x, x[:5]), np.append(r, r[:5]))
    assert calibration.n_pairs == 65
    assert (calibration.predict(x[:5], features=unknown) == monotone.predict(x[:5])).all()
    assert (calibration.predict(x[:5]) == monotone.predict(x[:5])).all()
    assert np.isnan(calibration.predict([np.nan], features=z[:1])).all()


def test_features_of_another_width_are_refused() -> None:
    calibration = pushed(*of_arms(20))
    with pytest.raises(ValueError, match="6 columns as before, got 5"):
        calibration.push([0.5], [0.5], features=np.zeros((1, 5)))
    with pytest.raises(ValueError, match=r"shape \(1, F\), got \(2, 6\)"):
        calibration.predict([0.5], features=np.zeros((2, 6)))
    with pytest.raises(ValueError, match="inducing must be at least 6, got 1"):
        ContextualCalibration(inducing=1)


def test_its_standard_error_is_larger_where_nothing_was_done() -> None:
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (80, 2))
    x = rng.uniform(0.3, 0.7, 80)
    calibration = pushed(x, x + 0.2 * np.sin(3 * z[:, 0]), z)
    near, far = calibration.standard_error([0.5, 0.5], features=[[0.0, 0.0], [9.0, 9.0]])
    assert calibration.share > 0.8
    assert near < 0.6 * far


def test_predictions_that_are_made_anew_replace_the_old_ones_in_f_and_delta() -> None:
    x, r, z = of_arms(60)
    calibration = ContextualCalibration()
    calibration.push(x, r, features=z, key=np.arange(60))
    assert calibration.keys.tolist() == list(range(60))
    calibration.repredict(np.arange(60), r, z)  # the model has learnt: it is right now
    assert rms(calibration.predict(r, features=z) - r) < 0.02
    assert calibration.share < 0.3
    fresh = pushed(r, r, z)
    np.testing.assert_allclose(calibration.predict(x), fresh.predict(x), atol=1e-12)


def test_pairs_without_a_key_or_no_longer_kept_stay_as_they_were() -> None:
    x, r, z = of_arms(60)
    calibration = pushed(x, r, z)
    before = calibration.predict(x, features=z)
    calibration.repredict([0, 1, 99], r[:3], z[:3])
    assert (calibration.predict(x, features=z) == before).all()


def test_what_is_trusted_is_what_chance_does_not_explain() -> None:
    assert trusted(np.ones(10)) == 1.0
    assert trusted(np.array([1.0, -1.0])) == 0.0
    assert trusted(np.zeros(0)) == trusted(np.ones(1)) == 0.0
    gains = np.random.default_rng(0).normal(1.0, 2.0, 100)
    assert 0.9 < trusted(gains) < 1.0


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 30), st.integers(1, 8))
def test_held_out_predictions_are_those_of_a_process_without_the_pair(seed: int, n: int, places: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(places, 3))[rng.integers(places, size=n)]
    y = rng.normal(size=n)
    kernel = Kernel(1.3, 0.7, 0.2, 0.1)
    process = GaussianProcess(z, y, noise=0.1, kernel=kernel)
    scaled = process._scaling(z)
    prior = kernel.between(squared_distances(scaled, scaled))
    said = process.held_out()
    for i in range(n):
        rest = np.arange(n) != i
        alone = prior[i, rest] @ np.linalg.solve(prior[np.ix_(rest, rest)] + 0.1 * np.eye(n - 1), y[rest])
        assert said[i] == pytest.approx(alone, abs=1e-8)
    whole = prior @ np.linalg.solve(prior + 0.1 * np.eye(n), y)
    np.testing.assert_allclose(process.predict(z), whole, atol=1e-8)
    left = np.diag(prior - prior @ np.linalg.solve(prior + 0.1 * np.eye(n), prior))
    np.testing.assert_allclose(process.variance(z), left, atol=1e-8)


def test_what_was_executed_is_remembered_and_the_best_of_it_is_not_smoothed_away() -> None:
    rng = np.random.default_rng(0)
    z = np.eye(30)
    r = rng.random(30)
    x = np.full(30, 0.5)
    calibration = pushed(x[:20], r[:20], z[:20])
    said = calibration.predict(x, features=z)
    assert rms(said[:20] - r[:20]) < 0.1, "a first guess of how much truths differ is left"
    calibration.push(x[:20], r[:20], features=z[:20])
    again = calibration.predict(x, features=z)
    assert rms(again[:20] - r[:20]) < 0.03, "they do not differ"
    f = OnlineCalibration()
    f.push(np.tile(x[:20], 2), np.tile(r[:20], 2))
    np.testing.assert_allclose(again[20:], f.predict(x[20:]), atol=0.1)
    np.testing.assert_array_less(calibration.standard_error(x, features=z)[:20], 0.05)


def test_truths_that_differ_between_repetitions_are_not_taken_for_the_attempts_own() -> None:
    """Outcomes that are all noise: what is remembered is the little that the mean of a place says."""
    rng = np.random.default_rng(1)
    arm = np.tile(np.arange(8), 12)
    r = np.clip(0.5 + 0.2 * rng.standard_normal(96), 0.0, 1.0)
    calibration = pushed(np.full(96, 0.5), r, np.eye(8)[arm])
    assert rms(calibration.predict(np.full(8, 0.5), features=np.eye(8)) - 0.5) < 0.04
