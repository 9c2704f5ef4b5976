"""The command: ``python -m benchmarks.real_tasks.whole_space``; see the package."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import benchmarks.real_tasks.whole_space as package
from benchmarks.real_tasks.run import Rows
from benchmarks.real_tasks.settings import TUNING_SEEDS, Settings
from benchmarks.real_tasks.whole_space.executed import PACKED, Table
from benchmarks.real_tasks.whole_space.study import BUDGET, EPISODES, FURTHER, SpaceJob, run
from benchmarks.real_tasks.whole_space.verdicts import name_of, show, summarise
from benchmarks.record_executions import DESIGN_LIMITS
from benchmarks.record_executions import run as execute_in
from wmrl_gym.envs.autoresearch import load_task
from wmrl_gym.envs.autoresearch.embedded.recipes import HELD_OUT_TASKS
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.verdict import Verdict
from wmrl_gym.files import write_json
from wmrl_gym.sandbox import Sandbox, make_sandbox
from wmrl_gym.world_models import OutcomeModel

RESULTS = Path(__file__).parents[2] / "results"
TUNED = Path(__file__).parent / "tuned.json"
ARM_NAMES = ("contextual+residual", "real", "mixture", "paper", "model")
BASE = Settings(rate=0.01, entropy=0.03, epochs=4, num_envs=32, steps=1_280)
"""Episodes: forty rollouts of 32 of arms that imagine; of the arm that only executes, rollouts of five."""
RATES = (0.003, 0.01, 0.03)
ENTROPIES = (0.01, 0.1)
STUDY = "whole-space-1"
"""Names the rows; another number for another policy or world model."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 where a bar is missed, or cannot be judged."""
    given = _arguments(argv)
    console = Console()
    console.width = max(console.width, 150)
    rows = Rows(given.runs / "rows.jsonl", study=STUDY)
    if given.command == "report":
        return _report(given, rows, console)
    sandbox = make_sandbox("local", workers=1)
    try:
        tables = {name: _table(name, sandbox, given.runs) for name in given.tasks}
        if given.command == "pack":
            for name, table in tables.items():
                console.print(f"{name}: {table.pack()} executions")
            return 0
        if given.command == "tune":
            _tune(given, tables, console)
            return 0
        missing = [job for job in jobs(given, tuned()) if job not in rows]
        if given.command == "estimate":
            return _estimate(missing, rows, tables, console)
        _run(missing, rows, tables, console)
    finally:
        sandbox.close()
    return _report(given, rows, console)


def _table(name: str, sandbox: Sandbox, runs: Path) -> Table:
    def execute(task: Task, code: str) -> tuple[float, Verdict]:
        return execute_in(task, sandbox, code, DESIGN_LIMITS)

    return Table(load_task(name), execute, folder=runs)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_tasks.whole_space",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("estimate", "tune", "run", "report", "pack"))
    parser.add_argument("--tasks", nargs="*", choices=HELD_OUT_TASKS, default=list(HELD_OUT_TASKS), metavar="TASK")
    parser.add_argument("--arms", nargs="*", choices=ARM_NAMES, default=list(ARM_NAMES), metavar="ARM")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds (default: %(default)s)")
    parser.add_argument("--tuning-tasks", type=int, default=2, help="how many of the tasks settings are chosen on")
    parser.add_argument("--runs", type=Path, default=Path("runs/whole_space"), help="where rows and new executions are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    given = parser.parse_args(argv)
    if given.seeds < 1 or not 1 <= given.tuning_tasks <= len(given.tasks):
        parser.error(f"need --seeds >= 1 and --tuning-tasks of 1 to {len(given.tasks)}, got {given.seeds}, {given.tuning_tasks}")
    return given


def tuned() -> dict[str, Any]:
    """The tuned table by arm: settings, and the value of each that was tried."""
    return json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}


