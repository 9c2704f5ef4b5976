"""What an evaluation found: a row for each episode, for each task and for all, with intervals over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_RESAMPLES = 2000
LEVEL = 0.95
"""Of intervals."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and a bootstrap interval of it over seeds.

    Args:
        mean: of what is known; None where nothing is.
        low: lower end; None where fewer than two seeds are known for each task.
        high: upper end.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Graded:
    """One episode of which something is known.

    Args:
        task: its name.
        seed: its seed.
        score: on the hidden part, in the task's own units, of the submission that was best on validation; None without one.
        percentile: the share of the leaderboard that it beats, 0 without a submission.
        medal: "gold", "silver", "bronze", "" for none; None where the leaderboard awards none.
        reward: on the ladder.
        turns: replies.
        valid_turns: replies that brought a valid submission.
        executions: scripts that were run.
        tokens: of prompts and replies; None where nobody counted.
        seconds: it took.
        cpu_s: CPU seconds of its scripts.
        ended: "finished", "agent" or "timeout".
        problem: what went wrong, "" where nothing did.
    """

    task: str
    seed: int
    score: float | None
    percentile: float
    medal: str | None
    reward: float
    turns: int
    valid_turns: int
    executions: int
    tokens: int | None
    seconds: float
    cpu_s: float
    ended: str
    problem: str = ""

    @property
    def valid(self) -> bool:
        """Whether it ended with a valid submission."""
        return self.score is not None


def summarize(episodes: Sequence[Graded]) -> dict[str, Any]:
    """Figures of each task and of all tasks, as JSON.

    Each task counts as much as every other one. Intervals are percentiles of means of resampled seeds, drawn anew within each
    task, the same numbers each time.

    >>> one = Graded("a", 0, 0.5, 0.4, "", 0.7, 4, 2, 4, None, 1.0, 0.1, "finished")
    >>> summarize([one])["all"]["percentile"]
    {'mean': 0.4, 'low': None, 'high': None}
    """
    by_task: dict[str, list[Graded]] = {}
    for each in sorted(episodes, key=lambda each: (each.task, each.seed)):
        by_task.setdefault(each.task, []).append(each)
    rows = {name: _row({name: some}) for name, some in by_task.items()}
    return {"all": _row(by_task, scores=False), "tasks": rows}


def _row(by_task: Mapping[str, Sequence[Graded]], *, scores: bool = True) -> dict[str, Any]:
    several = [each for some in by_task.values() for each in some]
    tokens = [each.tokens for each in several]
    counted = None if any(each is None for each in tokens) else sum(each for each in tokens if each is not None)
    row: dict[str, Any] = {
        "episodes": len(several),
        "percentile": _figures(by_task, lambda each: each.percentile),
        "reward": _figures(by_task, lambda each: each.reward),
        "valid_rate": _figures(by_task, lambda each: float(each.valid)),
        "valid_turn_rate": _figures(by_task, lambda each: each.valid_turns / each.turns if each.turns else None),
        "medal_rate": _figures(by_task, lambda each: None if each.medal is None else float(bool(each.medal))),
        "medals": dict(Counter(each.medal for each in several if each.medal)),
        "tokens": counted if several else None,
        "executions": sum(each.executions for each in several),
        "seconds": sum(each.seconds for each in several),
        "cpu_s": sum(each.cpu_s for each in several),
        "agent_failures": sum(each.ended != "finished" for each in several),
    }
    return row | ({"score": _figures(by_task, lambda each: each.score)} if scores else {})


def _figures(by_task: Mapping[str, Sequence[Graded]], of: Callable[[Graded], float | None]) -> dict[str, float | None]:
    given = [[value for each in some if (value := of(each)) is not None] for some in by_task.values()]
    found = interval([some for some in given if some])
    return {"mean": found.mean, "low": found.low, "high": found.high}


def interval(values: Sequence[Sequence[float]]) -> Interval:
    """The mean over tasks of the mean over seeds, and its bootstrap interval.

    Args:
        values: for each task the values of its seeds, one at the least.

    >>> interval([[0.0, 1.0], [1.0, 1.0]])
    Interval(mean=0.75, low=0.5, high=1.0)
    """
    if not values:
        return Interval(None)
    mean = float(np.mean([np.mean(some) for some in values]))
    if any(len(some) < 2 for some in values):
        return Interval(mean)
    rng = np.random.default_rng(0)
    means = np.zeros(_RESAMPLES)
    for some in values:
        drawn = rng.integers(0, len(some), (_RESAMPLES, len(some)))
        means += np.asarray(some, np.float64)[drawn].mean(axis=1) / len(values)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high))


def table(results: Mapping[str, Any]) -> Any:
    """The results of an evaluation as a rich table of at most 80 columns."""
    from rich.box import SIMPLE
    from rich.table import Table

    caption = (
        f"beats: share of the leaderboard on hidden answers, mean [{LEVEL:.0%} interval over seeds]\n"
        "medals: gold, silver, bronze by MLE-bench's rules; valid: episodes with a submission"
    )
    shown = Table(title=f"{results['agent']['label']}", title_justify="left", caption=caption, caption_justify="left", box=SIMPLE)
    shown.padding = (0, 1, 0, 0)
    shown.add_column("task", overflow="ellipsis", max_width=20, no_wrap=True)
    for heading in ("score", "beats", "medals", "valid", "tokens", "s", "n"):
        shown.add_column(heading, justify="right", no_wrap=True)
    rows = dict(results["summary"]["tasks"])
    if len(rows) != 1:
        rows["all"] = results["summary"]["all"]
    for name, row in rows.items():
        score = row.get("score", {"mean": None})["mean"]
        tokens = "-" if row["tokens"] is None else f"{row['tokens']:,}"
        medals = " ".join(str(row["medals"].get(each, 0)) for each in ("gold", "silver", "bronze"))
        awarded = row["medal_rate"]["mean"] is not None
        shown.add_row(
            *(name, "-" if score is None else f"{score:.4g}", percent(row["percentile"]), medals if awarded else "-"),
            *(percent({"mean": row["valid_rate"]["mean"]}), tokens, f"{row['seconds']:.0f}", str(row["episodes"])),
        )
    return shown


def percent(figures: Mapping[str, float | None]) -> str:
    """A share with its interval, in per cent.

    >>> percent({"mean": 0.5, "low": 0.25, "high": 0.751}), percent({"mean": None})
    ('50 [25, 75] %', '-')
    """
    mean, low, high = (figures.get(key) for key in ("mean", "low", "high"))
    if mean is None:
        return "-"
    return f"{100 * mean:.0f} %" if low is None or high is None else f"{100 * mean:.0f} [{100 * low:.0f}, {100 * high:.0f}] %"
