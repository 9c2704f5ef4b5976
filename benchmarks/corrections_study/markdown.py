"""The tables of docs/corrections_measured.md, from the committed JSON: ``python -m benchmarks.corrections_study.markdown``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corrections_study.report import methods, noises
from benchmarks.corrections_study.run import difference
from benchmarks.corrections_study.world import KINDS


def table(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def returns(results: dict[str, Any], noise: str, when: str) -> str:
    """True return of each method under each kind of bias."""
    rows = []
    for name in methods(results, noise):
        means = [float(np.mean(results["scenarios"][f"{kind}/{noise}"][name][when])) for kind in KINDS]
        rows.append([name, *(f"{m:.3f}" for m in means), f"{np.mean(means):.3f}"])
    return table(["", *KINDS, "all"], rows)


def against_paper(results: dict[str, Any], name: str) -> str:
    """Paired differences to the paper's method at every noise."""
    rows = []
    for noise in noises(results):
        for when, label in (("final", "120"), ("early", "40")):
            cells = [difference(results, f"{kind}/{noise}", name, "paper", when) for kind in KINDS]
            rows.append([f"noise {noise}, {label} steps", *(f"{1e3 * d:+.0f} ± {1e3 * e:.0f}" for d, e in cells)])
    return table(["thousandths", *KINDS], rows)


def real_to_90(results: dict[str, Any], noise: str) -> str:
    """Median real executions until 90% of the optimum."""
    rows = []
    for name in methods(results, noise):
        cells = []
        for kind in KINDS:
            counts = results["scenarios"][f"{kind}/{noise}"][name]["real_to_90"]
            median = float(np.median([np.inf if c is None else c for c in counts]))
            cells.append("never" if np.isinf(median) else f"{median:,.0f}")
        rows.append([name, *cells])
    return table(["", *KINDS], rows)


def gradients(results: dict[str, Any]) -> str:
    """Relative squared bias / variance of one step's gradient."""
    rows = []
    for name in (each for each in results["setup"]["rates"] if each in results["gradients"][KINDS[0]]):
        cells = [results["gradients"][kind][name] for kind in KINDS]
        rows.append([name, *(f"{c['bias2']:.2f} / {c['variance']:.1f}" for c in cells)])
    return table(["bias^2 / variance", *KINDS], rows)


def main() -> int:
    """Print all tables."""
    default = Path(__file__).parents[1] / "results" / "corrections.json"
    results = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else default).read_text())
    for noise in noises(results):
        print(f"\nReturn after 120 steps, noise {noise}\n\n{returns(results, noise, 'final')}")
    print(f"\nReturn after 40 steps, noise 0.15\n\n{returns(results, '0.15', 'early')}")
    for name in ("adaptive", "recommended", "residual reward, adaptive"):
        print(f"\n{name} minus the paper's method\n\n{against_paper(results, name)}")
    print(f"\nReal executions to 90%, noise 0.15\n\n{real_to_90(results, '0.15')}")
    if "gradients" in results:
        print(f"\nGradients\n\n{gradients(results)}")
        print(json.dumps({key: results[key] for key in ("error_floor", "fused_variance", "speed", "verdict")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
