"""The weight of an anchor, measured from the rewards of both streams."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from wmrl_gym.corrections import GradientFusion, OnlineCalibration, RewardFusion


def streams(sigma: float, n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truths of several contexts, predictions with noise, and contexts."""
    rng = np.random.default_rng(seed)
    context = rng.integers(0, 4, n)
    truth = 0.1 * context + rng.normal(0.3, 0.1, n)
    return truth + rng.normal(0.0, sigma, n), truth, context


def fed(x: np.ndarray, r: np.ndarray, context: np.ndarray, *, method: Literal["delta", "bootstrap"] = "delta") -> RewardFusion:
    fusion = RewardFusion(GradientFusion(method=method))
    for start in range(0, len(x), 40):
        part = slice(start, start + 40)
        fusion.observe(x[part], context[part])
        fusion.update(x[part][:20], r[part][:20], context[part][:20])
    return fusion


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("method", ["delta", "bootstrap"])
def test_a_raw_unbiased_stream_gets_the_ratio_of_the_variances(sigma: float, method: Literal["delta", "bootstrap"]) -> None:
    fusion = fed(*streams(sigma), method=method)
    assert fusion.weight == pytest.approx((0.1**2 + sigma**2) / 0.1**2, rel=0.3)


def test_a_calibrated_stream_has_lost_its_noise_and_an_anchor_counts_once() -> None:
    x, r, context = streams(0.2)
    f = OnlineCalibration()
    f.push(x, np.clip(r, 0, 1), context=context)
    fusion = fed(f.predict(x, context=context), r, context)
    assert fusion.weight == pytest.approx(1.0, abs=0.3)
    assert fusion.slope < 0.5


def test_a_prediction_that_says_nothing_never_outweighs_the_truth() -> None:
    _, r, context = streams(0.1)
    fusion = fed(0.3 + 1e-6 * np.random.default_rng(1).normal(size=len(r)), r, context)
    assert fusion.slope == 0.05
    assert fusion.weight <= 1.0  # what such a stream contributes is next to nothing, whatever its weight
    assert np.isfinite(fusion.weight)


def test_nothing_known_is_weight_one_and_unknown_truths_are_left_out() -> None:
    fusion = RewardFusion()
    fusion.observe([0.5, np.nan])
    fusion.update([0.5, 0.6], [np.nan, np.nan])
    assert fusion.weight == 1.0


def test_a_resumed_weight_equals_one_never_stopped() -> None:
    x, r, context = streams(0.1, n=800)
    half = fed(x[:400], r[:400], context[:400], method="bootstrap")
    resumed = RewardFusion(GradientFusion(method="bootstrap"))
    resumed.load_state_dict(half.state_dict())
    for fusion in (half, resumed):
        fusion.observe(x[400:], context[400:])
        fusion.update(x[400:], r[400:], context[400:])
    assert resumed.weight == half.weight


def test_senseless_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="need window >= batch >= 2, got batch 1 and window 512"):
        RewardFusion(batch=1)
