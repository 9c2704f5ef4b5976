"""Robot tasks learnt in learned dynamics against real steps: ``python -m benchmarks.manipulation``.

SAC learns Meta-World tasks from their state, with Meta-World's shaped reward, in four ways that may take equally many real
simulator steps: real steps only; a world model alone, fitted on random steps and then left to itself; a plain mixture of imagined
and real episodes, on which the model goes on learning; and the same with WMRL's corrections. Policies on the way are judged by
real success on fresh seeds. A run that was interrupted goes on where it stopped. Results go to
``benchmarks/results/manipulation.json`` and ``manipulation.png``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.integrations.sb3 import to_vec_env
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.diagnostics import diagnostics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

RESULTS = Path(__file__).parent / "results"
ARMS = {"real": "real steps only", "model": "world model alone", "mixture": "plain mixture", "recommended": "WMRL, recommended"}
COLOURS = {"real": "#444444", "model": "#d62728", "mixture": "#9467bd", "recommended": "#2ca02c"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared, the same in every arm and task.

    Args:
        real_steps: real simulator steps that each arm may take.
        warmup: of them, random ones before anything is imagined or learnt.
        num_envs: imagined side by side.
        horizon: steps of an imagined episode.
        episode_steps: of a real episode.
        gradient_steps: of SAC, for each real step.
        update_every: real steps between two fits of the model.
        fit_steps: gradient steps of a fit, at most.
        curve_points: policies judged on the way.
        judged_episodes: real episodes that judge a policy.
    """

    real_steps: int = 2_500
    warmup: int = 600
    num_envs: int = 16
    horizon: int = 10
    episode_steps: int = 150
    gradient_steps: int = 2
    update_every: int = 250
    fit_steps: int = 250
    curve_points: int = 4
    judged_episodes: int = 10
    sac: dict[str, Any] = field(
        default_factory=lambda: {
            "learning_rate": 1e-3,
            "batch_size": 128,
            "gamma": 0.97,
            "tau": 0.01,
            "policy_kwargs": {"net_arch": [128, 128]},
        }
    )


QUICK = Setting(real_steps=300, warmup=200, gradient_steps=1, curve_points=1, judged_episodes=2, update_every=60, fit_steps=40)


def make_env(task: str, setting: Setting) -> gym.Env[Any, Any]:
    """One real environment."""
    return gym.make(
        "wmrl/VLAManipulationState-v0", task=task, reward="dense", split="id", max_episode_steps=setting.episode_steps
    )


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes real environments of a task; picklable."""

    task: str
    setting: Setting

    def __call__(self) -> gym.Env[Any, Any]:
        return make_env(self.task, self.setting)


def imagined(arm: str, task: str, setting: Setting, *, seed: int) -> Any:
    """The vector environment of an arm with a world model."""
    # Real episodes are long and imagined ones short: this share of *episodes* makes one real *step* in num_envs.
    share = setting.horizon / (setting.horizon + setting.episode_steps * (setting.num_envs - 1))
    options: dict[str, Any] = {
        "num_envs": setting.num_envs,
        "anchors": 0.0 if arm == "model" else share,
        "start_states": "buffer",
        "max_model_steps": setting.horizon,
        "update_every": 0 if arm == "model" else setting.update_every,
        "warmup": setting.real_steps if arm == "model" else setting.warmup,
        "autoreset_mode": "SameStep",
        "seed": seed,
    }
    model = EnsembleDynamics(min_transitions=setting.warmup, max_gradient_steps=setting.fit_steps)
    if arm == "recommended":
        return corrected(Maker(task, setting), model, preset="recommended", **options)
    return WorldModelVectorEnv(Maker(task, setting), model, **options)


class Meter(BaseCallback):
    """Stops when the real steps are spent, and judges policies on the way; judging costs neither steps nor time."""

    def __init__(self, arm: str, task: str, setting: Setting, *, seed: int, tell: Any) -> None:
        super().__init__()
        self.arm, self.task, self.setting, self.seed, self.tell = arm, task, setting, seed, tell
        self.began = time.perf_counter()
        self.judging_s = 0.0
        self.curve: list[dict[str, float]] = []
        self._end = setting.real_steps

    @property
    def spent(self) -> int:
        """What decides when training is over: real steps, or for the model alone as many vector steps."""
        if self.arm == "real":
            return self.num_timesteps
        if self.arm == "model":
            return self.num_timesteps // self.setting.num_envs + self.setting.warmup
        return int(diagnostics(self.training_env.envs)["cost/executions"])  # type: ignore[attr-defined]

    @property
    def real_steps(self) -> int:
        return self.setting.real_steps if self.arm == "model" else self.spent

    def _on_step(self) -> bool:
        self.tell(min(self.spent, self._end))
        wanted = self.setting.warmup + (self._end - self.setting.warmup) * (len(self.curve) + 1) / self.setting.curve_points
        if self.spent >= wanted and len(self.curve) < self.setting.curve_points - 1:
            self.judge()
        return self.spent < self._end

    def judge(self) -> None:
        """Judge the present policy by real episodes."""
        started = time.perf_counter()
        seconds = started - self.began - self.judging_s
        success = success_rate(self.model, self.task, self.setting, seed=1_000_003 * (self.seed + 1))  # type: ignore[arg-type]
        self.curve.append({"real_steps": self.real_steps, "seconds": seconds, "success": success})
        self.judging_s += time.perf_counter() - started


def success_rate(agent: SAC, task: str, setting: Setting, *, seed: int) -> float:
    """Share of real episodes in which the policy's best actions succeed."""
    env, won = make_env(task, setting), 0
    for episode in range(setting.judged_episodes):
        observation, _ = env.reset(seed=seed + episode)
        over = success = False
        while not (over or success):
            action, _ = agent.predict(observation, deterministic=True)
            observation, _, terminated, truncated, info = env.step(action)
            over, success = terminated or truncated, bool(info["is_success"])
        won += success
    env.close()
    return won / setting.judged_episodes


