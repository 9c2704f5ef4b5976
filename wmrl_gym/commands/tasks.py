"""``wmrl tasks``: the AutoResearch tasks."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    commands.add_parser("tasks", help="list the AutoResearch tasks").set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print a table of the tasks; returns the exit status."""
    from rich.console import Console
    from rich.table import Table

    from wmrl_gym.envs.autoresearch import list_tasks, load_task

    table = Table()
    for heading in ("task", "metric", "kind", "train rows", "licence of the data"):
        table.add_column(heading)
    for name in list_tasks():
        spec = load_task(name).spec
        rows = (load_task(name).public / "train.csv").read_bytes().count(b"\n") - 1
        table.add_row(name, spec.metric.name, spec.kind, str(rows), spec.licence)
    Console().print(table)
    return 0
