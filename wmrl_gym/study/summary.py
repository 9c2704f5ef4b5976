"""What a comparison found: one row for each arm, and its learning curve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wmrl_gym.files import write_whole
from wmrl_gym.study.config import ARMS


@dataclass(frozen=True, slots=True)
class Point:
    """A policy on the way: seconds of training and real executions before it, and its evaluated reward."""

    seconds: float
    executions: int
    reward: float


@dataclass(frozen=True, slots=True)
class Row:
    """One arm's result.

    Args:
        arm: its name.
        reward: mean ladder reward of the final policy, really executed; and its standard error.
        percentile: mean leaderboard percentile in [0, 1]; and its standard error.
        executions: real executions in training.
        steps: environment steps in training, imagined and real.
        seconds: of training.
        reached_s: seconds until its curve reached what real-only reached at its end; None if it never did.
        where: seconds by what they were spent on.
        curve: its policies on the way.
    """

    arm: str
    reward: tuple[float, float]
    percentile: tuple[float, float]
    executions: int
    steps: int
    seconds: float
    reached_s: float | None
    where: dict[str, float]
    curve: tuple[Point, ...]


def time_to_reach(curve: tuple[Point, ...], reward: float) -> float | None:
    """Seconds at which a curve first reaches ``reward``, between two policies by straight line; None if it never does.

    >>> time_to_reach((Point(0.0, 0, 0.5), Point(10.0, 9, 0.7)), 0.6)
    5.0
    """
    before = None
    for point in curve:
        if point.reward >= reward:
            if before is None or point.reward == before.reward:
                return point.seconds
            share = (reward - before.reward) / (point.reward - before.reward)
            return round(before.seconds + share * (point.seconds - before.seconds), 9)
        before = point
    return None


def table(rows: list[Row]) -> Any:
    """The rows as a rich table."""
    from rich.box import SIMPLE
    from rich.table import Table

    caption = (
        "reward: mean on the ladder; beats: share of the leaderboard (both ± standard error)\n"
        "reached: seconds of training until the reward that real execution has at its end"
    )
    title = "Equal wall-clock, evaluated by real execution"
    shown = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column("arm", no_wrap=True)
    for heading in ("reward", "beats", "executed", "steps", "seconds", "reached"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        reached = "never" if row.reached_s is None else "untrained" if row.reached_s == 0 else f"{row.reached_s:.1f} s"
        shown.add_row(
            ARMS[row.arm].title,
            f"{row.reward[0]:.3f}±{row.reward[1]:.3f}",
            f"{100 * row.percentile[0]:.0f}±{100 * row.percentile[1]:.0f} %",
            f"{row.executions:,}",
            f"{row.steps:,}",
            f"{row.seconds:.1f}",
            reached,
        )
    return shown


def sentence(rows: list[Row]) -> str:
    """What the table says, in words that do not flatter."""
    by_arm = {row.arm: row for row in rows}
    real, ours = by_arm.get("real"), by_arm.get("recommended")
    if real is None or ours is None:
        return ""
    gain = ours.reward[0] - real.reward[0]
    error = float(np.hypot(ours.reward[1], real.reward[1]))
    verdict = "more" if gain > 0 else "less"
    text = f"WMRL (recommended) reaches {abs(gain):.3f} ± {error:.3f} {verdict} than real execution alone in the same time"
    if ours.reached_s == 0:
        text += "; real execution ended no better than an untrained policy"
    elif ours.reached_s is not None:
        text += f", and real execution's final score {real.seconds / ours.reached_s:.1f} times sooner"
    return text + "."


def draw(rows: list[Row], path: Path, *, title: str) -> None:
    """Write reward against wall-clock and against real executions, side by side, as a PNG.

    Raises:
        gymnasium.error.DependencyNotInstalled: without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        from gymnasium.error import DependencyNotInstalled

        raise DependencyNotInstalled("matplotlib is not installed, run `pip install 'wmrl-gym[demo]'`") from error

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for row in rows:
        arm = ARMS[row.arm]
        reward = [point.reward for point in row.curve]
        left.plot([point.seconds for point in row.curve], reward, "o-", color=arm.colour, label=arm.title, markersize=4)
        right.plot([point.executions for point in row.curve], reward, "o-", color=arm.colour, label=arm.title, markersize=4)
        for axes, at in ((left, row.seconds), (right, row.executions)):
            axes.errorbar([at], [row.reward[0]], yerr=[row.reward[1]], fmt="s", color=arm.colour, capsize=3)
    left.set_xlabel("wall-clock seconds of training")
    right.set_xlabel("real executions")
    left.set_ylabel("mean ladder reward, real execution")
    left.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda part: figure.savefig(part, dpi=130, format=path.suffix.removeprefix(".") or "png"))
