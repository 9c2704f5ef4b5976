"""Tables, pictures and the JSON document of the rows that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.real_tasks.arms import ARMS
from benchmarks.real_tasks.bars import (
    BASELINES,
    WMRL,
    Estimate,
    Values,
    best_baseline,
    executions_for,
    gap_closed,
    paired,
    statement,
    verdicts,
    way,
)
from benchmarks.real_tasks.settings import BUDGETS, SETTINGS
from wmrl_gym.study.run import machine

Rows = list[dict[str, Any]]
Place = tuple[str, str, int]
"""Setting, trainer and budget of a comparison."""


def summarise(rows: Iterable[dict[str, Any]], *, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document: for each setting, trainer and budget what each arm reached, and the verdicts.

    Args:
        rows: of the comparison, tuning rows left out.
        before: an earlier document of the same study, whose comparisons stay where there are no rows of them.
    """
    cells: dict[tuple[str, str], Rows] = defaultdict(list)
    found = list(rows)
    start = float(np.mean([row["curve"][0][2] for row in found]))  # the untrained policy
    for row in found:
        cells[row["job"]["setting"], row["job"]["trainer"]].append(row)
    comparisons: dict[Place, dict[str, Any]] = {} if before is None else {_place(cell): cell for cell in before["comparisons"]}
    for (setting, trainer), own in sorted(cells.items()):
        real = _real_only(own)
        for budget in BUDGETS:
            chosen = [row for row in own if row["job"]["budget"] in (0, budget)]
            if any(row["job"]["budget"] == budget and row["job"]["arm"] != "real" for row in chosen):
                cell = _comparison(chosen, start=start, real=real)
                comparisons[setting, trainer, budget] = {"setting": setting, "trainer": trainer, "budget": budget, **cell}
    at = list(SETTINGS)
    ordered = sorted(comparisons.items(), key=lambda each: (at.index(each[0][0]), each[0][1:]))
    bars = [each.as_json() for place, cell in ordered for each in verdicts(*place, _values_of(cell))]
    whole = [cell for _, cell in ordered]
    return {"machine": machine(), "start": start, "wmrl": WMRL, "comparisons": whole, "bars": bars}


def _place(cell: Mapping[str, Any]) -> Place:
    return cell["setting"], cell["trainer"], cell["budget"]


def _values_of(cell: Mapping[str, Any]) -> Values:
    return {name: {int(seed): value for seed, value in arm["seeds"].items()} for name, arm in cell["arms"].items()}


def _values(rows: Rows) -> Values:
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        values[row["job"]["arm"]][row["job"]["seed"]] = float(np.mean(list(row["values"].values())))
    return values


