"""The ablation of the corrections on real executions: ``python -m benchmarks.corrections_real``.

PPO on ``AutoResearchDesign`` (model family, size and strength; one attempt an episode), in arms that differ only in what they do
with the world model's rewards. All arms have the same policy steps and the same number of real executions, so that the load of
the machine does not count; scripts that one arm has executed are remembered for the others, and counted for each. Policies are
graded by real execution of what they sample. Twice: with a world model that stays as the warm-up left it (as in the paper), and
with one that learns from the anchors.

An interrupted run goes on where it stopped. Writes ``benchmarks/results/corrections_real.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.equal_budgets import EqualConfig, FewDesigns, train
from wmrl_gym.study.config import ARMS
from wmrl_gym.study.evaluation import Evaluator, RememberedDesigns
from wmrl_gym.study.run import machine
from wmrl_gym.study.training import open_sandbox

RESULTS = Path(__file__).parent / "results"
ORDER = ("real", "model", "mixture", "denoise", "debias", "paper", "recommended", "adaptive")
TASKS = "abalone,breast-cancer,cars-mpg,diabetes"
"""Those that execute quickly."""
FIRST_SEED = 1000
"""Settings were chosen on seeds below it."""
SETTINGS = {"frozen": "world model fixed after warm-up", "learning": "world model learns from anchors"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the summary; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help=f"the first of them (default: {FIRST_SEED})")
    parser.add_argument("--arms", default=",".join(ORDER), help="names, separated by commas")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=EqualConfig().steps, help="policy steps (default: %(default)s)")
    parser.add_argument("--executions", type=int, default=EqualConfig().executions, help="of each arm (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=EqualConfig().warmup, help="random ones of them (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=24, help="graded episodes a task and policy (default: 24)")
    parser.add_argument("--tasks", default=TASKS, help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/corrections_real"), help="where runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the summary goes")
    given = parser.parse_args(argv)
    arms, settings = tuple(given.arms.split(",")), tuple(given.settings.split(","))
    unknown = [name for name in (*arms, *settings) if name not in ORDER and name not in SETTINGS]
    if given.seeds < 2 or given.episodes < 1 or unknown:
        parser.error(f"need --seeds >= 2, --episodes >= 1 and known names, got {given.seeds}, {given.episodes} and {unknown}")
    config = EqualConfig(
        steps=given.steps,
        executions=given.executions,
        warmup=given.warmup,
        tasks=tuple(given.tasks.split(",")),
    )
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = collect(given.runs, config, arms=arms, settings=settings, seeds=seeds, episodes=given.episodes)
    document = summarise(runs, config, episodes=given.episodes)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "corrections_real.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, given.results / "corrections_real.png")
    show(document, Console())
    return 0


def collect(
    folder: Path,
    config: EqualConfig,
    *,
    arms: Sequence[str],
    settings: Sequence[str],
    seeds: Sequence[int],
    episodes: int,
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Every run, by setting and arm; those whose file is there already are not run again.

    Raises:
        ValueError: ``folder`` holds runs with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = json.loads(json.dumps(asdict(replace(config, learns=True)) | {"episodes": episodes}))
    marker = folder / "config.json"
    if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) != wanted:
        raise ValueError(f"{folder} holds runs with other settings: choose another --runs")
    marker.write_text(json.dumps(wanted), encoding="utf-8")
    console = Console()
    sandbox = open_sandbox(config.workers)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {setting: {arm: [] for arm in arms} for setting in settings}
    try:
        designs = FewDesigns(
            folder / "executed.jsonl",
            sandbox=sandbox,
            tasks=config.tasks,
            workers=config.workers,
            max_turns=config.max_turns,
            limits=config.limits,
        )
        for setting in settings:
            for seed in seeds:
                for arm in arms:
                    # Without anchors there is nothing to learn from, and without a world model nothing that learns.
                    own = "frozen" if arm in ("real", "model") else setting
                    path = folder / f"{own}-{arm}-{seed}.json"
                    if not path.is_file():
                        run = one(arm, replace(config, learns=own == "learning"), designs=designs, seed=seed, episodes=episodes)
                        path.write_text(json.dumps(run), encoding="utf-8")
                        console.print(f"{own} {seed} {arm}: {run['reward'][-1]:.3f}, {len(designs.known):,} scripts executed")
                    runs[setting][arm].append(json.loads(path.read_text(encoding="utf-8")))
    finally:
        sandbox.close()
    return runs


def one(arm: str, config: EqualConfig, *, designs: RememberedDesigns, seed: int, episodes: int) -> dict[str, Any]:
    """Train an arm and grade its policies."""
    began = process_time()
    run = train(arm, config, designs=designs, seed=seed)
    trained = process_time() - began
    evaluator = Evaluator(designs, policy_kwargs=config.ppo["policy_kwargs"])
    # The same draws for every arm: an untrained policy is then graded on the same designs in each.
    grades = [evaluator.grade(policy, episodes=episodes, seed=1_000_003 * (seed + 1)) for policy in run.policies]
    return {
        "reward": [float(np.mean([grade.reward for grade in each])) for each in grades],
        "steps": run.steps,
        "executions": run.executions,
        "cpu_s": trained,
        "stats": run.stats,
    }


def summarise(runs: dict[str, dict[str, list[dict[str, Any]]]], config: EqualConfig, *, episodes: int) -> dict[str, Any]:
    """Means over seeds with standard errors, and paired differences to the plain mixture and to the paper's method."""
    document: dict[str, Any] = {"config": asdict(config), "episodes": episodes, "machine": machine(), "settings": {}}
    for setting, by_arm in runs.items():
        final = {arm: np.array([run["reward"][-1] for run in each]) for arm, each in by_arm.items()}
        document["settings"][setting] = {
            arm: {
                "title": ARMS[arm].title,
                "seeds": final[arm].tolist(),
                "reward": _mean_error(final[arm]),
                "minus_mixture": _mean_error(final[arm] - final["mixture"]) if "mixture" in final else None,
                "minus_paper": _mean_error(final[arm] - final["paper"]) if "paper" in final else None,
                "curve": np.mean([run["reward"] for run in each], axis=0).tolist(),
                "steps": each[0]["steps"],
                "executions": float(np.mean([run["executions"] for run in each])),
                "stats": _mean_stats([run["stats"] for run in each]),
            }
            for arm, each in by_arm.items()
        }
    return document


