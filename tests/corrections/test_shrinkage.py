"""Rewards shrunk by their own noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.corrections import OnlineCalibration, RewardShrinkage


def noisy(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions of which half are precise and half are not, their deviations, and the truths."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0.5, 0.15, n)
    std = np.where(rng.random(n) < 0.5, 0.03, 0.3)
    return truth + std * rng.normal(size=n), std, truth


def test_one_at_a_time_it_has_a_prior_too_and_comes_nearer_to_the_truth() -> None:
    x, s, truth = noisy(3000)
    shrinkage = RewardShrinkage()
    shrunk = np.concatenate([shrinkage.apply([one], [std]) for one, std in zip(x, s, strict=True)])
    late = slice(500, None)
    assert ((shrunk - truth)[late] ** 2).mean() < 0.5 * ((x - truth)[late] ** 2).mean()


def test_after_calibration_it_still_comes_nearer_because_f_knows_the_mean_noise_only() -> None:
    x, s, truth = noisy(6000)
    f = OnlineCalibration()
    f.push(x[:3000], np.clip(truth[:3000], 0, 1))
    calibrated = f.predict(x[3000:])
    shrunk = RewardShrinkage().apply(x[3000:], s[3000:], calibrated=calibrated)
    assert ((shrunk - truth[3000:]) ** 2).mean() < 0.95 * ((calibrated - truth[3000:]) ** 2).mean()


def test_after_calibration_equal_noise_changes_nothing() -> None:
    x, _, _ = noisy(500)
    calibrated = 0.4 + 0.5 * x
    np.testing.assert_allclose(RewardShrinkage().apply(x, np.full(500, 0.05), calibrated=calibrated), calibrated, atol=1e-12)


def test_unknown_deviations_and_first_rewards_are_left_alone() -> None:
    x = np.linspace(0, 1, 20)
    np.testing.assert_array_equal(RewardShrinkage().apply(x, np.full(20, np.nan)), x)
    np.testing.assert_array_equal(RewardShrinkage(least=8).apply(x[:7], np.full(7, 0.2)), x[:7])


@given(st.integers(0, 2**31), st.booleans())
def test_a_raw_group_keeps_within_its_span(seed: int, together: bool) -> None:
    rng = np.random.default_rng(seed)
    x, s = rng.random(24), rng.random(24)
    group = np.repeat([0, 1, 2], 8)
    shrunk = RewardShrinkage(least=2).apply(x, s, group=group if together else None)
    for members in (group == g for g in range(3)) if together else ():
        assert shrunk[members].min() >= x[members].min() - 1e-9
        assert shrunk[members].max() <= x[members].max() + 1e-9
    assert np.isfinite(shrunk).all()


def test_memory_is_bounded_and_a_resumed_one_goes_on_as_before() -> None:
    shrinkage = RewardShrinkage(max_contexts=2, least=2)
    for context in range(5):
        shrinkage.apply(np.linspace(0, 1, 9), np.full(9, 0.1), context=np.full(9, context))
    state = shrinkage.state_dict()
    assert len(state["contexts"]) == 2
    resumed = RewardShrinkage(max_contexts=2, least=2)
    resumed.load_state_dict(state)
    x, s = np.linspace(0, 0.5, 9), np.full(9, 0.2)
    np.testing.assert_array_equal(resumed.apply(x, s), shrinkage.apply(x, s))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="least >= 2"):
        RewardShrinkage(least=1)
    with pytest.raises(ValueError, match="std must not be negative"):
        RewardShrinkage().apply([0.1], [-0.1])
