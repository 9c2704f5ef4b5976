"""The early schedule: its budget to the last anchor, its recorded probabilities, and most of it first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.corrections import EarlySchedule


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(40, 400),
    part=st.floats(0.0, 0.3),
    share=st.floats(0.0, 1.0),
    first=st.floats(0.5, 1.0),
    size=st.integers(1, 8),
)
def test_the_budget_is_spent_to_the_last_anchor_and_not_overspent(
    seed: int, groups: int, part: float, share: float, first: float, size: int
) -> None:
    anchors = int(part * groups)
    schedule = EarlySchedule(anchors * size, episodes=groups * size, share=share, first=first, group_size=size, seed=seed)
    decided = [schedule.decide(episode) for episode in range(2 * groups * size)]
    assert sum(each.anchor for each in decided) == anchors * size
    assert all(each.propensity > 0 for each in decided if each.anchor)
    assert not any(each.anchor or each.propensity for each in decided[groups * size :])


def test_the_recorded_probability_is_how_often_each_episode_is_an_anchor() -> None:
    schedules = [EarlySchedule(12, episodes=90, share=0.6, first=0.3, seed=seed) for seed in range(4000)]
    chosen = np.array([[schedule.decide(episode).anchor for episode in range(90)] for schedule in schedules]).mean(axis=0)
    recorded = np.array([schedules[0].decide(episode).propensity for episode in range(90)])
    assert recorded.sum() == pytest.approx(12)
    error = np.sqrt(recorded * (1 - recorded) / len(schedules))
    assert (np.abs(chosen - recorded) < 4.5 * error).all()


def test_the_first_part_of_the_run_gets_its_share_and_the_rest_keeps_a_floor() -> None:
    schedule = EarlySchedule(100, episodes=6400, share=0.7, first=0.1, seed=3)
    anchors = np.flatnonzero([schedule.decide(episode).anchor for episode in range(6400)])
    assert 72 <= (anchors < 640).sum() <= 74  # 70 of the share, and a tenth of the 30 that are spread over all
    assert all(((anchors >= start) & (anchors < start + 1280)).any() for start in range(640, 6400 - 1280, 1280))


def test_without_a_share_anchors_are_spread_evenly() -> None:
    schedule = EarlySchedule(64, episodes=640, share=0.0)
    assert {schedule.decide(episode).propensity for episode in range(640)} == {0.1}


def test_members_of_a_group_share_the_decision_in_any_order() -> None:
    schedule = EarlySchedule(50, episodes=500, group_size=5, seed=1)
    backwards = [schedule.decide(episode) for episode in reversed(range(500))][::-1]
    again = EarlySchedule(50, episodes=500, group_size=5, seed=1)
    assert [again.decide(episode) for episode in range(500)] == backwards
    assert all(len(set(backwards[start : start + 5])) == 1 for start in range(0, 500, 5))


def test_another_run_chooses_others_and_the_same_run_the_same() -> None:
    schedule = EarlySchedule(50, episodes=500)

    def chosen(seed: int) -> list[bool]:
        return [schedule.reseeded(seed).decide(episode).anchor for episode in range(500)]

    assert chosen(7) == chosen(7)
    assert chosen(7) != chosen(8)
    assert sum(chosen(7)) == 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget": 3, "group_size": 2, "episodes": 10}, "multiples of the group size"),
        ({"budget": 12, "episodes": 10}, "0 <= budget <= episodes"),
        ({"budget": 100, "episodes": 1000, "share": 0.9, "first": 0.01}, "do not fit into the first 0.01"),
        ({"budget": 10, "episodes": 100, "first": 0.0}, r"first must be in \(0, 1\], got 0.0"),
        ({"budget": 10, "episodes": 100, "share": 1.5}, r"must be in \[0, 1\], got 1.5"),
        ({"budget": 10, "episodes": 100, "seed": -1}, "seed >= 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EarlySchedule(**arguments)  # type: ignore[arg-type]