def _mean_stats(stats: list[dict[str, float]]) -> dict[str, float]:
    """The wrappers' last words, without costs, which depend on the machine: means over seeds."""
    names = [name for name in stats[0] if not name.startswith("cost/") and all(name in each for each in stats)]
    return {name: float(np.mean([each[name] for each in stats])) for name in names}


def _mean_error(values: np.ndarray[Any, Any]) -> list[float]:
    return [float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))]


def show(document: dict[str, Any], console: Console) -> None:
    """Print a table for each setting."""
    console.width = max(console.width, 120)
    for setting, arms in document["settings"].items():
        table = Table(title=f"{SETTINGS[setting]}: mean ladder reward by real execution", title_justify="left")
        table.add_column("arm")
        for heading in ("reward", "minus mixture", "minus paper", "executions"):
            table.add_column(heading, justify="right")
        for arm in arms.values():
            differences = [arm["minus_mixture"], arm["minus_paper"]]
            shown = ["-" if each is None else f"{each[0]:+.3f} ± {each[1]:.3f}" for each in differences]
            table.add_row(arm["title"], f"{arm['reward'][0]:.3f} ± {arm['reward'][1]:.3f}", *shown, f"{arm['executions']:,.0f}")
        console.print(table)


def draw(document: dict[str, Any], path: Path) -> None:
    """Final rewards with standard errors, and each seed as a dot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = document["settings"]
    figure = Figure(figsize=(5.5 * len(settings), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (setting, arms) in zip(
        np.atleast_1d(figure.subplots(1, len(settings), sharex=True)), settings.items(), strict=True
    ):
        for at, (name, arm) in enumerate(arms.items()):
            axes.plot(arm["seeds"], [at] * len(arm["seeds"]), "o", color=ARMS[name].colour, alpha=0.35, markersize=4)
            axes.errorbar([arm["reward"][0]], [at], xerr=[arm["reward"][1]], fmt="s", color=ARMS[name].colour, capsize=3)
        axes.axvline(next(iter(arms.values()))["curve"][0], color="#999999", linestyle=":", label="untrained")
        axes.set_yticks(range(len(arms)), [arm["title"] for arm in arms.values()])
        axes.invert_yaxis()
        axes.set_title(SETTINGS[setting], fontsize=10)
        axes.set_xlabel("mean ladder reward, real execution")
        axes.grid(alpha=0.3, axis="x")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
