"""The ``wmrl`` command: a subcommand for each module of :mod:`wmrl_gym.commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = ("demo", "evaluate", "report", "tasks", "sandbox", "collect", "fit", "fidelity", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``wmrl``; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (OSError, MemoryError, OverflowError) as error:  # a name that is too long, a full disk, a number beyond all bounds
        from wmrl_gym.commands import complain

        problem = f"{type(error).__name__}: {error}" if isinstance(error, (MemoryError, OverflowError)) else str(error)
        return complain(arguments.command, RuntimeError(problem))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wmrl", description="Train in a world model of an expensive environment.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"wmrl_gym.commands.{name}").add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