def settings_of(arm: str, table: Mapping[str, Any]) -> Settings:
    """The settings of an arm: the tuned ones, or where it was not tuned those that all start from."""
    return Settings(**table[arm]["settings"]) if arm in table else BASE


def jobs(given: argparse.Namespace, table: Mapping[str, Any]) -> Iterator[SpaceJob]:
    """All runs that were asked for, seed by seed, so that an interrupted comparison has whole seeds."""
    for seed, arm in product(range(given.seeds), given.arms):
        for budget in (BUDGET, FURTHER) if arm == "real" else (BUDGET,):
            for task in given.tasks:
                yield SpaceJob(task, arm, budget, seed, settings_of(arm, table))


def _run(missing: Sequence[SpaceJob], rows: Rows, tables: Mapping[str, Table], console: Console) -> None:
    for at, job in enumerate(missing, 1):
        row = run(job, tables[job.task], models)
        rows.add(job, row)
        said = f"{name_of(job.arm, job.budget)} on {job.task}, seed {job.seed}: {row['value']:.3f} ± {row['error']:.3f}"
        counts = f"{row['executions']} executions, {row['new']} new, {row['cpu_s']:.1f} CPU s"
        console.print(f"{at}/{len(missing)} {said}, {counts}", highlight=False)


@functools.cache
def models(task: str) -> OutcomeModel:
    """The world model of the runs on a held-out task. None of them changes it, so that its trees are grown once."""
    return OutcomeModel.pretrained()


def _tune(given: argparse.Namespace, tables: Mapping[str, Table], console: Console) -> None:
    rows = Rows(given.runs / "tuning.jsonl", study=STUDY)
    tasks = given.tasks[: given.tuning_tasks]
    for arm in given.arms:
        tried = {}
        for rate, entropy in product(RATES, ENTROPIES):
            settings = replace(BASE, rate=rate, entropy=entropy)
            own = [SpaceJob(task, arm, BUDGET, seed, settings) for seed in TUNING_SEEDS for task in tasks]
            _run([job for job in own if job not in rows], rows, tables, console)
            tried[settings] = float(np.mean([rows[job]["value"] for job in own]))
        best = max(tried, key=lambda each: tried[each])
        entry = {
            "settings": best.as_json(),
            "value": round(tried[best], 5),
            "tried": [[each.rate, each.entropy, round(value, 5)] for each, value in tried.items()],
            "tasks": tasks,
        }
        write_json(TUNED, dict(sorted((tuned() | {arm: entry}).items())))
        console.print(f"{arm}: {tried[best]:.4f} with rate {best.rate:g}, entropy {best.entropy:g}")


def _estimate(missing: Sequence[SpaceJob], rows: Rows, tables: Mapping[str, Table], console: Console) -> int:
    """Say what the missing runs would cost: from rows of the same arm, or everything anew where there are none."""
    seen: dict[str, list[float]] = {}
    for row in rows:
        seen.setdefault(name_of(row["job"]["arm"], row["job"]["budget"]), []).append(row["new"])
    new = 0.0
    for job in missing:
        own = seen.get(name_of(job.arm, job.budget))
        most = EPISODES * 3 + (0 if job.arm == "model" else job.budget)
        new += most if own is None else float(np.mean(own))
    cpu_s = np.mean([each.cpu_s for table in tables.values() for each in table.all()])
    console.print(f"{len(missing)} runs, about {new:,.0f} scripts to execute, {new * cpu_s / 60:,.0f} CPU minutes in them")
    return 0


def _report(given: argparse.Namespace, rows: Rows, console: Console) -> int:
    table = tuned()
    current = [row for row in rows if row["job"]["settings"] == settings_of(row["job"]["arm"], table).as_json()]
    document = summarise(current, tasks=list(given.tasks)) | {"tuned": sorted(table), "packed": PACKED.name}
    given.results.mkdir(parents=True, exist_ok=True)
    write_json(given.results / "whole_space.json", document)
    show(document, console)
    return 0 if document["bars"] and all(bar["met"] for bar in document["bars"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
