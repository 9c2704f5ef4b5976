"""Robot tasks learnt with world models against real steps and true verdicts: ``python -m benchmarks.manipulation``.

SAC learns Meta-World tasks in two variants.

``--variant state``: from the simulator's state, with its shaped reward, in five ways that begin with the same demonstrations and
may take equally many real steps: real steps only, learnt from once each, or as often as in the others; a world model alone
(``EnsembleDynamics``), fitted on random steps and then left to itself; a plain mixture of imagined and real episodes, on which
the model goes on learning; and the same with WMRL's corrections.

``--variant images``: all steps are real, and what is dear is the verdict whether a trial succeeded. A progress model
(``ProgressModel``), trained on a few demonstrations, gives it from images and the sentence: alone, mixed with true verdicts, and
with WMRL's corrections; against as many true verdicts only, and against a true verdict for every trial.

Policies on the way are judged by real success on fresh seeds. A run that was interrupted goes on where it stopped. Results go to
``benchmarks/results/manipulation.json`` and ``manipulation.png``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.robots import images, state
from benchmarks.robots.report import summarise, table, write
from benchmarks.robots.runs import Variant, run_all

RESULTS = Path(__file__).parent / "results"


def variants(*, quick: bool) -> dict[str, Variant]:
    """The comparisons that there are."""
    return {"state": state.variant(quick=quick), "images": images.variant(quick=quick)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("state", "images", "both"), default="both", help="what is compared (default: both)")
    parser.add_argument("--seeds", type=int, default=None, help="number of seeds (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--tasks", default=",".join(state.TASKS), help="names, separated by commas")
    parser.add_argument("--arms", default=None, help="names, separated by commas (default: all of the variant)")
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept (default: runs/manipulation)")
    parser.add_argument("--results", type=Path, default=None, help="where the summary goes (default: benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="a minute or two: one seed, few steps, results beside the runs")
    arguments = parser.parse_args(argv)
    known = variants(quick=arguments.quick)
    names = list(known) if arguments.variant == "both" else [arguments.variant]
    given = None if arguments.arms is None else arguments.arms.split(",")
    unknown = sorted(set(given or ()) - set().union(*(known[name].arms for name in names)))
    if unknown or (arguments.seeds is not None and arguments.seeds < 1):
        parser.error(f"unknown arms {unknown}" if unknown else f"--seeds must be at least 1, got {arguments.seeds}")
    runs = arguments.runs or Path("runs/manipulation-quick" if arguments.quick else "runs/manipulation")
    console = Console(width=max(Console().width, 120))
    summaries = {}
    for name in names:
        variant = known[name]
        seeds = arguments.seeds or variant.seeds
        arms = [arm for arm in variant.arms if given is None or arm in given]
        # Runs of images have a folder of their own; those of the state lie where they always did.
        folder = runs if name == "state" else runs / name
        numbers = range(arguments.first_seed, arguments.first_seed + seeds)
        records = run_all(variant, arms=arms, tasks=arguments.tasks.split(","), seeds=numbers, runs=folder, console=console)
        summaries[name] = summarise(records, variant)
        console.print(table(summaries[name], variant))
    write(summaries, known, arguments.results or (runs if arguments.quick else RESULTS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
