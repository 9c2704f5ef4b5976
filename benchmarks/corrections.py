"""Which corrections win under which error of the world model, measured where the truth is known.

    python -m benchmarks.corrections            the whole study, resumable
    python -m benchmarks.corrections --quick    one noise, fewer methods; under three minutes
    python -m benchmarks.corrections --tune     choose learning rates on the tuning seeds

Writes JSON and PNG to benchmarks/results/ and exits with 1 when the bar is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.corrections_study.registry import METHODS, RATES
from benchmarks.corrections_study.report import plot, show
from benchmarks.corrections_study.run import CONTEXTUAL, NOISES, STEPS, run, scenarios
from benchmarks.corrections_study.train import Scenario, train
from benchmarks.corrections_study.world import KINDS, make_worlds

RESULTS = Path(__file__).parent / "results"
QUICK = (
    "world model alone",
    "mixture",
    "denoise only",
    "debias only",
    "paper",
    "real only, episodes",
    "recommended",
    "adaptive",
    *CONTEXTUAL,
)


def tune(console: Console, *, seeds: int) -> None:
    """Print each method's best learning rate over all kinds of bias; the table's rates were chosen so."""
    worlds = make_worlds(range(100, 100 + seeds))
    entries = [dataclasses.replace(entry, rate=rate) for entry in METHODS for rate in RATES]
    total = np.zeros((len(METHODS), len(RATES)))
    for kind in KINDS:
        curves = train(worlds, Scenario(kind), entries, steps=STEPS)
        total += curves[..., -1].mean(axis=1).reshape(total.shape) / len(KINDS)
        console.print(f"tuned on {kind}")
    for entry, row in zip(METHODS, total, strict=True):
        shown = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in zip(RATES, row, strict=True))
        console.print(f"{entry.name:26} best {RATES[int(row.argmax())]:g}   ({shown})")


def main(arguments: list[str] | None = None) -> int:
    """Run the study; 0 when the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one noise, the methods of the bar")
    parser.add_argument("--tune", action="store_true", help="tune learning rates instead")
    parser.add_argument(
        "--noises", type=int, default=len(NOISES), help="of how many noises what is missing is run (default: all)"
    )
    parser.add_argument("--methods", nargs="*", help="run no others that are missing (default: all)")
    parser.add_argument("--seeds", type=int, help="bandits a scenario (default 48, quick 24)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and PNG")
    options = parser.parse_args(arguments)
    seeds = (24 if options.quick else 48) if options.seeds is None else options.seeds
    if seeds < 2:
        parser.error(f"--seeds must be at least 2, got {seeds}")
    known = [entry.name for entry in METHODS]
    if not 1 <= options.noises <= len(NOISES) or not set(options.methods or known) <= set(known):
        parser.error(f"--noises must be 1 to {len(NOISES)} and --methods of {', '.join(known)}")
    console = Console()
    # Tables are wide: into a file or a pipe they are written whole.
    console.width = max(console.width, 150)
    if options.tune:
        tune(console, seeds=min(seeds, 16))
        return 0
    entries = [entry for entry in METHODS if not options.quick or entry.name in QUICK]
    path = options.results / ("corrections-quick.json" if options.quick else "corrections.json")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("corrections", total=len(scenarios(options.quick)) + 4)
        results = run(
            path,
            entries,
            seeds=seeds,
            quick=options.quick,
            noises=options.noises,
            only=options.methods,
            tick=lambda text: progress.update(task, advance=1, description=f"{text:16}"),
        )
    show(results, console)
    plot(results, path.with_suffix(".png"))
    console.print(f"Written: {path} and {path.with_suffix('.png')}")
    return 0 if results["verdict"]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
