"""``wmrl report``: one self-contained HTML page of evaluations and comparisons."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  wmrl report runs/evaluate/scripted
  wmrl report runs/evaluate/* --out agents.html --title "Agents on held-out tasks"
  wmrl report runs/demo
"""


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    report = commands.add_parser(
        "report",
        help="write one HTML page about runs",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of `wmrl evaluate` or `wmrl demo`")
    report.add_argument("--out", type=Path, default=None, help="the file (default: report.html in the first folder)")
    report.add_argument("--title", default="", help="of the page (default: the names of the runs)")
    report.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is; returns the exit status."""
    import gymnasium as gym

    from wmrl_gym.commands import complain
    from wmrl_gym.files import CannotWrite
    from wmrl_gym.report import write_report

    out = arguments.runs[0] / "report.html" if arguments.out is None else arguments.out
    try:
        path = write_report(arguments.runs, out, title=arguments.title)
    except (CannotWrite, ValueError, gym.error.Error) as error:
        return complain("report", error)
    print(path)
    return 0
