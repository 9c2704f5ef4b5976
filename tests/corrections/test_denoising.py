"""Weights and shrinkage: the paper's numbers, and a fused variance below either stream's."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.corrections import AnchorWeight, GradientFusion, fuse_samples, fuse_variances, mean_variance, shrink

variances = st.floats(1e-300, 1e300)


@given(anchor=variances, model=variances)
def test_the_fused_variance_is_below_each_stream_and_the_weights_sum_to_one(anchor: float, model: float) -> None:
    fusion = fuse_variances(anchor, model)
    assert fusion.variance <= min(anchor, model)
    assert fusion.variance == pytest.approx(min(anchor, model) / (1 + min(anchor, model) / max(anchor, model)))
    assert fusion.anchor + fusion.model == pytest.approx(1.0)


def test_no_other_weights_have_less_variance() -> None:
    best = fuse_variances(2.0, 5.0)
    for share in np.linspace(0, 1, 101):
        assert share**2 * 2.0 + (1 - share) ** 2 * 5.0 >= best.variance - 1e-12


def test_the_fused_variance_is_what_simulation_measures() -> None:
    rng = np.random.default_rng(0)
    fusion = fuse_variances(1.0, 4.0)
    fused = fusion.anchor * rng.normal(0, 1, 200_000) + fusion.model * rng.normal(0, 2, 200_000)
    assert fused.var() == pytest.approx(fusion.variance, rel=0.02)


def test_extreme_variances() -> None:
    assert fuse_variances(1.0, np.inf).anchor == 1.0
    assert fuse_variances(np.inf, 1.0).model == 1.0
    assert fuse_variances(0.0, 1.0).variance == 0.0
    for pair in ((np.inf, np.inf), (0.0, 0.0), (-1.0, 1.0), (np.nan, 1.0)):
        with pytest.raises(ValueError, match="variances must be"):
            fuse_variances(*pair)


def groups(rng: np.random.Generator, n: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    real = rng.random(n * 8)
    return real + rng.normal(0, noise, n * 8), real, np.repeat(np.arange(n), 8)


def test_the_papers_weight_is_1_then_2_after_32_groups_then_follows_the_disagreement_up_to_4() -> None:
    rng = np.random.default_rng(0)
    w = AnchorWeight()
    w.update(*groups(rng, 31, 0.2))
    assert w.weight == 1.0
    w.update(*groups(rng, 1, 0.2))
    assert w.weight == pytest.approx(2.0)
    w.update(*groups(rng, 400, 0.02))
    assert 1.0 < w.weight < 1.2
    w.update(*groups(rng, 400, 2.0))
    assert w.weight == 4.0


def test_the_disagreement_is_an_exponential_mean_with_a_half_life_of_64_groups() -> None:
    w = AnchorWeight()
    w.update([0.0, 1.0], [0.0, 1.0], [0, 0])
    for _ in range(64):
        w.update([0.0, 3.0], [0.0, 1.0], [0, 0])
    # A group's own ratio here is ((0 - 2) / 2)^2 / (1 / 2)^2 = 4.
    assert w.disagreement == pytest.approx(2.0)


def test_a_constant_offset_is_no_disagreement_and_a_flat_truth_no_group() -> None:
    w = AnchorWeight()
    w.update([0.5, 0.9], [0.1, 0.5], [3, 3])
    assert w.disagreement == pytest.approx(0.0)
    w.update([0.5, 0.9], [0.5, 0.5], [4, 4])
    assert w.n_groups == 1


def test_unknown_truths_are_left_out_of_their_group() -> None:
    one, other = AnchorWeight(), AnchorWeight()
    one.update([0.1, 0.6, 0.3], [0.0, 1.0, np.nan], [0, 0, 0])
    other.update([0.1, 0.6], [0.0, 1.0], [0, 0])
    assert one.disagreement == other.disagreement


def test_singletons_are_pooled_eight_at_a_time_in_order_of_arrival() -> None:
    rng = np.random.default_rng(1)
    f, r, _ = groups(rng, 2, 0.2)
    single, grouped = AnchorWeight(), AnchorWeight()
    for i in range(16):
        single.update(f[i : i + 1], r[i : i + 1], [i])
    grouped.update(f, r, np.repeat([0, 1], 8))
    assert single.disagreement == pytest.approx(grouped.disagreement)
    assert single.n_groups == 2


def test_a_resumed_weight_equals_one_never_stopped() -> None:
    rng = np.random.default_rng(2)
    one, other = AnchorWeight(warmup=5), AnchorWeight(warmup=5)
    one.update(*groups(rng, 4, 0.2))
    one.update([0.2, 0.3], [0.1, 0.5], [100, 101])
    other.load_state_dict(one.state_dict())
    rest = groups(rng, 20, 0.4)
    for w in (one, other):
        w.update(*rest)
        w.update(np.linspace(0, 1, 6), np.linspace(0, 1, 6) ** 2)
    assert one.weight == other.weight > 1.0
    assert one.n_groups == other.n_groups == 25


def test_shrinking_reduces_the_error_when_the_model_knows_its_noise() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0.5, 0.1, (500, 8))
    std = rng.choice([0.02, 0.4], (500, 8))
    seen = truth + std * rng.normal(size=truth.shape)
    group = np.repeat(np.arange(500), 8)
    out = shrink(seen.ravel(), std.ravel(), group).reshape(truth.shape)
    assert ((out - truth) ** 2).mean() < 0.3 * ((seen - truth) ** 2).mean()


def test_shrinking_leaves_the_unknown_and_the_lonely_alone() -> None:
    out = shrink([0.1, 0.9, 0.4, 0.7], [np.nan, 0.3, 0.3, 0.5], [0, 0, 0, 1])
    assert out[0] == 0.1
    assert out[3] == 0.7
    assert out[1] < 0.9


def test_shrinking_keeps_every_reward_within_its_groups_span() -> None:
    rng = np.random.default_rng(4)
    x, s = rng.random(400), rng.exponential(0.2, 400)
    group = np.repeat(np.arange(50), 8)
    out = shrink(x, s, group).reshape(50, 8)
    x = x.reshape(50, 8)
    assert (out >= x.min(1, keepdims=True) - 1e-12).all()
    assert (out <= x.max(1, keepdims=True) + 1e-12).all()


def test_exact_predictions_are_not_shrunk() -> None:
    x = np.array([0.1, 0.5, 0.9])
    np.testing.assert_allclose(shrink(x, np.zeros(3)), x)


def test_a_negative_deviation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"std must not be negative, got \[-1.\]"):
        shrink([0.1], [-1.0])


def test_fused_samples_ignore_unreadable_replies() -> None:
    mean, std = fuse_samples([[0.2, np.nan, np.nan], [0.4, 0.5, np.nan]])
    assert mean[:2].tolist() == pytest.approx([0.3, 0.5])
    assert std[0] == pytest.approx(0.1)
    assert np.isnan(mean[2])
    assert np.isnan(std[1:]).all()


def test_fused_samples_have_less_variance_than_the_best_member() -> None:
    _, std = fuse_samples([[0.2], [0.4]], [[0.1], [0.3]])
    assert std[0] == pytest.approx(np.sqrt(fuse_variances(0.01, 0.09).variance))


def test_bootstrap_and_delta_method_agree_with_the_true_variance_of_a_mean() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(0, [1.0, 2.0], (400, 2))
    assert mean_variance(x) == pytest.approx(5.0 / 400, rel=0.15)
    assert mean_variance(x, method="bootstrap", draws=2000, rng=rng) == pytest.approx(mean_variance(x), rel=0.1)
    assert mean_variance(x[:1]) == np.inf


@pytest.mark.parametrize("method", ["delta", "bootstrap"])
def test_the_gradient_weight_is_the_ratio_of_variances_and_resumes(method: Literal["delta", "bootstrap"]) -> None:
    rng = np.random.default_rng(6)
    one, other = GradientFusion(method=method), GradientFusion(method=method)
    assert one.weight == 1.0
    steps = [(rng.normal(0, 1, (30, 3)), rng.normal(0, 2, (200, 3))) for _ in range(40)]
    for anchors, others in steps[:20]:
        one.update(anchors, others)
    other.load_state_dict(one.state_dict())
    for anchors, others in steps[20:]:
        one.update(anchors, others)
        other.update(anchors, others)
    assert one.weight == other.weight == pytest.approx(4.0, rel=0.15)
    fused = one.fused(n_anchors=30, n_others=200)
    anchor, model = one.variances
    assert fused.variance < min(anchor / 30, model / 200)
