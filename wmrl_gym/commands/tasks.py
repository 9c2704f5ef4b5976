"""``wmrl tasks``: the AutoResearch tasks, whether a task is sound, and a task to begin with."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

_METRICS = {"binary": "log-loss", "multiclass": "accuracy", "regression": "rmse"}


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    tasks = commands.add_parser("tasks", help="list the AutoResearch tasks, check one, or make a new one")
    tasks.set_defaults(run=run, action=None)
    actions = tasks.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="list the embedded tasks (the default)")
    check = actions.add_parser("validate", help="say what is wrong with a task")
    check.add_argument("task", nargs="*", help="a name, or a directory in our format, MLE-bench's, MLE-Dojo's or DSBench's")
    check.add_argument("--all", action="store_true", help="every embedded task")
    new = actions.add_parser("new", help="write a small task to begin with")
    new.add_argument("directory", type=Path)
    new.add_argument("--kind", choices=sorted(_METRICS), default="regression")
    new.add_argument("--metric", default=None, help="such as rmse, mae, accuracy, macro-f1, auc or log-loss")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; returns the exit status."""
    if arguments.action == "validate":
        return _validate([*arguments.task, *(_names() if arguments.all else ())])
    if arguments.action == "new":
        return _new(arguments)
    return _list()


def _names() -> tuple[str, ...]:
    from wmrl_gym.envs.autoresearch import list_tasks

    return list_tasks()


def _list() -> int:
    from rich.table import Table

    from wmrl_gym.commands import plain_console
    from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS, load_task

    table = Table()
    for heading in ("task", "metric", "kind", "modality", "train rows", "board", "part", "licence of the data"):
        table.add_column(heading, no_wrap=heading == "task")
    for name in _names():
        task = load_task(name)
        spec, rows = task.spec, (task.public / "train.csv").read_bytes().count(b"\n") - 1
        part = "held-out" if name in HELD_OUT_TASKS else "train"
        board = str(len(task.leaderboard.goodness))
        table.add_row(name, spec.metric.name, spec.kind, spec.modality, str(rows), board, part, spec.licence)
    plain_console().print(table)
    return 0


def _validate(names: list[str]) -> int:
    from gymnasium.error import DependencyNotInstalled

    from wmrl_gym.envs.autoresearch import load_task
    from wmrl_gym.envs.autoresearch.tasks.authoring import validate, warnings_of
    from wmrl_gym.envs.autoresearch.tasks.peers import DoubtfulTask

    if not names:
        print("wmrl tasks validate: name a task or a directory, or give --all", file=sys.stderr)
        return 2
    wrong = 0
    for name in names:
        doubts: list[str] = []
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", DoubtfulTask)
                task = load_task(Path(name) if Path(name).is_dir() else name)
            doubts = [str(each.message) for each in told if each.category is DoubtfulTask]
            meant = "fine if that is meant, as in a time series"
            found, doubts = validate(task), doubts + [f"{doubt}; {meant}" for doubt in warnings_of(task)]
        except (ValueError, DependencyNotInstalled) as error:
            found = [str(error)]
        wrong += bool(found)
        print(f"{name}: {'ok' if not found else ''}".rstrip())
        for sentence in (*found, *(f"warning: {doubt}" for doubt in doubts)):
            print(f"  - {sentence}")
    return 1 if wrong else 0


def _new(arguments: argparse.Namespace) -> int:
    from wmrl_gym.commands import complain
    from wmrl_gym.envs.autoresearch.tasks.authoring import write_scaffold
    from wmrl_gym.files import CannotWrite

    try:
        write_scaffold(arguments.directory, kind=arguments.kind, measure=arguments.metric or _METRICS[arguments.kind])
    except (CannotWrite, ValueError) as error:
        return complain("tasks new", error)
    print(f"wrote {arguments.directory}: replace its rows, then run `wmrl tasks validate {arguments.directory}`")
    return 0
