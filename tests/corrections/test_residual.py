"""The residual form: unbiased for any f at kappa = 1, silent where the truth is unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.corrections import AnchorSchedule, OnlineCalibration, ResidualVariance, residual_reward


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), fraction=st.sampled_from([0.05, 0.1, 0.5]))
def test_at_kappa_one_the_mean_is_the_truth_for_any_f(seed: int, fraction: float) -> None:
    rng = np.random.default_rng(seed)
    n = 40_000
    truth = rng.random(n)
    bias = rng.choice([-1.0, 1.0]) * rng.uniform(0.3, 1.5)
    f = 0.5 + bias + rng.normal(0, 0.3, n) * truth
    anchor = rng.random(n) < fraction
    real = np.where(anchor, truth, np.nan)
    corrected = residual_reward(f, real, anchor=anchor, propensity=fraction, kappa=1.0)
    # Five standard errors of the mean: a wrong reward fails one in three million.
    tolerance = 5 * (corrected - truth).std() / np.sqrt(n)
    assert abs(float((corrected - truth).mean())) < tolerance
    assert abs(float((f - truth).mean())) > tolerance


def test_the_schedules_own_choices_keep_it_unbiased() -> None:
    truth, f = np.linspace(0, 1, 20), np.full(20, 0.9)
    total = np.zeros(20)
    draws = 4000
    for seed in range(draws):
        schedule = AnchorSchedule(0.13, seed=seed)
        decisions = [schedule.decide(e) for e in range(20)]
        anchor = np.array([d.anchor for d in decisions])
        p = np.array([d.propensity for d in decisions])
        total += residual_reward(f, np.where(anchor, truth, np.nan), anchor=anchor, propensity=p, kappa=1.0)
    error = np.abs(f - truth) * np.sqrt((1 - 0.13) / 0.13 / draws)
    assert (np.abs(total / draws - truth) < 5 * error + 1e-9).all()


def test_kappa_passes_on_its_share() -> None:
    out = [residual_reward([0.2], [1.0], anchor=[True], propensity=1.0, kappa=k)[0] for k in (0.0, 0.5, 1.0)]
    assert out == pytest.approx([0.2, 0.6, 1.0])


def test_an_unknown_grade_is_not_a_grade() -> None:
    out = residual_reward([0.4, 0.4], [np.nan, 0.0], anchor=[True, True], propensity=0.5, kappa=1.0)
    assert out.tolist() == pytest.approx([0.4, -0.4])


def test_no_anchor_leaves_the_reward_bit_for_bit_even_at_propensity_zero() -> None:
    f = np.random.default_rng(0).random(100)
    out = residual_reward(f, np.full(100, np.nan), anchor=np.zeros(100, bool), propensity=0.0)
    assert out.tobytes() == f.tobytes()


def test_impossible_propensity_and_kappa_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match=r"propensity of an anchor must be in \(0, 1\], got \[0.\]"):
        residual_reward([0.5], [0.5], anchor=[True], propensity=0.0)
    with pytest.raises(ValueError, match=r"kappa must be in \[0, 1\], got 1.5"):
        residual_reward([0.5], [0.5], anchor=[True], propensity=0.5, kappa=1.5)


def test_no_anchor_for_ten_thousand_steps_changes_nothing() -> None:
    f, s2 = OnlineCalibration(), ResidualVariance()
    f.push([0.2, 0.9], [0.1, 0.6])
    x = np.linspace(0, 1, 8)
    before, variance = f.predict(x), s2.variance
    for _ in range(10_000):
        f.push([], [])
        s2.update([0.5], [np.nan])
        out = residual_reward(before, np.full(8, np.nan), anchor=np.zeros(8, bool), propensity=0.1)
    assert f.predict(x).tobytes() == before.tobytes() == out.tobytes()
    assert s2.variance == variance


def test_the_residual_variance_starts_at_its_prior_and_finds_the_truth() -> None:
    rng = np.random.default_rng(0)
    s2 = ResidualVariance()
    assert s2.variance == 0.02
    s2.update(np.zeros(5000), rng.normal(0, 0.5, 5000))
    assert s2.variance == pytest.approx(0.25, rel=0.25)


def test_the_residual_variance_resumes() -> None:
    one, other = ResidualVariance(window=10), ResidualVariance(window=10)
    one.update([0.1, 0.2, 0.3], [0.5, 0.1, 0.9])
    other.load_state_dict(one.state_dict())
    for s2 in (one, other):
        s2.update([0.3] * 20, [0.9] * 20)
    assert one.variance == other.variance


def test_the_residual_variance_scales_with_the_range() -> None:
    assert ResidualVariance(width=10.0).variance == pytest.approx(2.0)
