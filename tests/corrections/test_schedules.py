"""Schedules that look at what is known: the budget kept, the probability recorded, the past replayed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from wmrl_gym.corrections import (
    AdaptiveSchedule,
    BudgetSchedule,
    EpisodeStart,
    RecordedSchedule,
    UncertaintySchedule,
    residual_reward,
)


def budgeted() -> RecordedSchedule:
    return BudgetSchedule(60.0, groups=400, seed=3)


def uncertain() -> RecordedSchedule:
    return UncertaintySchedule(0.2, seed=3)


def adaptive() -> RecordedSchedule:
    return AdaptiveSchedule(0.1, warmup=10, seed=3)


def act(schedule: RecordedSchedule, rng: np.random.Generator, first: int, last: int) -> list[tuple[bool, float]]:
    out = []
    for episode in range(first, last):
        decision = schedule.decide(episode, EpisodeStart(uncertainty=float(rng.random())))
        if isinstance(schedule, BudgetSchedule) and decision.anchor:
            schedule.spend(float(rng.exponential()))
        if isinstance(schedule, AdaptiveSchedule):
            schedule.observe(float(rng.exponential() * (1 + episode / 50)))
        out.append((decision.anchor, decision.propensity))
    return out


@pytest.mark.parametrize("make", [budgeted, uncertain, adaptive])
def test_a_resumed_schedule_replays_its_past_and_goes_on_the_same(make: Callable[[], RecordedSchedule]) -> None:
    one, other = make(), make()
    rng = np.random.default_rng(0)
    past = act(one, rng, 0, 100)
    other.load_state_dict(one.state_dict())
    assert [(d.anchor, d.propensity) for d in map(other.decide, range(100))] == past
    twin = np.random.default_rng()
    twin.bit_generator.state = rng.bit_generator.state
    assert act(one, rng, 100, 300) == act(other, twin, 100, 300)


@pytest.mark.parametrize("make", [budgeted, uncertain, adaptive])
def test_asked_again_it_answers_the_same(make: Callable[[], RecordedSchedule]) -> None:
    schedule = make()
    past = act(schedule, np.random.default_rng(1), 0, 50)
    again = [schedule.decide(e, EpisodeStart(uncertainty=9.0)) for e in reversed(range(50))]
    assert [(d.anchor, d.propensity) for d in reversed(again)] == past


def test_the_members_of_a_group_agree_whatever_is_known_of_each() -> None:
    schedule = UncertaintySchedule(0.5, group_size=4)
    decisions = [schedule.decide(e, EpisodeStart(uncertainty=float(e + 1))) for e in range(40)]
    for group in range(10):
        assert len(set(decisions[4 * group : 4 * group + 4])) == 1


@pytest.mark.parametrize("cost", [0.2, 1.0, 3.0])
def test_a_budget_is_spent_and_not_exceeded_by_more_than_a_few_runs(cost: float) -> None:
    rng = np.random.default_rng(2)
    schedule = BudgetSchedule(50.0 * cost, groups=1000, cost=1.0)
    for episode in range(1000):
        if schedule.decide(episode).anchor:
            schedule.spend(cost * float(rng.uniform(0.5, 1.5)))
    assert 0.9 * 50 * cost < schedule.spent < 50 * cost + 3 * cost


def test_a_budget_counts_the_anchors_that_still_run() -> None:
    schedule = BudgetSchedule(3.0, groups=3, cost=1.0)
    decisions = [schedule.decide(e).anchor for e in range(10)]
    assert decisions == [True] * 3 + [False] * 7


def test_a_spent_budget_is_propensity_zero() -> None:
    schedule = BudgetSchedule(1.0, groups=10)
    schedule.spend(5.0)
    assert schedule.decide(0).propensity == 0.0
    with pytest.raises(ValueError, match="cost must be finite and at least 0, got nan"):
        schedule.spend(float("nan"))


def test_uncertain_episodes_are_anchors_more_often_and_the_fraction_holds() -> None:
    rng = np.random.default_rng(3)
    schedule = UncertaintySchedule(0.1)
    u = rng.choice([0.5, 1.5], 20_000)
    decisions = [schedule.decide(e, EpisodeStart(uncertainty=float(v))) for e, v in enumerate(u)]
    anchor = np.array([d.anchor for d in decisions])
    assert anchor.mean() == pytest.approx(0.1, abs=0.01)
    assert anchor[u == 1.5].mean() == pytest.approx(3 * anchor[u == 0.5].mean(), rel=0.2)


def test_choosing_by_uncertainty_stays_unbiased_with_the_recorded_propensity() -> None:
    rng = np.random.default_rng(4)
    n = 20_000
    truth = rng.random(n)
    u = 0.2 + truth
    f = truth + u * 0.3
    schedule = UncertaintySchedule(0.1, seed=5)
    decisions = [schedule.decide(e, EpisodeStart(uncertainty=float(v))) for e, v in enumerate(u)]
    anchor, p = np.array([d.anchor for d in decisions]), np.array([d.propensity for d in decisions])
    real = np.where(anchor, truth, np.nan)
    error = residual_reward(f, real, anchor=anchor, propensity=p, kappa=1.0) - truth
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(n)
    wrong = residual_reward(f, real, anchor=anchor, propensity=0.1, kappa=1.0) - truth
    assert abs(wrong.mean()) > 5 * wrong.std() / np.sqrt(n)


def test_unknown_uncertainty_has_the_plain_fraction_and_a_negative_one_is_refused() -> None:
    schedule = UncertaintySchedule(0.1)
    assert schedule.decide(0).propensity == 0.1
    with pytest.raises(ValueError, match=r"uncertainty must be at least 0, got -1\.0"):
        schedule.decide(1, EpisodeStart(uncertainty=-1.0))


def test_disagreement_buys_anchors_within_bounds() -> None:
    schedule = AdaptiveSchedule(0.1, least=0.05, most=0.3, warmup=5, half_life=5.0)
    for _ in range(5):
        schedule.observe(0.02)
    assert schedule.decide(0).propensity == pytest.approx(0.1)
    for _ in range(100):
        schedule.observe(0.08)
    assert schedule.decide(1).propensity == pytest.approx(0.2, rel=0.01)
    for _ in range(100):
        schedule.observe(9.0)
    assert schedule.decide(2).propensity == 0.3
    for _ in range(300):
        schedule.observe(0.0)
    assert schedule.decide(3).propensity == 0.05
    before = schedule.disagreement
    schedule.observe(float("nan"))
    assert schedule.disagreement == before


def test_memory_of_decisions_is_bounded() -> None:
    schedule = UncertaintySchedule(0.1, keep=10)
    for episode in range(100):
        schedule.decide(episode)
    assert len(schedule.state_dict()["groups"]) == 10


def test_a_bounded_memory_does_not_confuse_the_budget() -> None:
    schedule = BudgetSchedule(30.0, groups=100, keep=1)
    total = 0
    for episode in range(100):
        total += schedule.decide(episode).anchor
    assert 25 <= total <= 30
