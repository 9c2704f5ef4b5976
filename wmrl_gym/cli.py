"""The ``wmrl`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``wmrl``; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wmrl", description="Train in a world model of an expensive environment.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train four ways for the same wall-clock time and compare by real execution")
    demo.add_argument("--seconds", type=float, default=None, help="of training for each arm (default: 35)")
    demo.add_argument("--seed", type=int, default=0, help="of everything (default: 0)")
    demo.add_argument("--tasks", default=None, help="names, separated by commas (default: all)")
    demo.add_argument("--arms", default=None, help="names, separated by commas (default: real,model,paper,recommended)")
    demo.add_argument("--workers", type=int, default=None, help="executions at once (default: 2)")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of results (default: runs/demo)")
    demo.add_argument("--fresh", action="store_true", help="begin anew in a folder that holds results")
    demo.set_defaults(run=_demo)
    tasks = commands.add_parser("tasks", help="list the AutoResearch tasks")
    tasks.set_defaults(run=_tasks)
    doctor = commands.add_parser("doctor", help="check what this machine can run, and say what is missing")
    doctor.set_defaults(run=_doctor)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    import shutil

    from rich.console import Console

    from wmrl_gym.sandbox import SandboxUnavailable
    from wmrl_gym.study.config import StudyConfig
    from wmrl_gym.study.run import MARKER, Study, StudyMismatch, show

    console = Console()
    given = {name: getattr(arguments, name) for name in ("seconds", "seed", "workers") if getattr(arguments, name) is not None}
    for name in ("tasks", "arms"):
        if getattr(arguments, name) is not None:
            given[name] = tuple(part.strip() for part in getattr(arguments, name).split(","))
    try:
        config = StudyConfig(**given)
        if arguments.fresh and arguments.out.exists():
            if not (arguments.out / MARKER).is_file():
                raise ValueError(f"{arguments.out} does not look like results of this command: remove it by hand")
            shutil.rmtree(arguments.out)
        study = Study(config, arguments.out, console=console)
        rows = study.run()
    except (StudyMismatch, SandboxUnavailable, ValueError) as error:
        print(f"wmrl demo: {error}", file=sys.stderr)
        return 2
    show(rows, console, arguments.out)
    return 0


def _tasks(_: argparse.Namespace) -> int:
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


def _doctor(_: argparse.Namespace) -> int:
    from rich.console import Console

    from wmrl_gym.doctor import examine

    findings = examine()
    console = Console()
    for finding in findings:
        mark = "[green]ok[/]  " if finding.ok else "[red]no[/]  "
        console.print(f"{mark}{finding.what}" + ("" if finding.ok else f": {finding.advice}"))
    return 0 if all(finding.ok for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
