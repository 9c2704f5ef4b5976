"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path

from wmrl_gym.study.config import ARMS
from wmrl_gym.study.summary import Row


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
    figure.savefig(path, dpi=130)
