"""``wmrl doctor``: what this machine can run."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    commands.add_parser("doctor", help="check what this machine can run, and say what is missing").set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print what was found; returns 1 where something is missing."""
    from rich.console import Console
    from rich.markup import escape

    from wmrl_gym.doctor import examine

    findings = examine()
    console = Console()
    for finding in findings:
        mark = "[green]ok[/]  " if finding.ok else "[red]no[/]  "
        said = finding.what if finding.ok else f"{finding.what}: {finding.advice}"
        console.print(mark + escape(said), soft_wrap=True)
    return 0 if all(finding.ok for finding in findings) else 1
