"""``wmrl demo``: the study, on a budget of minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    demo = commands.add_parser("demo", help="train four ways for the same wall-clock time and compare by real execution")
    demo.add_argument("--seconds", type=float, default=None, help="of training for each arm (default: 35)")
    demo.add_argument("--seed", type=int, default=0, help="of everything (default: 0)")
    demo.add_argument("--tasks", default=None, help="names, separated by commas (default: the eight that are held out)")
    demo.add_argument("--arms", default=None, help="names, separated by commas (default: real,model,mixture,recommended)")
    demo.add_argument("--workers", type=int, default=None, help="executions at once (default: 2)")
    demo.add_argument(
        "--from-scratch",
        action="store_true",
        help="begin with a world model that knows nothing, and a warm-up, instead of the one that comes along and knows other "
        "tasks; on eight other tasks",
    )
    demo.add_argument("--pretrained", action="store_true", help=argparse.SUPPRESS)  # the default by now
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of results (default: runs/demo)")
    demo.add_argument("--fresh", action="store_true", help="begin anew in a folder that holds results")
    demo.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, grade, and print the table; returns the exit status."""
    from wmrl_gym.commands import complain, plain_console
    from wmrl_gym.commands.settings import alone_in, remove_results
    from wmrl_gym.files import CannotWrite
    from wmrl_gym.sandbox import SandboxUnavailable
    from wmrl_gym.study.config import StudyConfig
    from wmrl_gym.study.run import MARKER, Study, StudyMismatch, show

    console = plain_console()
    given = {name: getattr(arguments, name) for name in ("seconds", "seed", "workers") if getattr(arguments, name) is not None}
    for name in ("tasks", "arms"):
        if getattr(arguments, name) is not None:
            given[name] = tuple(part.strip() for part in getattr(arguments, name).split(","))
    given["pretrained"] = not arguments.from_scratch
    try:
        if arguments.from_scratch and arguments.pretrained:
            raise ValueError("--from-scratch and --pretrained exclude each other: name one of them, or neither")
        config = StudyConfig(**given)
        if arguments.fresh:
            remove_results(arguments.out, marker=MARKER)
        with alone_in(arguments.out):
            study = Study(config, arguments.out, console=console)
            rows = study.run()
    except (CannotWrite, StudyMismatch, SandboxUnavailable, ValueError) as error:
        return complain("demo", error)
    show(rows, console, arguments.out)
    return 0
