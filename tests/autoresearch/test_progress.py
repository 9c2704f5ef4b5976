"""The bookkeeping: the same for one rollout and for many, and the same return in both reward modes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wmrl_gym.batch import concatenate, take
from wmrl_gym.envs.autoresearch.rules import (
    DESCRIBED,
    MALFORMED,
    RUNTIME_ERROR,
    STATUS_VALUES,
    STATUSES,
    VALID,
    Payment,
    Progress,
    Rules,
    settle,
    shown_value,
)
from wmrl_gym.factored import Outcome

STATUS = st.integers(0, len(STATUSES) - 1)


def settled(state: Progress, outcome: Outcome, rules: Rules) -> tuple[Progress, Payment]:
    """The booking, where the agent sees what its attempts are worth on validation."""
    return settle(state, outcome, rules, seen=outcome.shown)


def outcome_of(statuses: list[int], values: list[float], known: list[bool] | None = None) -> Outcome:
    status = np.array(statuses, dtype=np.int64)
    fixed = np.array(STATUS_VALUES)[status]
    value = np.where(np.isnan(fixed), np.array(values), fixed)
    count = len(status)
    return Outcome(
        status=status,
        value=value,
        shown=np.where(status == DESCRIBED, np.nan, value),
        feedback=np.full(count, "", dtype=object),
        known=np.ones(count, dtype=np.bool_) if known is None else np.array(known, dtype=np.bool_),
        cpu_s=np.zeros(count),
        wall_s=np.zeros(count),
    )


def episode(outcomes: list[tuple[int, float]], rules: Rules) -> tuple[list[float], list[bool], list[bool]]:
    """Rewards, ends and dues of one episode."""
    state = Progress.start(np.array([3]))
    rewards, ends, dues = [], [], []
    for status, value in outcomes:
        state, paid = settled(state, outcome_of([status], [value]), rules)
        rewards.append(float(paid.reward[0]))
        ends.append(bool(paid.terminated[0]))
        dues.append(bool(paid.due[0]))
        if ends[-1]:
            break
    return rewards, ends, dues


@given(st.lists(st.tuples(STATUS, st.floats(0.5, 1.0)), min_size=4, max_size=4))
def test_both_reward_modes_have_the_same_return_and_it_is_the_best_attempt(outcomes: list[tuple[int, float]]) -> None:
    final, ends, dues = episode(outcomes, Rules(max_turns=4))
    improvement, _, improvement_dues = episode(outcomes, Rules(max_turns=4, reward="improvement"))
    best = max(value if status == VALID else STATUS_VALUES[status] for status, value in outcomes)
    assert sum(final) == final[-1] == best
    assert sum(improvement) == pytest.approx(best)
    assert ends == dues == [False, False, False, True]
    for reward, due in zip(improvement, improvement_dues, strict=True):
        assert due or reward == 0


@given(st.data(), st.integers(1, 9), st.sampled_from(["final", "improvement", "best_test"]), st.sampled_from([None, 0.8]))
def test_many_rollouts_at_once_equal_each_on_its_own(
    data: st.DataObject, count: int, reward: str, terminate_on: float | None
) -> None:
    rules = Rules(max_turns=3, reward=reward, terminate_on=terminate_on)  # type: ignore[arg-type]
    state = Progress(
        task=np.arange(count),
        turn=np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
        best=np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))),
        best_shown=np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))),
        chosen_by=np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))),
    )
    outcome = outcome_of(
        data.draw(st.lists(STATUS, min_size=count, max_size=count)),
        data.draw(st.lists(st.floats(0.5, 1), min_size=count, max_size=count)),
        data.draw(st.lists(st.booleans(), min_size=count, max_size=count)),
    )
    together = settled(state, outcome, rules)
    apart = [settled(take(state, [i]), take(outcome, [i]), rules) for i in range(count)]
    for whole, parts in ((together[0], concatenate([a[0] for a in apart])), (together[1], concatenate([a[1] for a in apart]))):
        for field in dataclasses.fields(whole):
            np.testing.assert_array_equal(getattr(whole, field.name), getattr(parts, field.name))


def test_an_unknown_outcome_ends_the_episode_and_says_nothing() -> None:
    state = Progress(np.array([0]), np.array([1]), np.array([0.7]), np.array([0.6]), np.array([0.6]))
    for reward in ("final", "improvement"):
        after, paid = settled(state, outcome_of([MALFORMED], [0.0], [False]), Rules(max_turns=2, reward=reward))
        assert (paid.reward[0], paid.terminated[0], paid.truncated[0]) == (0.0, False, True)
        assert (paid.due[0], paid.valid[0]) == (False, False)
        assert (after.best[0], after.best_shown[0]) == (0.7, 0.6)


def test_terminate_on_looks_at_the_shown_value_and_not_at_the_hidden_one() -> None:
    outcome = outcome_of([VALID, VALID], [0.9, 0.6])
    shown: NDArray[np.float64] = np.array([0.6, 0.9])
    hidden_high_first = Outcome(
        outcome.status, outcome.value, shown, outcome.feedback, outcome.known, outcome.cpu_s, outcome.wall_s
    )
    _, paid = settled(Progress.start(np.array([0, 0])), hidden_high_first, Rules(max_turns=4, terminate_on=0.8))
    assert paid.terminated.tolist() == [False, True]
    assert paid.reward.tolist() == [0.0, 0.6]


def test_a_known_outcome_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a finite value"):
        settled(Progress.start(np.array([0])), outcome_of([VALID], [float("nan")]), Rules(max_turns=3))


def test_a_run_time_error_is_due_in_improvement_mode_and_a_description_is_not() -> None:
    rules = Rules(max_turns=4, reward="improvement")
    _, paid = settled(Progress.start(np.array([0, 0])), outcome_of([RUNTIME_ERROR, DESCRIBED], [0.0, 0.0]), rules)
    assert paid.due.tolist() == [True, False]
    assert paid.reward.tolist() == [0.1, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "at least 1, got 0"),
        ({"max_turns": 3, "reward": "best"}, "'final', 'improvement', 'best_test', got 'best'"),
        ({"max_turns": 3, "terminate_on": 1.5}, r"\(0, 1\] or be None, got 1.5"),
        ({"max_turns": 3, "terminate_on": 0.0}, "got 0.0"),
    ],
)
def test_senseless_rules_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(**arguments)


def noisy(count: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of attempts that are all as good, on validation and on the test part."""
    rng = np.random.default_rng(seed)
    return 0.75 + rng.normal(0, 0.08, count), 0.75 + rng.normal(0, 0.08, count)


