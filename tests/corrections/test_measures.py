"""Measures of a correction at work."""

from __future__ import annotations

import numpy as np
import pytest

from wmrl_gym.corrections import PairMeasures, ResidualVariance


def test_an_offset_is_no_bias_within_a_group_and_another_order_is() -> None:
    measures = PairMeasures()
    truth = np.tile([0.2, 0.8], 50)
    group = np.repeat(np.arange(50), 2)
    measures.update(truth + 0.1, truth[::-1], truth, group=group)
    said = measures.stats()
    assert said["group_bias_raw"] == pytest.approx(0.0, abs=1e-12)
    assert said["group_bias"] > 0.5
    assert said["bias"] == pytest.approx(0.0, abs=1e-9)


def test_pairs_that_come_alone_are_centred_on_their_context() -> None:
    rng = np.random.default_rng(0)
    measures = PairMeasures()
    for i in range(2000):
        context = i % 2
        truth = rng.random()
        raw = truth + (0.3 if context else -0.3) + rng.normal(0, 0.1)
        measures.update([raw], [truth + rng.normal(0, 0.02)], [truth], group=[i], context=[context])
    said = measures.stats()
    assert said["group_bias_raw"] == pytest.approx(0.1, rel=0.2)
    assert said["group_bias"] == pytest.approx(0.02, rel=0.2)


def test_uneven_chances_are_worth_fewer_pairs() -> None:
    measures = PairMeasures()
    measures.update(np.zeros(100), np.zeros(100), np.zeros(100), group=np.arange(100), propensity=np.full(100, 0.1))
    assert measures.stats()["effective_pairs"] == pytest.approx(100.0)
    uneven = PairMeasures()
    uneven.update(np.zeros(100), np.zeros(100), np.zeros(100), group=np.arange(100), propensity=np.repeat([0.02, 1.0], 50))
    assert uneven.stats()["effective_pairs"] < 60


def test_a_jump_of_the_residual_is_an_alarm_and_resuming_goes_on() -> None:
    rng = np.random.default_rng(0)
    measures = PairMeasures()
    measures.update(np.zeros(300), rng.normal(0, 0.05, 300), np.zeros(300), group=np.arange(300))
    resumed = PairMeasures()
    resumed.load_state_dict(measures.state_dict())
    assert measures.stats()["alarms"] == 0
    for each in (measures, resumed):
        each.update(np.zeros(60), np.full(60, 0.4), np.zeros(60), group=np.arange(60))
    assert measures.stats()["alarms"] == resumed.stats()["alarms"] == 1
    assert measures.stats() == resumed.stats()


def test_inverse_propensities_make_the_residual_variance_that_of_all_episodes() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(40_000) < 0.2
    p = np.where(hard, 0.5, 0.05)
    error = np.where(hard, 0.4, 0.1)
    chosen = rng.random(40_000) < p
    weight = (1 / p[chosen]) / (1 / p[chosen]).mean()
    naive, even = ResidualVariance(window=1e9), ResidualVariance(window=1e9)
    naive.update(np.zeros(chosen.sum()), error[chosen])
    even.update(np.zeros(chosen.sum()), error[chosen], weight=weight)
    assert even.variance == pytest.approx((error**2).mean(), rel=0.1)
    assert naive.variance > 2 * (error**2).mean()