def train(arm: str, task: str, setting: Setting, *, seed: int, tell: Any) -> dict[str, Any]:
    """Train one arm; returns its record."""
    torch.set_num_threads(1)
    meter = Meter(arm, task, setting, seed=seed, tell=tell)
    shared: dict[str, Any] = {"seed": seed, "device": "cpu", "gradient_steps": setting.gradient_steps, **setting.sac}
    if arm == "real":
        env: Any = make_env(task, setting)
        agent = SAC("MlpPolicy", env, learning_starts=setting.warmup, **shared)
    else:
        env = to_vec_env(imagined(arm, task, setting, seed=seed))
        env.seed(seed)
        starts, size = 20 * setting.num_envs, 2_000 * setting.num_envs
        agent = SAC("MlpPolicy", env, train_freq=1, learning_starts=starts, buffer_size=size, **shared)
    agent.learn(10**9, callback=meter)
    meter.judge()
    env.close()
    record = {"arm": arm, "task": task, "seed": seed, "curve": meter.curve, "gradient_steps": int(agent._n_updates)}
    return {**record, "machine": machine()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--tasks", default="reach,button-press,drawer-open", help="names, separated by commas")
    parser.add_argument("--arms", default=",".join(ARMS), help="names, separated by commas")
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept (default: runs/manipulation)")
    parser.add_argument("--results", type=Path, default=None, help="where the summary goes (default: benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="a minute or two: one seed, few steps, results beside the runs")
    arguments = parser.parse_args(argv)
    setting, seeds = (QUICK, 1) if arguments.quick else (Setting(), arguments.seeds)
    runs = arguments.runs or Path("runs/manipulation-quick" if arguments.quick else "runs/manipulation")
    results = arguments.results or (runs if arguments.quick else RESULTS)
    arms, tasks = arguments.arms.split(","), arguments.tasks.split(",")
    unknown = sorted(set(arms) - set(ARMS))
    if unknown or seeds < 1:
        parser.error(f"unknown arms {unknown}" if unknown else f"--seeds must be at least 1, got {seeds}")
    console = Console(width=max(Console().width, 110))
    records = _run_all(arms, tasks, seeds=seeds, setting=setting, runs=runs, console=console)
    summary = summarise(records, setting)
    results.mkdir(parents=True, exist_ok=True)
    (results / "manipulation.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw(summary, results / "manipulation.png")
    console.print(_table(summary))
    return 0


def _run_all(
    arms: list[str], tasks: list[str], *, seeds: int, setting: Setting, runs: Path, console: Console
) -> list[dict[str, Any]]:
    """Train what is missing; returns every record."""
    records = []
    columns = (TextColumn("{task.description:<44}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        for seed in range(seeds):
            for task in tasks:
                for arm in arms:
                    path = runs / f"{task}-{arm}-{seed}.json"
                    wanted = json.loads(json.dumps(asdict(setting)))
                    if path.is_file():
                        found = json.loads(path.read_text(encoding="utf-8"))
                        if found["setting"] != wanted:
                            raise SystemExit(f"{path} was run with other settings: choose another folder with --runs")
                    else:
                        bar = bars.add_task(f"seed {seed}  {task:<14} {ARMS[arm]}", total=setting.real_steps)

                        def tell(done: int, bar: Any = bar) -> None:
                            bars.update(bar, completed=done)

                        found = {"setting": wanted, **train(arm, task, setting, seed=seed, tell=tell)}
                        path.parent.mkdir(parents=True, exist_ok=True)
                        part = path.with_suffix(".part")
                        part.write_text(json.dumps(found), encoding="utf-8")
                        part.replace(path)
                    records.append(found)
    return records


def summarise(records: list[dict[str, Any]], setting: Setting) -> dict[str, Any]:
    """For each task and arm: final success, and real steps and seconds to what real steps alone reached in the end."""
    seeds = sorted({record["seed"] for record in records})
    document: dict[str, Any] = {"machine": machine(), "seeds": len(seeds), "setting": asdict(setting), "tasks": {}}
    for task in dict.fromkeys(record["task"] for record in records):
        of_task = [record for record in records if record["task"] == task]
        goals = {record["seed"]: record["curve"][-1]["success"] for record in of_task if record["arm"] == "real"}
        document["tasks"][task] = {}
        for arm in dict.fromkeys(record["arm"] for record in of_task):
            mine = [record for record in of_task if record["arm"] == arm]
            final = np.array([record["curve"][-1]["success"] for record in mine])
            reached = [_reached(record["curve"], goals.get(record["seed"])) for record in mine]
            document["tasks"][task][arm] = {
                "success": _mean_error(final),
                "seconds": float(np.mean([record["curve"][-1]["seconds"] for record in mine])),
                "real_steps": float(np.mean([record["curve"][-1]["real_steps"] for record in mine])),
                "to_real_only": {
                    "reached": sum(point is not None for point in reached),
                    "real_steps": _median([point["real_steps"] for point in reached if point is not None]),
                    "seconds": _median([point["seconds"] for point in reached if point is not None]),
                },
                "curves": [record["curve"] for record in mine],
            }
    return document


def _reached(curve: list[dict[str, float]], goal: float | None) -> dict[str, float] | None:
    """The first judged policy that does as well as real steps alone did in the end; None where none does, or the goal is 0."""
    if not goal:
        return None
    return next((point for point in curve if point["success"] >= goal), None)


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _mean_error(values: np.ndarray[Any, Any]) -> list[float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return [float(values.mean()), error]


def _table(summary: dict[str, Any]) -> Table:
    title = f"{summary['seeds']} seeds, {summary['setting']['real_steps']:,} real steps an arm"
    caption = "reached: seeds that got to what real steps alone reached in the end (medians of steps and seconds to it)"
    table = Table("task", "arm", title=title, caption=caption, title_justify="left")
    for heading in ("success", "real steps", "seconds", "reached", "steps to it", "seconds to it"):
        table.add_column(heading, justify="right")
    for task, arms in summary["tasks"].items():
        for arm, row in arms.items():
            to = row["to_real_only"]
            mean, error = row["success"]
            cells = (f"{mean:.2f} ± {error:.2f}", f"{row['real_steps']:,.0f}", f"{row['seconds']:.0f}", str(to["reached"]))
            ends = ("-" if to[key] is None else f"{to[key]:,.0f}" for key in ("real_steps", "seconds"))
            table.add_row(task, ARMS[arm], *cells, *ends)
    return table


def draw(summary: dict[str, Any], path: Path) -> None:
    """Success against real steps, a panel for each task; bands are one standard error."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = summary["tasks"]
    figure = Figure(figsize=(4.2 * len(tasks), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(1, len(tasks), sharey=True))
    for axes, (task, arms) in zip(panels, tasks.items(), strict=True):
        for arm, row in arms.items():
            steps = np.mean([[point["real_steps"] for point in curve] for curve in row["curves"]], axis=0)
            success = np.array([[point["success"] for point in curve] for curve in row["curves"]])
            mean, error = success.mean(0), success.std(0, ddof=min(1, len(success) - 1)) / np.sqrt(len(success))
            style = {"marker": "s", "linestyle": ""} if arm == "model" else {"marker": "o", "markersize": 3}
            axes.plot(steps, mean, color=COLOURS[arm], label=ARMS[arm], **style)
            axes.fill_between(steps, mean - error, mean + error, color=COLOURS[arm], alpha=0.15, linewidth=0)
        axes.set_title(task)
        axes.set_xlabel("real simulator steps")
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("success on fresh real episodes")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
