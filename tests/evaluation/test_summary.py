"""Medals and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard
from wmrl_gym.evaluation import Graded, medal, medal_ranks, summarize
from wmrl_gym.evaluation.summary import interval


@pytest.mark.parametrize(
    ("teams", "ranks"),
    [
        (1, (1, 1, 1)),
        (9, (1, 1, 3)),
        (99, (9, 19, 39)),
        (100, (10, 20, 40)),
        (249, (10, 49, 99)),
        (250, (10, 50, 100)),
        (999, (11, 50, 100)),
        (1000, (12, 50, 100)),
        (5000, (20, 250, 500)),
    ],
)
def test_how_many_win_depends_on_the_number_of_teams(teams: int, ranks: tuple[int, int, int]) -> None:
    assert medal_ranks(teams) == ranks


@given(st.integers(1, 5000))
def test_the_better_medal_is_never_the_more_frequent(teams: int) -> None:
    gold, silver, bronze = medal_ranks(teams)
    assert 1 <= gold <= silver <= bronze <= teams


@pytest.mark.parametrize("larger", [True, False])
def test_a_tie_with_the_last_rank_that_wins_does_win(larger: bool) -> None:
    scores = np.arange(100.0) if larger else -np.arange(100.0)
    board = Leaderboard.of(scores, larger_is_better=larger)
    sign = 1.0 if larger else -1.0
    assert [medal(sign * score, board) for score in (90, 89.9, 80, 60, 59.9)] == ["gold", "silver", "silver", "bronze", None]


def episode(task: str, seed: int, percentile: float, *, score: float | None = 1.0, tokens: int | None = 5) -> Graded:
    return Graded(task, seed, score, percentile, "", 0.5, 4, 2, 4, tokens, 1.0, 0.5, "finished")


def test_each_task_counts_the_same_however_many_seeds_it_has() -> None:
    found = summarize([episode("a", seed, 1.0) for seed in range(9)] + [episode("b", 0, 0.0)])
    assert found["all"]["percentile"]["mean"] == 0.5
    assert found["tasks"]["a"]["percentile"] == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_an_interval_needs_two_seeds_of_each_task() -> None:
    found = summarize([episode("a", 0, 0.2), episode("a", 1, 0.4), episode("b", 0, 0.5)])
    assert found["all"]["percentile"]["low"] is None
    assert found["tasks"]["a"]["percentile"]["low"] == 0.2


def test_what_nobody_counted_is_unknown_in_the_sum() -> None:
    found = summarize([episode("a", 0, 0.2), episode("a", 1, 0.2, tokens=None)])
    assert found["all"]["tokens"] is None
    assert summarize([episode("a", 0, 0.2)])["all"]["tokens"] == 5


def test_an_episode_without_a_submission_has_no_score_and_beats_nobody() -> None:
    found = summarize([episode("a", 0, 0.8, score=2.0), episode("a", 1, 0.0, score=None)])["tasks"]["a"]
    assert (found["score"]["mean"], found["percentile"]["mean"], found["valid_rate"]["mean"]) == (2.0, 0.4, 0.5)


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = interval([rng.normal(size=12).tolist() for _ in range(3)])
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.0 <= found.high
    assert 0.88 <= covered / 200 <= 0.99
