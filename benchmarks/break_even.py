"""From which cost of a real step a world model pays: ``python -m benchmarks.break_even``.

Pendulum, whose steps cost next to nothing, is imagined by a default ``EnsembleDynamics`` that learns from its anchors, by random
actions. All CPU seconds of stepping (predictions, updates, the wrapper's books and the few real steps), over the imagined steps
that were not executed as well, are what imagining a step costs. A real step that takes longer is worth imagining; one that takes
T seconds makes a run ``T / (share T + (1 - share) cost)`` times as fast, learning of the policy apart. One thread. Results go to
``benchmarks/results/break_even.json`` and ``break_even.png``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.table import Table

from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

RESULTS = Path(__file__).parent / "results"
CASES = ((1, 0.1), (64, 0.1), (64, 0.02))
"""(environments, share of anchors)"""


def measure(num_envs: int, anchors: float, *, steps: int) -> dict[str, float]:
    """What imagining cost in a run of so many steps, all environments together."""
    envs = WorldModelVectorEnv(
        lambda: gym.make("Pendulum-v1"),
        EnsembleDynamics(),
        num_envs=num_envs,
        anchors=anchors,
        seed=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    envs.engine.warm_up(400)
    before, began = dict(envs.last_cost), process_time()
    for _ in range(max(1, steps // num_envs)):
        envs.step(envs.action_space.sample())
    cpu_s = process_time() - began
    cost = {name: value - before[name] for name, value in envs.last_cost.items()}
    envs.close()
    imagined = cost["imagined"] - cost["executions"]
    learning = cost["update_s"] / (cost["update_s"] + cost["predict_s"])
    known = {"num_envs": num_envs, "anchors": anchors, "imagined": imagined, "executions": cost["executions"]}
    return known | {"pays_from_ms": 1e3 * cpu_s / imagined, "learning_share": learning}


def table(rows: list[dict[str, float]]) -> Table:
    """The results, for people."""
    shown = Table()
    for heading in ("environments", "anchors", "pays from, ms a real step", "of the model's time, learning"):
        shown.add_column(heading, justify="right")
    for row in rows:
        shares = f"{row['anchors']:.0%}", f"{row['pays_from_ms']:.3f}", f"{row['learning_share']:.0%}"
        shown.add_row(f"{row['num_envs']:.0f}", *shares)
    return shown


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """How many times as fast a run gets, by what a real step costs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    real_ms = np.logspace(-2, 4, 200)
    for row in rows:
        share = row["anchors"]
        faster = real_ms / (share * real_ms + (1 - share) * row["pays_from_ms"])
        axes.loglog(real_ms, faster, label=f"{row['num_envs']:.0f} environments, {share:.0%} anchors")
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xlabel("milliseconds that a real step takes")
    axes.set_ylabel("times as fast")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25_600, help="of each case, all environments together (default: 25,600)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    console = Console()
    rows = [
        measure(num_envs, anchors, steps=arguments.steps if num_envs > 1 else arguments.steps // 4) for num_envs, anchors in CASES
    ]
    console.print(table(rows))
    arguments.results.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "steps": arguments.steps, "cases": rows}
    (arguments.results / "break_even.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(rows, arguments.results / "break_even.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
