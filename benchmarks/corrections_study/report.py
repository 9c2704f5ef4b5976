"""The study's tables and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.corrections_study.run import difference
from benchmarks.corrections_study.world import HARD, KINDS


def _cell(values: list[float]) -> str:
    v = np.array(values)
    return f"{v.mean():.3f} ±{v.std(ddof=1) / np.sqrt(v.size):.3f}"


def noises(results: dict[str, Any]) -> list[str]:
    """The noises present, as written in labels."""
    return list(dict.fromkeys(label.split("/")[1] for label in results["scenarios"]))


def methods(results: dict[str, Any], noise: str) -> list[str]:
    """The methods that have rows of every kind of bias at a noise."""
    rows = [results["scenarios"].get(f"{kind}/{noise}", {}) for kind in KINDS]
    return [name for name in results["setup"]["rates"] if all(name in row for row in rows)]


def returns_table(results: dict[str, Any], noise: str, when: str = "final") -> Table:
    """True return of each method under each kind of bias."""
    steps = {"final": results["setup"]["steps"], "early": 40}[when]
    table = Table(title=f"True return after {steps} steps, noise {noise} (0 start, 1 optimum; ± standard error)")
    for column in ("method", *KINDS, "all"):
        table.add_column(column)
    for name in methods(results, noise):
        rows = [results["scenarios"][f"{kind}/{noise}"][name][when] for kind in KINDS]
        table.add_row(name, *(_cell(row) for row in rows), f"{np.mean(rows):.3f}")
    return table


def real_table(results: dict[str, Any], noise: str) -> Table:
    """Median real executions until 90% of the optimum."""
    table = Table(title=f"Real executions to 90% of the optimum, noise {noise} (median over seeds; - is more than half never)")
    for column in ("method", *KINDS):
        table.add_column(column)
    for name in methods(results, noise):
        cells = []
        for kind in KINDS:
            counts = results["scenarios"][f"{kind}/{noise}"][name]["real_to_90"]
            median = float(np.median([np.inf if c is None else c for c in counts]))
            cells.append("-" if np.isinf(median) else f"{median:,.0f}")
        table.add_row(name, *cells)
    return table


def gradient_table(results: dict[str, Any]) -> Table:
    """Relative squared bias and variance of a step's gradient."""
    table = Table(title="A step's gradient at a fixed policy: squared bias / variance, relative to the true gradient's square")
    for column in ("method", *KINDS):
        table.add_column(column)
    for name in (each for each in results["setup"]["rates"] if each in results["gradients"][KINDS[0]]):
        cells = [results["gradients"][kind][name] for kind in KINDS]
        table.add_row(name, *(f"{c['bias2']:.2f} / {c['variance']:.1f}" for c in cells))
    return table


def verdict_table(results: dict[str, Any]) -> Table:
    """The bar."""
    verdict = results["verdict"]
    table = Table(title=f"{verdict['ours']} against the paper's method, paired over seeds, noise 0.15")
    for column in ("row", "difference", "after 40 steps", "asked", "passed"):
        table.add_column(column)
    for kind, row in verdict["rows"].items():
        early = difference(results, f"{kind}/0.15", verdict["ours"], "paper", "early")
        asked = "> 2 standard errors" if kind in HARD else "> -0.005"
        shown = f"{row['difference']:+.4f} ±{row['standard_error']:.4f}"
        table.add_row(kind, shown, f"{early[0]:+.4f} ±{early[1]:.4f}", asked, "yes" if row["passed"] else "NO")
    for name, rows in verdict.get("contextual", {}).items():
        for kind, row in rows.items():
            early = difference(results, f"{kind}/0.15", name, "adaptive", "early")
            asked = "> 2 standard errors" if kind in ("arm", "spike") else "> -1 standard error"
            shown = f"{row['difference']:+.4f} ±{row['standard_error']:.4f}"
            after = f"{early[0]:+.4f} ±{early[1]:.4f}"
            table.add_row(f"{name} against adaptive: {kind}", shown, after, asked, "yes" if row["passed"] else "NO")
    for heading in ("theorems", "costs"):
        for name, passed in verdict[heading].items():
            table.add_row(heading, "", "", name, "yes" if passed else "NO")
    return table


def show(results: dict[str, Any], console: Console) -> None:
    """Print everything."""
    for noise in noises(results):
        console.print(returns_table(results, noise))
    console.print(returns_table(results, "0.15", "early"))
    console.print(real_table(results, "0.15"))
    console.print(gradient_table(results))
    console.print(verdict_table(results))
    verdict = results["verdict"]
    means = ", ".join(f"{name} {value:.3f}" for name, value in verdict["means"].items())
    console.print(f"Means over the kinds: {means}")
    answer = "reproduced" if verdict["papers_order_reproduced"] else "NOT reproduced here"
    console.print(f"The paper's order, mixture < denoise only < debias only < both: {answer}")
    console.print(f"All mild rows within .005 by point estimate: {'yes' if verdict['strict_mild'] else 'no'}")


def plot(results: dict[str, Any], path: Path) -> None:
    """Learning curves under each kind of bias at noise .15, and the error floor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = ["real only, episodes", "world model alone", "mixture", "paper", "recommended", "adaptive"]
    names += [name for name in ("contextual + residual",) if name in methods(results, "0.15")]
    figure, axes = plt.subplots(3, 3, figsize=(13, 10), constrained_layout=True)
    for axis, kind in zip(axes.ravel(), KINDS, strict=False):
        for name in names:
            curve = results["scenarios"][f"{kind}/0.15"][name]["curve"]
            axis.plot(np.arange(len(curve)) * 4 + 1, curve, label=name, linewidth=2.2 if name in ("paper", "adaptive") else 1.2)
        axis.set(title=f"bias: {kind}", ylim=(0.3, 1.02), xlabel="step (25.6 real executions each)", ylabel="true return")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    floor, axis = results["error_floor"], axes.ravel()[-1]
    for name in ("smooth", "binned"):
        axis.loglog(floor["pairs"], floor[name]["left"], marker="o", label=f"{name}, slope {floor[name]['slope']:.2f}")
    axis.set(title="error of f that more pairs would remove", xlabel="anchor pairs", ylabel="mean squared error")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)
    plt.close(figure)
