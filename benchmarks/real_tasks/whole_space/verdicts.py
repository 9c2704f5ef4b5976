"""What the rows of the whole space say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.real_tasks.arms import ARMS
from benchmarks.real_tasks.bars import WMRL, Estimate, Values, Verdict, paired
from benchmarks.real_tasks.whole_space.study import BUDGET, FURTHER
from wmrl_gym.study.run import machine

LATER = f"real at {FURTHER:,}"
"""The arm that only executes, with four times the executions."""


def name_of(arm: str, budget: int) -> str:
    """The name of a column: real only stands there twice."""
    return LATER if arm == "real" and budget == FURTHER else arm


def values(rows: Iterable[dict[str, Any]], *, tasks: int) -> Values:
    """By arm and seed the mean over tasks; seeds that lack a task are left out."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        found[name_of(row["job"]["arm"], row["job"]["budget"]), row["job"]["seed"]].append(row["value"])
    out: dict[str, dict[int, float]] = defaultdict(dict)
    for (arm, seed), each in found.items():
        if len(each) == tasks:
            out[arm][seed] = float(np.mean(each))
    return out


def verdicts(found: Values) -> list[Verdict]:
    """The bars; none where an arm has fewer than two whole seeds in common with WMRL's."""
    needed = ("mixture", "paper", "real", LATER)
    if WMRL not in found or any(len(found.get(arm, {}).keys() & found[WMRL].keys()) < 2 for arm in needed):
        return []
    where = f"whole space, ppo, {BUDGET} executions"
    out = []
    for arm in needed[:-1]:
        ahead = paired(found, WMRL, arm)
        out.append(Verdict(f"{where}: above {ARMS[arm].title} by 2 errors", ahead.signed(), ahead.above(2.0)))
    ahead = paired(found, WMRL, LATER)
    bar = f"{where}: real only needs at least {FURTHER:,} for the same value"
    return [*out, Verdict(bar, f"ahead of it by {ahead.signed()}", ahead.mean >= 0.0)]


def summarise(rows: Iterable[dict[str, Any]], *, tasks: list[str]) -> dict[str, Any]:
    """The document: what each arm reached by seed and by task, what it asked for, and the verdicts."""
    own = [row for row in rows if row["job"]["task"] in tasks]
    found = values(own, tasks=len(tasks))
    arms = {}
    for arm in sorted({name_of(row["job"]["arm"], row["job"]["budget"]) for row in own}):
        mine = [row for row in own if name_of(row["job"]["arm"], row["job"]["budget"]) == arm]
        reached = Estimate.of(found[arm].values()) if found.get(arm) else None
        arms[arm] = {
            "value": None if reached is None else [reached.mean, reached.error if len(found[arm]) > 1 else None],
            "seeds": {str(seed): round(value, 5) for seed, value in sorted(found.get(arm, {}).items())},
            "tasks": {
                task: [round(float(np.mean(each)), 5), len(each)]
                for task in tasks
                if (each := [row["value"] for row in mine if row["job"]["task"] == task])
            },
            "runs": len(mine),
            "executions": float(np.mean([row["executions"] for row in mine])),
            "new": float(np.mean([row["new"] for row in mine])),
            "cpu_s": float(np.mean([row["cpu_s"] for row in mine])),
        }
    return {"machine": machine(), "tasks": tasks, "arms": arms, "bars": [each.as_json() for each in verdicts(found)]}


def show(document: dict[str, Any], console: Console) -> None:
    """Print the table and the verdicts."""
    table = Printed(title=f"whole design space, {len(document['tasks'])} held-out tasks", title_justify="left")
    for heading in ("arm", "value over whole seeds", "whole seeds", "runs", "executions", "executed anew a run", "CPU s"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, arm in document["arms"].items():
        value = "-" if arm["value"] is None else str(Estimate(arm["value"][0], arm["value"][1] or float("nan")))
        counts = (f"{arm['executions']:.0f}", f"{arm['new']:.0f}", f"{arm['cpu_s']:.1f}")
        table.add_row(name, value, str(len(arm["seeds"])), str(arm["runs"]), *counts)
    console.print(table)
    if not document["bars"]:
        console.print("no bar can be judged yet: WMRL and an arm beside it have fewer than two whole seeds in common")
    for bar in document["bars"]:
        colour, word = ("green", "met   ") if bar["met"] else ("red", "missed")
        console.print(f"[{colour}]{word}[/] {bar['bar']}: {bar['found']}")
