"""The bookkeeping: the same for one rollout and for many, and the same return in both reward modes."""

from __future__ import annotations

import dataclasses

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
    Progress,
    Rules,
    settle,
)
from wmrl_gym.factored import Outcome

STATUS = st.integers(0, len(STATUSES) - 1)


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
        state, paid = settle(state, outcome_of([status], [value]), rules)
        rewards.append(float(paid.reward[0]))
        ends.append(bool(paid.terminated[0]))
        dues.append(bool(paid.due[0]))
        if ends[-1]:
            break
    return rewards, ends, dues


@given(st.lists(st.tuples(STATUS, st.floats(0.5, 1.0)), min_size=4, max_size=4))
def test_both_reward_modes_have_the_same_return_and_it_is_the_best_attempt(outcomes: list[tuple[int, float]]) -> None:
    final, ends, dues = episode(outcomes, Rules(4, "final"))
    improvement, _, improvement_dues = episode(outcomes, Rules(4, "improvement"))
    best = max(value if status == VALID else STATUS_VALUES[status] for status, value in outcomes)
    assert sum(final) == final[-1] == best
    assert sum(improvement) == pytest.approx(best)
    assert ends == dues == [False, False, False, True]
    for reward, due in zip(improvement, improvement_dues, strict=True):
        assert due or reward == 0


@given(st.data(), st.integers(1, 9), st.sampled_from(["final", "improvement"]), st.sampled_from([None, 0.8]))
def test_many_rollouts_at_once_equal_each_on_its_own(
    data: st.DataObject, count: int, reward: str, terminate_on: float | None
) -> None:
    rules = Rules(3, "final" if reward == "final" else "improvement", terminate_on)
    state = Progress(
        task=np.arange(count),
        turn=np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
        best=np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))),
        best_shown=np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))),
    )
    outcome = outcome_of(
        data.draw(st.lists(STATUS, min_size=count, max_size=count)),
        data.draw(st.lists(st.floats(0.5, 1), min_size=count, max_size=count)),
        data.draw(st.lists(st.booleans(), min_size=count, max_size=count)),
    )
    together = settle(state, outcome, rules)
    apart = [settle(take(state, [i]), take(outcome, [i]), rules) for i in range(count)]
    for whole, parts in ((together[0], concatenate([a[0] for a in apart])), (together[1], concatenate([a[1] for a in apart]))):
        for field in dataclasses.fields(whole):
            np.testing.assert_array_equal(getattr(whole, field.name), getattr(parts, field.name))


def test_an_unknown_outcome_ends_the_episode_and_says_nothing() -> None:
    state = Progress(np.array([0]), np.array([1]), np.array([0.7]), np.array([0.6]))
    for reward in ("final", "improvement"):
        after, paid = settle(state, outcome_of([MALFORMED], [0.0], [False]), Rules(2, reward))
        assert (paid.reward[0], paid.terminated[0], paid.truncated[0]) == (0.0, False, True)
        assert (paid.due[0], paid.valid[0]) == (False, False)
        assert (after.best[0], after.best_shown[0]) == (0.7, 0.6)


def test_terminate_on_looks_at_the_shown_value_and_not_at_the_hidden_one() -> None:
    outcome = outcome_of([VALID, VALID], [0.9, 0.6])
    shown: NDArray[np.float64] = np.array([0.6, 0.9])
    hidden_high_first = Outcome(
        outcome.status, outcome.value, shown, outcome.feedback, outcome.known, outcome.cpu_s, outcome.wall_s
    )
    _, paid = settle(Progress.start(np.array([0, 0])), hidden_high_first, Rules(4, "final", 0.8))
    assert paid.terminated.tolist() == [False, True]
    assert paid.reward.tolist() == [0.0, 0.6]


def test_a_known_outcome_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a finite value"):
        settle(Progress.start(np.array([0])), outcome_of([VALID], [float("nan")]), Rules(3))


def test_a_run_time_error_is_due_in_improvement_mode_and_a_description_is_not() -> None:
    rules = Rules(4, "improvement")
    _, paid = settle(Progress.start(np.array([0, 0])), outcome_of([RUNTIME_ERROR, DESCRIBED], [0.0, 0.0]), rules)
    assert paid.due.tolist() == [True, False]
    assert paid.reward.tolist() == [0.1, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "at least 1, got 0"),
        ((3, "best"), "'final', 'improvement', got 'best'"),
        ((3, "final", 1.5), r"\(0, 1\] or be None, got 1.5"),
        ((3, "final", 0.0), "got 0.0"),
    ],
)
def test_senseless_rules_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(*arguments)  # type: ignore[arg-type]