def played(validation: NDArray[np.float64], test: NDArray[np.float64], reward: str) -> float:
    """What an episode of these attempts pays in all."""
    state, rules, total = Progress.start(np.array([0])), Rules(max_turns=len(test), reward=reward), 0.0  # type: ignore[arg-type]
    for shown, value in zip(validation, test, strict=True):
        outcome = dataclasses.replace(outcome_of([VALID], [value]), shown=np.array([shown]))
        state, paid = settle(state, outcome, rules, seen=outcome.shown)
        total += float(paid.reward[0])
    return total


@pytest.mark.parametrize("reward", ["final", "improvement"])
def test_the_attempt_that_is_best_on_validation_is_the_one_that_pays(reward: str) -> None:
    for seed in range(20):
        validation, test = noisy(64, seed)
        assert played(validation, test, reward) == pytest.approx(test[validation.argmax()])
        assert played(validation, test, "best_test") == test.max()


def test_many_attempts_do_not_raise_the_reward_by_luck_unless_the_best_test_score_pays() -> None:
    final, lucky = (np.mean([played(*noisy(64, seed), reward) for seed in range(40)]) for reward in ("final", "best_test"))
    assert abs(final - 0.75) < 0.04
    assert lucky > 0.9


def test_an_improvement_on_validation_may_cost_on_the_test_part() -> None:
    assert played(np.array([0.6, 0.7]), np.array([0.9, 0.8]), "improvement") == pytest.approx(0.8)
    assert played(np.array([0.6, 0.6]), np.array([0.8, 0.9]), "final") == 0.8  # of equals, the first


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=50))
def test_what_an_agent_sees_of_valid_submissions_takes_twenty_one_values(values: list[float]) -> None:
    seen = shown_value(np.array(values))
    assert set(np.round(seen * 40, 9)) <= set(range(20, 41))
    assert np.abs(seen - values).max() <= 0.0125 + 1e-9
    np.testing.assert_array_equal(shown_value(np.array([0.0, 0.1, 0.2, np.nan])), [0.0, 0.1, 0.2, np.nan])
