"""The command: ``python -m benchmarks.real_tasks``; see the package."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

import benchmarks.real_tasks as package
from benchmarks.executions import load_grid
from benchmarks.real_tasks.arms import ARMS
from benchmarks.real_tasks.designs import Executed
from benchmarks.real_tasks.models import Models
from benchmarks.real_tasks.report import draw, show, summarise
from benchmarks.real_tasks.run import Job, Rows, run, study_of
from benchmarks.real_tasks.settings import BUDGETS, SETTINGS, Settings, key, tuned, tuned_at, write_tuned
from benchmarks.real_tasks.trainers import TRAINERS
from benchmarks.real_tasks.tune import tune
from wmrl_gym.envs.autoresearch.embedded.recipes import HELD_OUT_TASKS

RESULTS = Path(__file__).parents[1] / "results"
REAL_ONLY = (400, 800)
"""Further budgets of the arm that only executes, to say how many executions it needs for what others reach."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 where a bar is missed."""
    given = _arguments(argv)
    console = Console()
    console.width = max(console.width, 170)
    if given.command == "report":
        return _report(given, Rows(given.runs / "rows.jsonl", study=None), console)
    tables = load(given.tasks.split(","))
    models = Models(tables)
    study = study_of(tables, models)
    if given.command == "tune":
        _tune(given, Rows(given.runs / "tuning.jsonl", study=study), tables=tables, models=models, console=console)
        return 0
    rows = Rows(given.runs / "rows.jsonl", study=study)
    missing = [job for job in jobs(given, tuned()) if job not in rows]
    for at, job in enumerate(missing, 1):
        row = run(job, tables, models)
        rows.add(job, row)
        value = np.mean(list(row["values"].values()))
        said = f"{job.setting} {job.trainer} {job.arm} at {job.budget}, seed {job.seed}: {value:.3f}"
        console.print(f"{at}/{len(missing)} {said}, {row['cpu_s']:.1f} s", highlight=False)
    return _report(given, rows, console)


def _report(given: argparse.Namespace, rows: Rows, console: Console) -> int:
    """Print and write what the rows say; 1 where a bar is missed."""
    table = tuned()
    path = given.results / "real_tasks.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if before is not None and before["study"] != rows.study:
        before = None  # other tables or another world model: nothing of it can stand beside these rows
    document = summarise((row for row in rows if _is_current(row, table)), before=before) | {"study": rows.study}
    given.results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(document, console)
    if document["comparisons"]:
        draw(document, given.results / "real_tasks.png")
    return 0 if all(bar["met"] for bar in document["bars"]) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_tasks", description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("tune", "run", "report"))
    parser.add_argument("--settings", default="transfer", help=f"of {', '.join(SETTINGS)} (default: %(default)s)")
    parser.add_argument("--trainers", default="ppo,group", help="of ppo, group (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(ARMS), help="names, separated by commas (default: all)")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="real executions a task (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (default: %(default)s)")
    parser.add_argument("--tasks", default=",".join(HELD_OUT_TASKS), help="names (default: the held-out tasks)")
    parser.add_argument("--runs", type=Path, default=Path("runs/real_tasks"), help="where rows are kept (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and PNG go")
    given = parser.parse_args(argv)
    for name, known in (("settings", SETTINGS), ("trainers", TRAINERS), ("arms", ARMS)):
        unknown = sorted(set(getattr(given, name).split(",")) - set(known))
        if unknown:
            parser.error(f"--{name} must be of {', '.join(known)}, got {', '.join(unknown)}")
    if not {int(each) for each in given.budgets.split(",")} <= set(BUDGETS) or given.seeds < 2:
        parser.error(f"need budgets of {BUDGETS} and --seeds >= 2, got {given.budgets} and {given.seeds}")
    return given


def load(tasks: Sequence[str]) -> dict[str, Executed]:
    """What was executed, by task."""
    found = {}
    for task in tasks:
        grid = load_grid(task)
        found[task] = Executed(task, grid.status.reshape(-1), grid.rewards.reshape(-1), grid.shown.reshape(-1))
    return found


def cells(given: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Setting, trainer, arm and budget of everything that was asked for; budget 0 where it makes no difference."""
    budgets = [int(each) for each in given.budgets.split(",")]
    for setting in given.settings.split(","):
        for trainer in given.trainers.split(","):
            for arm in given.arms.split(","):
                own = ARMS[arm].needs == "model" and not SETTINGS[setting].pretrained
                for budget in budgets if ARMS[arm].budgeted or own else [0]:
                    yield setting, trainer, arm, budget


def _tune(given: argparse.Namespace, rows: Rows, *, tables: Mapping[str, Executed], models: Models, console: Console) -> None:
    for setting, trainer, arm, budget in cells(given):
        at = tuned_at(arm, budget)
        name = key(setting, trainer, arm, at)
        table = tuned()
        entry = tune(setting, trainer, arm, budget=at, rows=rows, tables=tables, models=models, tell=console.print)
        write_tuned(table | {name: {"study": rows.study} | entry})


def jobs(given: argparse.Namespace, table: Mapping[str, dict[str, object]]) -> Iterator[Job]:
    """All runs that were asked for, seed by seed, so that an interrupted comparison has whole seeds."""
    for seed in range(given.seeds):
        for setting, trainer, arm, budget in cells(given):
            entry = table.get(key(setting, trainer, arm, tuned_at(arm, budget)))
            if entry is None:
                warnings.warn(f"{setting} {trainer} {arm} at {budget} is not tuned: left out", stacklevel=2)
                continue
            settings = Settings(**entry["settings"])  # type: ignore[arg-type]
            yield Job(setting, trainer, arm, budget, seed, settings)
            if arm == "real" and budget == max(int(each) for each in given.budgets.split(",")):
                yield from (Job(setting, trainer, arm, further, seed, settings) for further in REAL_ONLY)


def _is_current(row: dict[str, object], table: Mapping[str, dict[str, object]]) -> bool:
    """Whether a row has the settings of the tuned table as it is now."""
    job: dict[str, object] = row["job"]  # type: ignore[assignment]
    at = tuned_at(str(job["arm"]), int(job["budget"]))  # type: ignore[call-overload]
    entry = table.get(key(str(job["setting"]), str(job["trainer"]), str(job["arm"]), at))
    return entry is not None and entry["settings"] == job["settings"]


if __name__ == "__main__":
    raise SystemExit(main())
