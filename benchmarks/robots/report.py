"""What runs add up to: numbers, a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.robots.runs import Variant, plain
from wmrl_gym.study.run import machine

COLOURS = {
    "real": "#444444",
    "often": "#ff7f0e",
    "model": "#d62728",
    "mixture": "#9467bd",
    "recommended": "#2ca02c",
    "truth": "#1f77b4",
}


def summarise(records: Sequence[Mapping[str, Any]], variant: Variant) -> dict[str, Any]:
    """For each task and arm: final success, what was spent, and what was spent until it did as the baseline did in the end."""
    seeds = sorted({record["seed"] for record in records})
    document: dict[str, Any] = {"machine": machine(), "seeds": len(seeds), "setting": plain(variant.setting), "tasks": {}}
    for task in dict.fromkeys(record["task"] for record in records):
        of_task = [record for record in records if record["task"] == task]
        goals = {record["seed"]: record["curve"][-1]["success"] for record in of_task if record["arm"] == variant.baseline}
        document["tasks"][task] = {}
        for arm in dict.fromkeys(record["arm"] for record in of_task):
            mine = [record for record in of_task if record["arm"] == arm]
            document["tasks"][task][arm] = _of_arm(mine, goals, spent=variant.spent)
    return document


def _of_arm(records: Sequence[Mapping[str, Any]], goals: Mapping[int, float], *, spent: str) -> dict[str, Any]:
    last = [record["curve"][-1] for record in records]
    found = [reached(record["curve"], goals.get(record["seed"])) for record in records]
    points = [point for point in found if point is not None]
    pairs = [tuple(pair) for record in records for pair in record.get("pairs", ())]
    return {
        "success": _mean_error(np.array([point["success"] for point in last])),
        "seconds": float(np.mean([point["seconds"] for point in last])),
        spent: float(np.mean([point[spent] for point in last])),
        "to_real_only": {
            "reached": len(points),
            spent: _median([point[spent] for point in points]),
            "seconds": _median([point["seconds"] for point in points]),
        },
        **({"auc": auc(pairs)} if pairs else {}),
        "curves": [record["curve"] for record in records],
    }


def reached(curve: Sequence[dict[str, float]], goal: float | None) -> dict[str, float] | None:
    """The first judged policy that does as well as real steps alone did in the end; None where none does, or the goal is 0."""
    if not goal:
        return None
    return next((point for point in curve if point["success"] >= goal), None)


def auc(pairs: Sequence[tuple[float, float]]) -> float | None:
    """How often a success is predicted higher than a failure, ties counting half; None without both.

    Args:
        pairs: predicted reward, and truth (1 for success).

    >>> auc([(0.9, 1.0), (0.4, 0.0), (0.4, 1.0)])
    0.75
    """
    won, lost = ([said for said, truth in pairs if (truth > 0.5) == success] for success in (True, False))
    if not won or not lost:
        return None
    ahead = np.subtract.outer(won, lost)
    return float(((ahead > 0) + 0.5 * (ahead == 0)).mean())


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _mean_error(values: NDArray[np.float64]) -> list[float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return [float(values.mean()), error]


def table(summary: Mapping[str, Any], variant: Variant) -> Table:
    """A row for each task and arm; where predicted rewards were checked, with how well they tell success from failure (AUC)."""
    title = f"{variant.name}, seeds: {summary['seeds']}"
    goal = f'what "{variant.arms[variant.baseline]}" reached in the end'
    caption = f"reached: seeds that got to {goal} (medians of {variant.unit} and seconds to it)"
    shown = Table(title=title, caption=caption, title_justify="left")
    for heading in ("task", "arm"):
        shown.add_column(heading, no_wrap=True)
    ranked = any(row.get("auc") is not None for arms in summary["tasks"].values() for row in arms.values())
    headings = ("success", variant.unit, "seconds", "reached", f"{variant.unit} to it", "seconds to it")
    for heading in headings + ("AUC",) * ranked:
        shown.add_column(heading, justify="right")
    for task, arms in summary["tasks"].items():
        for arm, row in arms.items():
            to = row["to_real_only"]
            mean, error = row["success"]
            spent = f"{row[variant.spent]:,.0f}"
            told = f"{mean:.2f}" if isnan(error) else f"{mean:.2f} ± {error:.2f}"
            cells = (told, spent, f"{row['seconds']:.0f}", str(to["reached"]))
            ends = ("-" if to[key] is None else f"{to[key]:,.0f}" for key in (variant.spent, "seconds"))
            auc_cell = ["-" if row.get("auc") is None else f"{row['auc']:.2f}"] if ranked else []
            shown.add_row(task, variant.arms[arm], *cells, *ends, *auc_cell)
    return shown


def write(summaries: Mapping[str, Mapping[str, Any]], variants: Mapping[str, Variant], folder: Path) -> None:
    """Write ``manipulation.json`` and ``manipulation.png``; what is there of a variant that was not run stays.

    The state variant's summary is the document itself, the image variant's stands in it under "images".
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manipulation.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    other = {key: value for key, value in document.items() if key == "images"}
    if "state" in summaries:
        document = {**summaries["state"], **other}
    if "images" in summaries:
        document["images"] = summaries["images"]
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    rows = {"state": document if "tasks" in document else None, "images": document.get("images")}
    draw({name: summary for name, summary in rows.items() if summary is not None}, variants, folder / "manipulation.png")


def draw(summaries: Mapping[str, Mapping[str, Any]], variants: Mapping[str, Variant], path: Path) -> None:
    """Success against what was spent: a row of panels for each variant, a panel for each task; bands are one standard error."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(len(summary["tasks"]) for summary in summaries.values())
    figure = Figure(figsize=(4.2 * columns, 3.6 * len(summaries)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(summaries), columns, sharey=True, squeeze=False)
    for panels, (name, summary) in zip(grid, summaries.items(), strict=True):
        variant = variants[name]
        for axes, (task, arms) in zip(panels, summary["tasks"].items(), strict=False):
            for arm, row in arms.items():
                _curve(axes, row["curves"], arm, label=variant.arms[arm], spent=variant.spent)
            axes.set_title(f"{task} ({variant.name})")
            axes.set_xlabel(variant.unit)
            axes.set_ylim(-0.03, 1.03)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("success on fresh real episodes")
        panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def _curve(axes: Any, curves: Sequence[Sequence[Mapping[str, float]]], arm: str, *, label: str, spent: str) -> None:
    at = np.mean([[point[spent] for point in curve] for curve in curves], axis=0)
    success = np.array([[point["success"] for point in curve] for curve in curves])
    mean, error = success.mean(0), success.std(0, ddof=min(1, len(success) - 1)) / np.sqrt(len(success))
    # The model alone spends nothing on the way.
    style: dict[str, Any] = {"marker": "s", "linestyle": ""} if arm == "model" else {"marker": "o", "markersize": 3}
    axes.plot(at, mean, color=COLOURS[arm], label=label, **style)
    axes.fill_between(at, mean - error, mean + error, color=COLOURS[arm], alpha=0.15, linewidth=0)
