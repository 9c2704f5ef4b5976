"""What recent anchors confirm."""

from __future__ import annotations

import numpy as np
import pytest

from wmrl_gym.corrections import OnlineCalibration, RewardGuard, SmoothMonotone


def honest(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.1, 0.7, n)
    return x, np.clip(x + rng.normal(0, 0.05, n), 0, 1)


def test_what_is_right_stays_what_it_is() -> None:
    x, r = honest()
    f = OnlineCalibration()
    f.push(x, r)
    guard = RewardGuard(2.0)
    guard.learn(x, r)
    inside = np.linspace(0.15, 0.65, 50)
    calibrated = f.predict(inside)
    said = guard.judge(inside, calibrated=calibrated, standard_error=f.standard_error(inside))
    assert not said.unconfirmed.any()
    np.testing.assert_allclose(said.value, calibrated, atol=0.02)


def test_beyond_all_recent_anchors_it_is_unconfirmed_and_counts_less() -> None:
    x, r = honest()
    guard = RewardGuard(1.0)
    guard.learn(x, r)
    said = guard.judge([0.9], calibrated=[0.9], standard_error=[0.2])
    assert said.unconfirmed.tolist() == [True]
    assert said.value[0] == pytest.approx(0.7)


def test_truths_that_contradict_f_count_though_no_monotone_map_could_say_so() -> None:
    x, r = honest()
    spike_x, spike_r = np.full(12, 0.95), np.full(12, 0.1)
    f = SmoothMonotone()
    f.push(np.concatenate([x, spike_x]), np.concatenate([r, spike_r]))
    assert f.predict([0.95])[0] > 0.4  # a monotone map may not fall below what scores less
    guard = RewardGuard(1.0)
    guard.learn(np.concatenate([x, spike_x]), np.concatenate([r, spike_r]))
    said = guard.judge([0.95, 0.5], calibrated=f.predict([0.95, 0.5]), standard_error=[0.05, 0.05])
    assert not said.unconfirmed.any()
    assert said.value[0] < 0.25
    assert said.value[1] > 0.4


def test_a_deviation_that_no_anchor_had_is_unconfirmed() -> None:
    x, r = honest()
    guard = RewardGuard(1.0)
    guard.learn(x, r, np.full(len(x), 0.1))
    said = guard.judge([0.4, 0.4, 0.4], calibrated=[0.4] * 3, standard_error=[0.01] * 3, std=[0.1, 0.3, np.nan])
    assert said.unconfirmed.tolist() == [False, True, False]


def test_only_recent_anchors_confirm() -> None:
    guard = RewardGuard(1.0, recent=40, after=32)
    guard.learn(np.full(40, 0.9), np.full(40, 0.9))
    assert not guard.judge([0.9], calibrated=[0.9], standard_error=[0.1]).unconfirmed[0]
    guard.learn(np.full(40, 0.2), np.full(40, 0.2))
    assert guard.judge([0.9], calibrated=[0.9], standard_error=[0.1]).unconfirmed[0]


def test_before_enough_anchors_nothing_is_judged_and_unknown_pairs_do_not_count() -> None:
    guard = RewardGuard(1.0, after=32)
    guard.learn(np.full(40, 0.5), np.full(40, np.nan))
    assert not guard.ready
    said = guard.judge([0.9], calibrated=[0.8], standard_error=[0.3])
    assert (said.value.tolist(), said.unconfirmed.tolist()) == ([0.8], [False])


def test_a_resumed_guard_judges_alike_and_senseless_arguments_are_refused() -> None:
    x, r = honest()
    guard, resumed = RewardGuard(1.0), RewardGuard(1.0)
    guard.learn(x, r, np.full(len(x), 0.1))
    resumed.load_state_dict(guard.state_dict())
    asked = np.linspace(0, 1, 20)
    first, second = (each.judge(asked, calibrated=asked, standard_error=0.1 + 0 * asked) for each in (guard, resumed))
    np.testing.assert_array_equal(first.value, second.value)
    with pytest.raises(ValueError, match="pessimism must be positive"):
        RewardGuard(0.0)
    with pytest.raises(ValueError, match="recent >= after >= least"):
        RewardGuard(1.0, after=500)
