"""``wmrl doctor``: what this machine can run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wmrl_gym.doctor import Finding


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    commands.add_parser("doctor", help="check what this machine can run, and say what is missing").set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print what was found; returns 1 where something is missing."""
    from wmrl_gym.doctor import examine

    findings = examine()
    show(findings)
    return 0 if all(finding.ok for finding in findings) else 1


def show(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, in words that can be copied into a shell."""
    from rich.text import Text

    from wmrl_gym.commands import plain_console

    console = plain_console()
    for finding in findings:
        said = finding.what if finding.ok else f"{finding.what}: {finding.advice}"
        mark = ("ok", "green") if finding.ok else ("no", "red")
        console.print(Text.assemble(mark, f"  {said}"), soft_wrap=True)
