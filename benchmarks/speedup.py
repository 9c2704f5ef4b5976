"""Training in a world model against real execution at equal wall-clock: ``python -m benchmarks.speedup``.

Arms (real execution, world model alone, plain mixture, WMRL recommended; ``--arms`` takes others) train PPO on every embedded
AutoResearch task for the same time, one after the other on the same machine, for several seeds; every policy on the way is graded
by real execution. A run that was interrupted goes on where it stopped. Results go to ``benchmarks/results/speedup.json`` and
``speedup.png``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from wmrl_gym.study.config import ARMS, StudyConfig
from wmrl_gym.study.run import Study, machine
from wmrl_gym.study.summary import Row
from wmrl_gym.study.training import open_sandbox

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--seconds", type=float, default=35.0, help="training for each arm (default: 35)")
    parser.add_argument("--arms", default="real,model,mixture,recommended", help="names, separated by commas")
    parser.add_argument("--runs", type=Path, default=Path("runs/speedup"), help="where runs are kept (default: runs/speedup)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the summary goes")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {arguments.seeds}")
    console = Console()
    arms = tuple(arguments.arms.split(","))
    runs: list[list[Row]] = []
    workers = StudyConfig().workers
    sandbox = open_sandbox(workers)
    try:
        for seed in range(arguments.seeds):
            config = StudyConfig(arms=arms, seconds=arguments.seconds, seed=seed, curve_episodes=3)
            console.print(f"seed {seed}")
            study = Study(config, arguments.runs / f"seed-{seed}", console=console, memory=arguments.runs / "executed.jsonl")
            runs.append(study.run(sandbox))
    finally:
        sandbox.close()
    summary = summarise(runs, seconds=arguments.seconds)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "speedup.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw(runs, arguments.results / "speedup.png", seconds=arguments.seconds)
    console.print(_table(summary))
    return 0


def summarise(runs: list[list[Row]], *, seconds: float) -> dict[str, Any]:
    """Means over seeds with standard errors, paired differences to real-only, and how much sooner its final score is reached."""
    arms = [row.arm for row in runs[0]]
    by_arm = {arm: [next(row for row in rows if row.arm == arm) for rows in runs] for arm in arms}
    document: dict[str, Any] = {"seconds": seconds, "seeds": len(runs), "machine": machine(), "arms": {}}
    for arm, rows in by_arm.items():
        reward = np.array([row.reward[0] for row in rows])
        gains = reward - np.array([row.reward[0] for row in by_arm["real"]]) if "real" in by_arm else np.zeros(len(rows))
        sooner = [_sooner(row, real) for row, real in zip(rows, by_arm.get("real", rows), strict=True)]
        spent = {name: float(np.mean([row.where[name] for row in rows])) for name in rows[0].where}
        document["arms"][arm] = {
            "mean_curve_times_sooner": _mean_curve_sooner(rows, by_arm.get("real", rows), seconds),
            "title": ARMS[arm].title,
            "reward": _mean_error(reward),
            "percentile": _mean_error(np.array([row.percentile[0] for row in rows])),
            "gain_over_real": _mean_error(gains),
            "times_sooner": {"each": sooner, "median": median(sooner)},
            "executions": float(np.mean([row.executions for row in rows])),
            "steps": float(np.mean([row.steps for row in rows])),
            "seconds_spent_on": spent,
            "curves": [[asdict(point) for point in row.curve] for row in rows],
        }
    return document


def _mean_curve_sooner(rows: list[Row], real: list[Row], seconds: float) -> float | None:
    """The same from the curves' means over seeds, which hide less in noise; None where that mean never gets there."""
    at = np.linspace(0.0, seconds, 141)
    mean = np.mean([np.interp(at, [p.seconds for p in row.curve], [p.reward for p in row.curve]) for row in rows], axis=0)
    above = np.flatnonzero((mean >= np.mean([row.reward[0] for row in real])) & (at > 0))
    return float(seconds / at[above[0]]) if len(above) else None


def _sooner(row: Row, real: Row) -> float:
    """Real-only's training time over the time this arm took to reach real-only's final reward; 0 where it never did."""
    if row.reached_s is None:
        return 0.0
    # A policy that is better untrained than real-only trained would divide by nothing: the first snapshot is as early as we look.
    earliest = next(point.seconds for point in row.curve if point.seconds > 0)
    return real.seconds / max(row.reached_s, earliest / 2)


def _mean_error(values: np.ndarray[Any, Any]) -> list[float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return [float(values.mean()), error]


def _table(summary: dict[str, Any]) -> Table:
    caption = "gain: over real execution; sooner: real execution's final reward, median of seeds and of the mean curves"
    table = Table(
        title=f"{summary['seconds']:.0f} s of training, {summary['seeds']} seeds", title_justify="left", caption=caption
    )
    table.add_column("arm")
    for heading in ("reward", "gain", "sooner", "of means", "executed", "steps"):
        table.add_column(heading, justify="right")
    for arm in summary["arms"].values():
        reward, gain = arm["reward"], arm["gain_over_real"]
        table.add_row(
            arm["title"],
            f"{reward[0]:.3f} ± {reward[1]:.3f}",
            f"{gain[0]:+.3f} ± {gain[1]:.3f}",
            f"{arm['times_sooner']['median']:.1f}",
            "never" if arm["mean_curve_times_sooner"] is None else f"{arm['mean_curve_times_sooner']:.1f}",
            f"{arm['executions']:,.0f}",
            f"{arm['steps']:,.0f}",
        )
    return table


def draw(runs: list[list[Row]], path: Path, *, seconds: float) -> None:
    """Mean learning curves with bands of one standard error, and where the time went."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    at = np.linspace(0.0, seconds, 41)
    names = [row.arm for row in runs[0]]
    bottom = np.zeros(len(names))
    kinds = list(runs[0][0].where)
    spent = {arm: {kind: 0.0 for kind in kinds} for arm in names}
    for number, arm in enumerate(names):
        rows = [rows[number] for rows in runs]
        curves = np.array([np.interp(at, [p.seconds for p in row.curve], [p.reward for p in row.curve]) for row in rows])
        mean, error = curves.mean(axis=0), curves.std(axis=0, ddof=min(1, len(runs) - 1)) / np.sqrt(len(runs))
        left.plot(at, mean, color=ARMS[arm].colour, label=ARMS[arm].title)
        left.fill_between(at, mean - error, mean + error, color=ARMS[arm].colour, alpha=0.15, linewidth=0)
        spent[arm] = {kind: float(np.mean([row.where[kind] for row in rows])) for kind in kinds}
    for kind in kinds:
        height = np.array([spent[arm][kind] for arm in names])
        right.barh([ARMS[arm].title for arm in names], height, left=bottom, label=kind)
        bottom += height
    left.set_xlabel("wall-clock seconds of training")
    left.set_ylabel("mean ladder reward, real execution")
    left.legend(frameon=False, loc="lower right")
    right.set_xlabel("seconds spent on")
    right.invert_yaxis()
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
