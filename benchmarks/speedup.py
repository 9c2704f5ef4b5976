"""Training in a world model against real execution at equal wall-clock: ``python -m benchmarks.speedup``.

Arms (real execution, world model alone, plain mixture, the paper's settings, WMRL recommended; ``--arms`` takes others) train PPO
on the eight held-out tasks for the same time, one after the other on the same machine, for several seeds; those that imagine
begin with ``OutcomeModel.pretrained()``. Real execution also gets ten times the time, with fewer seeds. Every policy on the way
is graded by real execution. A run that was interrupted goes on where it stopped. Results go to
``benchmarks/results/speedup.json`` and ``speedup.png``; exits with 1 when a bar is missed. ``python -m benchmarks.speedup tune``
chooses the settings of each arm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.executions import load_grid
from benchmarks.speedup_tuning import ARMS as TUNED_ARMS
from benchmarks.speedup_tuning import tune
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.study.config import ARMS, StudyConfig
from wmrl_gym.study.run import Study, machine
from wmrl_gym.study.summary import Row
from wmrl_gym.study.training import open_sandbox

RESULTS = Path(__file__).parent / "results"
ARMS_COMPARED = ("real", "model", "mixture", "paper", "recommended")
WMRL = "recommended"
LONGER = 10
"""How much more time real execution gets in its longer run."""
EPISODES = 6
"""Evaluation episodes a task for each final policy: twice the demo's."""
DEMO_SEEDS = 5
"""The seeds whose median says how the demo ends."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "tune"), default="run", help="compare (default), or choose settings")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds (default: 10)")
    parser.add_argument("--long-seeds", type=int, default=3, help="of real execution for ten times the time (default: 3)")
    parser.add_argument("--seconds", type=float, default=35.0, help="training for each arm (default: 35)")
    parser.add_argument("--arms", default=None, help="names, separated by commas (default: real,model,mixture,paper,recommended)")
    parser.add_argument("--runs", type=Path, default=Path("runs/speedup"), help="where runs are kept (default: runs/speedup)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the summary goes")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {arguments.seeds}")
    console = Console()
    sandbox = open_sandbox(StudyConfig().workers)
    try:
        if arguments.what == "tune":
            arms = TUNED_ARMS if arguments.arms is None else tuple(arguments.arms.split(","))
            tune(arms, runs=arguments.runs, sandbox=sandbox, seconds=arguments.seconds, console=console)
            return 0
        arms = ARMS_COMPARED if arguments.arms is None else tuple(arguments.arms.split(","))
        compared = Comparison(arguments.runs, sandbox, console)
        runs = [compared.rows(f"seed-{seed}", arms, seed, arguments.seconds) for seed in range(arguments.seeds)]
        longer = [
            compared.rows(f"long-{seed}", ("real",), seed, LONGER * arguments.seconds) for seed in range(arguments.long_seeds)
        ]
    finally:
        sandbox.close()
    summary = summarise(runs, seconds=arguments.seconds)
    summary["real_for_longer"] = longer_summary(longer, seconds=LONGER * arguments.seconds)
    summary["best_known"] = best_known(compared.memory, StudyConfig().names)
    found = verdicts(runs, longer)
    summary["bars"] = [asdict(each) for each in found]
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "speedup.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw(runs, arguments.results / "speedup.png", seconds=arguments.seconds, summary=summary)
    console.print(_table(summary))
    for each in found:
        console.print(f"{'met   ' if each.met else 'MISSED'} {each.bar}: {each.found}", highlight=False)
    return 0 if all(each.met for each in found) else 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs comparisons in folders side by side, which share what evaluation executed.

    Args:
        folder: where the folders are.
        sandbox: executes.
        console: where progress is shown.
    """

    folder: Path
    sandbox: Sandbox
    console: Console

    @property
    def memory(self) -> Path:
        """File that remembers what evaluation executed."""
        return self.folder / "executed.jsonl"

    def rows(self, name: str, arms: tuple[str, ...], seed: int, seconds: float) -> list[Row]:
        """One seed's rows; done now, unless they are there."""
        self.console.print(name)
        config = StudyConfig(arms=arms, seconds=seconds, seed=seed, curve_episodes=2, final_episodes=EPISODES)
        return Study(config, self.folder / name, console=self.console, memory=self.memory).run(self.sandbox)


def longer_summary(runs: list[list[Row]], *, seconds: float) -> dict[str, Any] | None:
    """What real execution reaches in a longer time; None without a run."""
    if not runs:
        return None
    rows = [rows[0] for rows in runs]
    reward = _mean_error(np.array([row.reward[0] for row in rows]))
    return {"seconds": seconds, "seeds": len(rows), "reward": reward, "executions": float(np.mean([r.executions for r in rows]))}


def best_known(memory: Path, tasks: tuple[str, ...]) -> float:
    """The mean over tasks of the best design that evaluation or the recorded grid ever executed: a policy can reach so much."""
    best = {task: float(load_grid(task).rewards.max()) for task in tasks}
    for line in memory.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        task = entry["key"].rsplit(":", 1)[0]
        if task in best:
            best[task] = max(best[task], entry["value"])
    return float(np.mean(list(best.values())))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar: what was asked for, what was measured, and whether it was reached."""

    bar: str
    found: str
    met: bool


def verdicts(runs: list[list[Row]], longer: list[list[Row]]) -> list[Verdict]:
    """The bars, as far as the arms are there that they need: paired differences over seeds."""
    reward = {row.arm: np.array([next(r.reward[0] for r in rows if r.arm == row.arm) for rows in runs]) for row in runs[0]}
    found: list[Verdict] = []
    if WMRL not in reward:
        return found
    ours = reward[WMRL]
    for other in ("mixture", "model", "real"):
        if other not in reward:
            continue
        mean, error = _mean_error(ours - reward[other])
        title = ARMS[other].title
        found.append(Verdict(f"WMRL above {title} by 2 standard errors", f"{mean:+.3f} ± {error:.3f}", bool(mean > 2 * error)))
        ahead = median(ours[:DEMO_SEEDS] - reward[other][:DEMO_SEEDS])
        found.append(
            Verdict(f"ahead of {title} in the median of {len(ours[:DEMO_SEEDS])} seeds", f"{ahead:+.3f}", bool(ahead > 0))
        )
    if longer:
        real = np.array([rows[0].reward[0] for rows in longer])
        (mean, error), (there, its) = _mean_error(ours), _mean_error(real)
        bar = f"WMRL at least where real execution is after {LONGER} times the time"
        found.append(
            Verdict(bar, f"{mean:.3f} ± {error:.3f} and {there:.3f} ± {its:.3f} ({len(real)} seeds)", bool(mean >= there))
        )
    return found


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
            "settings": asdict(StudyConfig().settings_of(arm)),
            "untrained": float(np.mean([row.curve[0].reward for row in rows])),
            "rewards": [float(each) for each in reward],
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


def draw(runs: list[list[Row]], path: Path, *, seconds: float, summary: dict[str, Any]) -> None:
    """Mean learning curves with bands of one standard error, what is known to be possible, and where the time went."""
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
    left.axhline(summary["best_known"], color="#000000", linestyle=":", linewidth=1, label="best designs known")
    if (longer := summary["real_for_longer"]) is not None:
        label = f"real execution after {longer['seconds']:.0f} s"
        left.axhline(longer["reward"][0], color=ARMS["real"].colour, linestyle="--", linewidth=1, label=label)
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
