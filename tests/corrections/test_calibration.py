"""Calibrators: monotone, identity at first, independent of order, resumable, deaf to what is not a number."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.corrections import BinnedIsotonic, OnlineCalibration, SmoothMonotone

KINDS: tuple[Literal["smooth", "binned"], ...] = ("smooth", "binned")
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(KINDS)


def stream(seed: int, n: int, *, contexts: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n arbitrary pairs: some streams are monotone, some reversed, some pure noise."""
    rng = np.random.default_rng(seed)
    x = rng.random(n) ** rng.uniform(0.3, 3)
    y = np.clip(rng.uniform(-1, 1) * x + rng.random() + rng.normal(0, 0.2, n), 0, 1)
    return x, y, rng.integers(0, contexts, n)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, n=st.integers(1, 600), kind=kinds)
def test_f_is_monotone_in_every_context_whatever_the_pairs(seed: int, n: int, kind: Literal["smooth", "binned"]) -> None:
    f = OnlineCalibration(kind)
    x, y, c = stream(seed, n)
    f.push(x, y, context=c)
    grid = np.linspace(-0.2, 1.2, 300)
    for context in range(4):
        values = f.predict(grid, context=np.full(grid.size, context))
        assert (np.diff(values) >= -1e-12).all()
        assert values.min() >= 0.0
        assert values.max() <= 1.0


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_smooth_never_ties_predictions_that_differ_except_at_the_ends_of_the_range(seed: int) -> None:
    f = SmoothMonotone()
    x, y, c = stream(seed, 400)
    f.push(x, y, c)
    values = f.predict(np.linspace(0, 1, 200))
    inside = (values > 0) & (values < 1)
    assert (np.diff(values[inside]) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward_range", [(0.0, 1.0), (-2.0, 3.0), None])
def test_without_a_pair_it_is_the_identity_bit_for_bit(
    kind: Literal["smooth", "binned"], reward_range: tuple[float, float] | None
) -> None:
    f = OnlineCalibration(kind, reward_range=reward_range)
    x = np.random.default_rng(0).uniform(-5, 5, 1000)
    expected = x if reward_range is None else np.clip(x, *reward_range)
    f.push([np.nan, 0.5], [0.3, np.inf])
    f.refit()
    assert f.predict(x, context=np.arange(1000)).tobytes() == expected.tobytes()
    assert (f.n_pairs, f.n_rejected) == (0, 2)


def test_predict_returns_a_copy_that_may_be_written_to() -> None:
    x = np.array([0.25, 0.75])
    for f in (OnlineCalibration(), OnlineCalibration(reward_range=None)):
        f.predict(x)[:] = 9.0
    assert x.tolist() == [0.25, 0.75]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_late_pairs_in_any_order_and_any_batches_give_the_same_smooth_map(seed: int) -> None:
    x, y, c = stream(seed, 150)
    rng = np.random.default_rng(seed)
    one, other = OnlineCalibration("smooth", reward_range=None), OnlineCalibration("smooth", reward_range=None)
    one.push(x, y, context=c)
    order = rng.permutation(150)
    for part in np.split(order, np.sort(rng.integers(0, 150, 6))):
        other.push(x[part], y[part], context=c[part])
    grid = np.linspace(-0.1, 1.1, 50)
    contexts = np.arange(50) % 4
    np.testing.assert_allclose(one.predict(grid, context=contexts), other.predict(grid, context=contexts), atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, kind=kinds, cut=st.integers(0, 500), ranged=st.booleans())
def test_a_resumed_calibration_equals_one_never_stopped(
    seed: int, kind: Literal["smooth", "binned"], cut: int, ranged: bool
) -> None:
    reward_range = (0.0, 1.0) if ranged else None
    x, y, c = stream(seed, 500)
    whole = OnlineCalibration(kind, reward_range=reward_range)
    whole.push(x[:cut], y[:cut], context=c[:cut])
    resumed = OnlineCalibration(kind, reward_range=reward_range)
    resumed.load_state_dict(whole.state_dict())
    for f in (whole, resumed):
        f.push(x[cut:], y[cut:], context=c[cut:])
    grid = np.linspace(0, 1, 64)
    assert whole.predict(grid, context=np.arange(64) % 4).tobytes() == resumed.predict(grid, context=np.arange(64) % 4).tobytes()
    assert whole.standard_error(grid).tobytes() == resumed.standard_error(grid).tobytes()
    assert (whole.n_pairs, whole.n_rejected, whole.reward_range) == (resumed.n_pairs, resumed.n_rejected, resumed.reward_range)


def test_a_swapped_stream_of_real_and_predicted_is_caught() -> None:
    rng = np.random.default_rng(1)
    x = rng.random(3000)
    y = x**2
    for kind in KINDS:
        right, swapped = OnlineCalibration(kind), OnlineCalibration(kind)
        right.push(x, y)
        swapped.push(y, x)
        grid = np.linspace(0.1, 0.9, 50)
        assert np.abs(right.predict(grid) - grid**2).max() < 0.03
        assert np.abs(swapped.predict(grid) - grid**2).mean() > 0.2


def test_one_nan_changes_nothing_but_a_count() -> None:
    x, y, c = stream(3, 300)
    for kind in KINDS:
        clean, dirty = OnlineCalibration(kind), OnlineCalibration(kind)
        clean.push(x, y, context=c)
        dirty.push(np.insert(x, 50, [np.nan, 1.0]), np.insert(y, 50, [1.0, np.nan]), context=np.insert(c, 50, [0, 0]))
        assert dirty.n_rejected == 2
        assert clean.predict(x, context=c).tobytes() == dirty.predict(x, context=c).tobytes()
        with pytest.raises(ValueError, match="finite pairs only, got 1 non-finite of 2"):
            (SmoothMonotone() if kind == "smooth" else BinnedIsotonic()).push([0.1, np.nan], [0.0, 0.0])


def test_a_nan_prediction_stays_unknown() -> None:
    f = OnlineCalibration()
    f.push([0.2, 0.8], [0.1, 0.9])
    assert np.isnan(f.predict([np.nan, 0.5])).tolist() == [True, False]


def test_the_papers_map_is_the_identity_until_200_pairs_and_then_refits_every_64() -> None:
    f = OnlineCalibration("binned")
    x = np.tile([0.15, 0.85], 300)
    f.push(x[:199], np.zeros(199))
    assert f.predict([0.5])[0] == 0.5
    f.push(x[:1], [0.0])
    assert f.predict([0.5])[0] == 0.0
    f.push(x[:63], np.ones(63))
    assert f.predict([0.9])[0] == 0.0
    f.push(x[:1], [1.0])
    # The bins' means, 33 / 134 and 31 / 130, violate the order and are pooled.
    assert f.predict([0.9])[0] == pytest.approx(64 / 264)


def pool_adjacent_violators(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Isotonic regression the plain way: neighbours in the wrong order are merged, until there are none. An oracle."""
    blocks = [(value, weight, 1) for value, weight in zip(values.tolist(), weights.tolist(), strict=True)]
    at = 0
    while at + 1 < len(blocks):
        (low, m, i), (high, n, j) = blocks[at], blocks[at + 1]
        if low <= high:
            at += 1
            continue
        blocks[at : at + 2] = [((low * m + high * n) / (m + n), m + n, i + j)]
        at = max(at - 1, 0)
    return np.repeat([value for value, _, _ in blocks], [count for _, _, count in blocks])


@settings(max_examples=60, deadline=None)
@given(seed=seeds, n=st.integers(200, 400), tenths=st.booleans())
def test_the_papers_map_is_the_isotonic_regression_of_its_bins_means(seed: int, n: int, tenths: bool) -> None:
    x, y, _ = stream(seed, n)
    x = x.round(1) if tenths else x
    f = BinnedIsotonic()
    f.push(x, y)
    f.refit()
    edges = np.linspace(0.0, 1.0, 11)
    bins = [(x >= low) & ((x < high) | (high == 1.0)) for low, high in pairwise(edges)]
    held = [inside for inside in bins if inside.any()]
    knots = np.array([x[inside].mean() for inside in held])
    means, counts = np.array([[y[inside].mean(), inside.sum()] for inside in held]).T
    np.testing.assert_allclose(f.predict(knots), pool_adjacent_violators(means, counts), rtol=0.0, atol=1e-12)


def test_round_predictions_fall_into_the_papers_bins() -> None:
    # As floats, .3, .6 and .7 lie below the edges of linspace(0, 1, 11) that are written the same.
    x = np.repeat(np.arange(1, 10) / 10, 100)
    f = BinnedIsotonic()
    f.push(x, np.where(x > 0.25, 1.0, 0.0))
    f.refit()
    assert f.predict([0.2]) == pytest.approx(1 / 3), ".2 and .3 share a bin"


def test_one_big_push_of_the_papers_calibrator_equals_many_small_ones() -> None:
    x, y, _ = stream(9, 1000)
    whole, parts = BinnedIsotonic(), BinnedIsotonic()
    whole.push(x, y)
    for i in range(0, 1000, 7):
        parts.push(x[i : i + 7], y[i : i + 7])
    assert whole.predict(x).tobytes() == parts.predict(x).tobytes()


def test_the_paper_forgets_all_but_the_newest_5000_pairs() -> None:
    f = BinnedIsotonic()
    x = np.random.default_rng(0).random(5000)
    f.push(x, np.zeros(5000))
    f.push(x, x)
    f.refit()
    assert np.abs(f.predict([0.3, 0.7]) - [0.3, 0.7]).max() < 0.02


def test_a_half_life_follows_a_map_that_changes() -> None:
    rng = np.random.default_rng(2)
    forgetful, steady = SmoothMonotone(half_life=200.0), SmoothMonotone()
    for f in (forgetful, steady):
        x = rng.random(2000)
        f.push(x, x**3)
        x = rng.random(1000)
        f.push(x, np.sqrt(x))
    grid = np.linspace(0.1, 0.9, 9)
    assert np.abs(forgetful.predict(grid) - np.sqrt(grid)).max() < 0.07
    assert np.abs(steady.predict(grid) - np.sqrt(grid)).max() > 0.15


def test_contexts_have_their_own_offset_and_strangers_the_pooled_one() -> None:
    rng = np.random.default_rng(4)
    x = rng.uniform(0.3, 0.7, 4000)
    c = rng.integers(0, 2, 4000)
    f = SmoothMonotone()
    f.push(x, x + np.where(c == 0, 0.2, -0.2), c)
    at = f.predict([0.5, 0.5, 0.5], [0, 1, 77])
    np.testing.assert_allclose(at, [0.7, 0.3, 0.5], atol=0.02)


def test_memory_of_contexts_is_bounded() -> None:
    f = SmoothMonotone(max_contexts=5)
    x = np.linspace(0, 1, 1000)
    f.push(x, x, np.arange(1000))
    assert len(f.state_dict()["sums"]) == 5
    assert f.predict([0.5], [999])[0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("scale", [(0.0, 100.0), (-7.0, -3.0)])
def test_the_fit_scales_with_the_rewards_range(scale: tuple[float, float]) -> None:
    low, width = scale[0], scale[1] - scale[0]
    x, y, c = stream(11, 700)
    for kind in KINDS:
        unit, scaled = OnlineCalibration(kind), OnlineCalibration(kind, reward_range=scale)
        unit.push(x, y, context=c)
        scaled.push(low + width * x, low + width * y, context=c)
        expected = low + width * unit.predict(x, context=c)
        np.testing.assert_allclose(scaled.predict(low + width * x, context=c), expected, atol=1e-6 * width)


def test_a_running_range_grows_with_the_pairs() -> None:
    f = OnlineCalibration(reward_range=None)
    f.push([1.0], [1.0])
    assert f.reward_range is None
    assert f.predict([40.0])[0] == 40.0
    f.push([5.0, -3.0], [4.0, -9.0])
    assert f.reward_range == (-9.0, 5.0)
    assert f.predict([40.0])[0] <= 5.0


def test_a_real_reward_outside_the_declared_range_says_so() -> None:
    with pytest.raises(ValueError, match=r"reward_range \(0.0, 1.0\), got \[-3.0, 0.5\]"):
        OnlineCalibration().push([0.5, 0.5], [-3.0, 0.5])


def test_coverage_and_standard_error_tell_seen_from_unseen() -> None:
    rng = np.random.default_rng(5)
    f = OnlineCalibration()
    assert f.coverage([0.5]).tolist() == [False]
    x = rng.uniform(0.0, 0.4, 500)
    f.push(x, np.clip(x + rng.normal(0, 0.05, 500), 0, 1))
    assert f.coverage([0.2, 0.9, np.nan]).tolist() == [True, False, False]
    seen, unseen = f.standard_error([0.2, 0.9])
    assert seen < 0.02
    assert unseen == pytest.approx(1 / np.sqrt(12))


def test_the_derivative_is_the_slope() -> None:
    f = OnlineCalibration()
    assert f.derivative([0.5])[0] == pytest.approx(1.0)
    x = np.linspace(0, 1, 5000)
    f.push(x, x**2)
    # Mid-ramp points: the slope of a chord over a twelfth is the parabola's there.
    np.testing.assert_allclose(f.derivative([5.5 / 12, 8.5 / 12]), [11 / 12, 17 / 12], atol=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calibrator": "spline"}, "one of .*binned.*smooth.*got 'spline'"),
        ({"reward_range": (1.0, 1.0)}, r"finite low < high, got \(1.0, 1.0\)"),
        ({"reward_range": (0.0, np.inf)}, "finite"),
        ({"calibrator": SmoothMonotone((0.0, 2.0)), "reward_range": (0.0, 3.0)}, r"\(0.0, 2.0\), got \(0.0, 3.0\)"),
    ],
)
def test_bad_construction_gives_expected_and_actual(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnlineCalibration(**arguments)  # type: ignore[arg-type]


def test_mismatched_lengths_are_refused() -> None:
    f = OnlineCalibration()
    with pytest.raises(ValueError, match=r"real must have shape \(2,\), got \(1,\)"):
        f.push([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="context must hold integers, got dtype float64"):
        f.push([0.1], [0.1], context=[0.5])
