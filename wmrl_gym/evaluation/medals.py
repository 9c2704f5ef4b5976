"""Medals as MLE-bench awards them, which follows Kaggle's: how many depends on the number of teams."""

from __future__ import annotations

from typing import Literal

from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard

Medal = Literal["gold", "silver", "bronze"]
MEDALS: tuple[Medal, ...] = ("gold", "silver", "bronze")


def medal_ranks(teams: int) -> tuple[int, int, int]:
    """The last ranks that win gold, silver and bronze (MLE-bench, arXiv 2410.07095, table 1).

    ====================  ==============  ======  ======
    teams                 gold            silver  bronze
    ====================  ==============  ======  ======
    fewer than 100        10 %            20 %    40 %
    100 to 249            10              20 %    40 %
    250 to 999            10 and 0.2 %    50      100
    1,000 or more         10 and 0.2 %    5 %     10 %
    ====================  ==============  ======  ======

    Shares are rounded down, and each medal is won by one at the least.

    >>> medal_ranks(30), medal_ranks(100), medal_ranks(500), medal_ranks(2000)
    ((3, 6, 12), (10, 20, 40), (11, 50, 100), (14, 100, 200))

    Raises:
        ValueError: for no team.
    """
    if teams < 1:
        raise ValueError(f"teams must be at least 1, got {teams}")
    gold = max(1, teams // 10) if teams < 100 else 10 if teams < 250 else 10 + teams // 500
    if teams < 250:
        return gold, max(1, teams // 5), max(1, teams * 2 // 5)
    return (gold, 50, 100) if teams < 1000 else (gold, teams // 20, teams // 10)


def medal(score: float, leaderboard: Leaderboard) -> Medal | None:
    """The medal of a score that is at least as good as that of the last rank which wins it; None where it wins none.

    >>> board = Leaderboard.of([0.1 * place for place in range(10)], larger_is_better=True)
    >>> medal(0.95, board), medal(0.8, board), medal(0.65, board), medal(0.5, board)
    ('gold', 'silver', 'bronze', None)
    """
    good = score if leaderboard.larger_is_better else -score
    for name, rank in zip(MEDALS, medal_ranks(len(leaderboard.goodness)), strict=True):
        if good >= leaderboard.goodness[-rank]:
            return name
    return None


def awards_medals(task: Task) -> bool:
    """Whether a task's leaderboard is of teams: DSBench's has a baseline and a ground truth, and a scale between them."""
    return task.grader is None or task.grader.style != "dsbench"
