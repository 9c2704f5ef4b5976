"""Group advantages: centred, deaf to the unknown, and what calibration does to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.corrections import (
    Advantages,
    SmoothMonotone,
    anchored_rloo,
    dr_grpo,
    grpo,
    residual_advantages,
    residual_reward,
    rloo,
)

PLAIN: tuple[Callable[..., Advantages], ...] = (grpo, dr_grpo, rloo)
rewards = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def residual(reward: np.ndarray, group: np.ndarray, **kwargs: object) -> Advantages:
    nothing = np.full(len(reward), np.nan)
    return residual_advantages(reward, nothing, group, anchor=False, propensity=0.1, residual_var=0.02, **kwargs)  # type: ignore[arg-type]


@given(values=rewards, size=st.integers(1, 8), seed=st.integers(0, 1000))
def test_advantages_sum_to_zero_in_each_group_in_any_order_of_rollouts(values: list[float], size: int, seed: int) -> None:
    r = np.array(values)
    group = np.random.default_rng(seed).permutation(np.arange(r.size) // size)
    for method in (*PLAIN, residual):
        out = method(r, group)
        sums = np.bincount(group, out.value)
        np.testing.assert_allclose(sums, 0.0, atol=1e-7 * max(1.0, np.abs(out.value).max()))


def test_values_by_hand() -> None:
    r, g = np.array([0.0, 0.5, 1.0, 0.2, 0.4]), np.array([5, 5, 5, 2, 2])
    np.testing.assert_allclose(dr_grpo(r, g).value, [-0.5, 0.0, 0.5, -0.1, 0.1])
    np.testing.assert_allclose(rloo(r, g).value, [-0.75, 0.0, 0.75, -0.2, 0.2])
    np.testing.assert_allclose(grpo(r, g, eps=0.0).value, [-(1.5**0.5), 0.0, 1.5**0.5, -1.0, 1.0])
    np.testing.assert_allclose(dr_grpo(r, g, weight=[2, 2, 2, 1, 1]).value, [-1.0, 0.0, 1.0, -0.1, 0.1])


@pytest.mark.parametrize("method", PLAIN)
def test_an_invalid_rollout_is_as_if_it_had_never_been(method: Callable[..., Advantages]) -> None:
    with_it = method([0.0, 1.0, 0.3], [0, 0, 0], valid=[True, True, False])
    without = method([0.0, 1.0], [0, 0])
    assert with_it.value[:2].tolist() == without.value.tolist()
    assert with_it.value[2] == 0.0
    assert with_it.mask.tolist() == [True, True, False]
    assert method([0.0, 1.0, np.nan], [0, 0, 0]).mask.tolist() == [True, True, False]


@pytest.mark.parametrize("method", [*PLAIN, residual])
def test_a_group_with_one_valid_member_is_skipped_and_counted(method: Callable[..., Advantages]) -> None:
    out = method(np.array([0.9, 0.1, 0.4, 0.6]), np.array([0, 0, 1, 1]), valid=[True, False, True, True])
    assert out.mask.tolist() == [False, False, True, True]
    assert out.value[:2].tolist() == [0.0, 0.0]
    assert (out.skipped, out.degenerate) == (1, 0)


@pytest.mark.parametrize("method", [*PLAIN, residual])
def test_an_all_equal_group_has_no_advantage_and_is_counted(method: Callable[..., Advantages]) -> None:
    out = method(np.array([0.1, 0.1, 0.1, 0.0, 1.0]), np.array([0, 0, 0, 1, 1]))
    np.testing.assert_allclose(out.value[:3], 0.0, atol=1e-12)
    assert out.degenerate == 1
    assert out.mask.all()


def test_jitter_stays_small_under_the_posterior_scale_and_is_blown_up_by_the_groups_own() -> None:
    jitter, group = np.array([0.5, 0.501]), np.array([0, 0])
    assert np.abs(residual(jitter, group).value).max() < 0.01
    assert np.abs(grpo(jitter, group).value).max() > 0.8


def test_standardising_a_group_does_not_cancel_f_though_it_cancels_an_affine_map() -> None:
    x, group = np.array([0.1, 0.5, 0.8, 0.9]), np.zeros(4, int)
    f = SmoothMonotone()
    grid = np.linspace(0, 1, 3000)
    f.push(grid, grid**3)
    raw = grpo(x, group, eps=0.0).value
    np.testing.assert_allclose(grpo(0.25 + 0.5 * x, group, eps=0.0).value, raw)
    assert np.abs(grpo(f.predict(x), group, eps=0.0).value - raw).max() > 0.15


def test_the_residual_is_added_after_centring_and_touches_its_own_rollout_only() -> None:
    f, group = np.array([0.2, 0.4, 0.6]), np.zeros(3, int)
    real, anchor = np.array([np.nan, 1.0, np.nan]), np.array([False, True, False])
    scale = np.sqrt(f.var() + 0.05)
    out = residual_advantages(f, real, group, anchor=anchor, propensity=0.1, residual_var=0.05, kappa=0.5, clip=None)
    np.testing.assert_allclose(out.value * scale, [-0.2, 0.0 + 5 * 0.6, 0.2])


def test_advantages_are_clipped_at_five_root_mean_squares() -> None:
    f, group = np.full(200, 0.5), np.repeat(np.arange(25), 8)
    anchor = np.arange(200) == 3
    kwargs = {"anchor": anchor, "propensity": 0.01, "residual_var": 0.05}
    free = residual_advantages(f, np.ones(200), group, clip=None, **kwargs)
    cut = residual_advantages(f, np.ones(200), group, **kwargs)
    assert cut.value[3] == pytest.approx(5 * np.sqrt((free.value**2).mean()))
    assert cut.value[3] < free.value[3]


def test_anchors_at_propensity_one_and_kappa_one_are_the_truth() -> None:
    rng = np.random.default_rng(0)
    f, r, group = rng.random(16), rng.random(16), np.repeat([0, 1], 8)
    out = anchored_rloo(f, r, group, anchor=True, propensity=1.0)
    baseline = np.array([np.delete(f[group == g], i % 8).mean() for i, g in enumerate(group)])
    np.testing.assert_allclose(out.value, r - baseline)


def test_no_anchors_is_leave_one_out_on_the_predictions() -> None:
    f, group = np.random.default_rng(1).random(16), np.repeat([0, 1], 8)
    out = anchored_rloo(f, np.full(16, np.nan), group, anchor=False, propensity=0.0)
    np.testing.assert_allclose(out.value, rloo(f, group).value)


def test_leave_one_out_with_anchors_has_the_true_policy_gradient_as_its_mean_for_a_wrong_f() -> None:
    # A softmax over 3 arms: the exact gradient in its logits against the mean of many sampled groups.
    rng = np.random.default_rng(2)
    logits, truth, wrong = np.array([0.3, -0.2, 0.5]), np.array([0.0, 1.0, 0.4]), np.array([0.9, 0.2, 0.1])
    policy = np.exp(logits) / np.exp(logits).sum()
    exact = policy * (truth - policy @ truth)
    n, p = 120_000, 0.25
    arms = rng.choice(3, n, p=policy)
    anchor = rng.random(n) < p
    real = np.where(anchor, truth[arms], np.nan)
    group = np.arange(n) // 4
    a = anchored_rloo(wrong[arms], real, group, anchor=anchor, propensity=p).value
    terms = a[:, None] * (np.eye(3)[arms] - policy)
    error = terms.std(axis=0) / np.sqrt(n)
    assert (np.abs(terms.mean(axis=0) - exact) < 5 * error).all()
    raw = rloo(wrong[arms], group).value[:, None] * (np.eye(3)[arms] - policy)
    assert np.abs(raw.mean(axis=0) - exact).max() > 20 * error.max()


def test_the_residual_advantage_agrees_with_the_residual_reward() -> None:
    rng = np.random.default_rng(3)
    f, r, group = rng.random(16), rng.random(16), np.repeat([0, 1], 8)
    anchor = rng.random(16) < 0.5
    reward = residual_reward(f, r, anchor=anchor, propensity=0.5, kappa=0.3)
    a = residual_advantages(f, r, group, anchor=anchor, propensity=0.5, kappa=0.3, residual_var=0.02, clip=None)
    scale = np.sqrt(np.array([f[group == g].var() for g in group]) + 0.02)
    np.testing.assert_allclose(a.value * scale - reward, -np.repeat([f[:8].mean(), f[8:].mean()], 8))


def test_empty_batches_are_answered_in_kind() -> None:
    for method in PLAIN:
        out = method([], np.zeros(0, int))
        assert out.value.shape == out.mask.shape == (0,)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group must have shape \(2,\), got \(3,\)"):
        grpo([0.1, 0.2], [0, 0, 0])
    with pytest.raises(ValueError, match=r"valid must have shape \(2,\), got \(1,\)"):
        grpo([0.1, 0.2], [0, 0], valid=[True])
    with pytest.raises(ValueError, match="residual_var must be positive, got 0"):
        residual_advantages([0.1], [0.1], [0], anchor=False, propensity=0.1, residual_var=0.0)