def _real_only(rows: Rows) -> dict[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["job"]["arm"] == "real":
            found[row["job"]["budget"]].append(float(np.mean(list(row["values"].values()))))
    return {budget: float(np.mean(each)) for budget, each in found.items()}


def _comparison(rows: Rows, *, start: float, real: Mapping[int, float]) -> dict[str, Any]:
    values = _values(rows)
    whole = "ceiling" in values and set(BASELINES) <= values.keys()
    low = best_baseline(values) if whole else None
    room = None if low is None else paired(values, "ceiling", low)
    arms = {}
    for name in (each for each in ARMS if each in values):
        own = [row for row in rows if row["job"]["arm"] == name]
        reached = Estimate.of(values[name].values())
        arms[name] = {
            "title": ARMS[name].title,
            "value": [reached.mean, reached.error],
            "seeds": {str(seed): round(value, 6) for seed, value in sorted(values[name].items())},
            "tasks": {task: float(np.mean([row["values"][task] for row in own])) for task in own[0]["values"]},
            "executions": float(np.mean([row["executions"] for row in own])),
            "cpu_s": float(np.mean([row["cpu_s"] for row in own])),
            "favourite": float(np.mean([row["hit"] for row in own])),
            "curve": np.mean([_resampled(row["curve"]) for row in own], axis=0).tolist(),
            "minus_mixture": _pair(values, name, "mixture"),
            "minus_paper": _pair(values, name, "paper"),
            "way": _list(way(values, name, start=start)) if "ceiling" in values else None,
            "gap_closed": None if low is None else _list(gap_closed(values, name, low=low)),
            "real_only_needs": _finite(executions_for(reached.mean, real)) if real else None,
        }
    budgets = sorted(real)
    from_real = whole and WMRL in values
    return {
        "best_baseline": low,
        "from_real": _list(gap_closed(values, WMRL, low="real")) if from_real else None,
        "room_of_real": _list(paired(values, "ceiling", "real")) if from_real else None,
        "real_only_budgets": budgets,
        "room": None if room is None else _list(room),
        "arms": arms,
        "statement": statement(values),
    }


def _finite(value: float) -> float | None:
    """The number, None where it is infinite: JSON has no infinity."""
    return value if np.isfinite(value) else None


def _resampled(curve: list[list[float]]) -> list[list[float]]:
    """A curve at elevenths of its run, so that curves of different lengths average."""
    points = np.array(curve)
    at = np.linspace(0.0, points[-1, 0], 11)
    return [[float(np.interp(x, points[:, 0], points[:, column])) for column in range(points.shape[1])] for x in at]


def _pair(values: Values, arm: str, other: str) -> list[float] | None:
    return _list(paired(values, arm, other)) if other in values and arm != other else None


def _list(estimate: Estimate) -> list[float]:
    return [estimate.mean, estimate.error]


def show(document: dict[str, Any], console: Console) -> None:
    """Print a table for each comparison, and the verdicts."""
    for cell in document["comparisons"]:
        title = (
            f"{cell['setting']} ({SETTINGS[cell['setting']].what}), {cell['trainer']}, {cell['budget']} real executions a task"
        )
        table = Table(title=title, title_justify="left")
        table.add_column("arm")
        for heading in (
            "value",
            "- mixture",
            "- paper",
            "way to ceiling",
            "gap closed",
            "real only needs",
            "on favourite",
            "CPU s",
        ):
            table.add_column(heading, justify="right")
        for arm in cell["arms"].values():
            table.add_row(arm["title"], *_cells(arm, cell["real_only_budgets"]))
        console.print(table)
        if cell["room"] is not None:
            mean, error = cell["room"]
            enough = "" if mean > 4 * error else "; that is too little to tell arms apart"
            console.print(f"from {ARMS[cell['best_baseline']].title} to the ceiling: {mean:.3f} ± {error:.3f}{enough}")
        if cell.get("from_real") is not None:
            (share, error), room = cell["from_real"], Estimate(*cell["room_of_real"])
            console.print(f"from real only to the ceiling it is {room}: WMRL is {share:.0%} ± {error:.0%} of the way there")
        if cell["statement"] is not None:
            console.print(_said(cell["statement"]))
        console.print()
    for bar in document["bars"]:
        console.print(
            f"[{'green' if bar['met'] else 'red'}]{'met   ' if bar['met'] else 'missed'}[/] {bar['bar']}: {bar['found']}"
        )


def _cells(arm: dict[str, Any], budgets: list[int]) -> list[str]:
    def signed(pair: list[float] | None) -> str:
        return "-" if pair is None else f"{pair[0]:+.3f} ± {pair[1]:.3f}"

    def share(pair: list[float] | None) -> str:
        return "-" if pair is None else f"{pair[0]:.0%} ± {pair[1]:.0%}"

    needs = arm["real_only_needs"]
    shown = f"{needs:,.0f}" if needs is not None else f"> {budgets[-1]:,}" if budgets else "-"
    value = f"{arm['value'][0]:.3f} ± {arm['value'][1]:.3f}"
    mixture, paper, part, gap = (arm[name] for name in ("minus_mixture", "minus_paper", "way", "gap_closed"))
    return [
        value,
        signed(mixture),
        signed(paper),
        share(part),
        share(gap),
        shown,
        f"{arm['favourite']:.0%}",
        f"{arm['cpu_s']:.1f}",
    ]


def _said(said: dict[str, Any]) -> str:
    word = "reproduced" if said["reproduced"] else "contradicted" if said["contradicted"] else "not reproduced"
    parts = ", ".join(f"{name} {mean:+.3f} ± {error:.3f}" for name, (mean, error) in said["differences"].items())
    return f"mixture < one correction < both: {word} ({parts})"


def draw(document: dict[str, Any], path: Path) -> None:
    """Final values with standard errors, a panel for each comparison."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = document["comparisons"]
    columns = min(len(cells), 3)
    lines = -(-len(cells) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(lines, columns, sharex=True, squeeze=False)).ravel()
    for panel, cell in zip(axes, cells, strict=False):
        for at, (name, arm) in enumerate(cell["arms"].items()):
            colour = ARMS[name].colour
            panel.plot(list(arm["seeds"].values()), [at] * len(arm["seeds"]), "o", color=colour, alpha=0.25, markersize=3)
            panel.errorbar([arm["value"][0]], [at], xerr=[arm["value"][1]], fmt="s", color=colour, capsize=3, markersize=5)
        panel.axvline(document["start"], color="#999999", linestyle=":")
        panel.set_yticks(range(len(cell["arms"])), [arm["title"] for arm in cell["arms"].values()], fontsize=8)
        panel.invert_yaxis()
        panel.set_title(f"{cell['setting']}, {cell['trainer']}, {cell['budget']} executions", fontsize=9)
        panel.grid(alpha=0.3, axis="x")
    for panel in axes[len(cells) :]:
        panel.set_visible(False)
    figure.supxlabel("exact value of the final policy, mean over held-out tasks (dotted: untrained)", fontsize=9)
    figure.savefig(path, dpi=130)
