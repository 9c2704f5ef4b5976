"""Chooses each arm's settings on the tuning seeds: one grid for all, then whether its anchors come early or evenly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.real_tasks.arms import ARMS
from benchmarks.real_tasks.designs import Executed
from benchmarks.real_tasks.models import Models
from benchmarks.real_tasks.run import Job, Rows, run
from benchmarks.real_tasks.settings import EARLY, TUNING_SEEDS, Settings, grid

FINALISTS = 2
"""Of the grid, that are tried with evenly spread anchors too."""


def tune(
    setting: str,
    trainer: str,
    arm: str,
    *,
    budget: int,
    rows: Rows,
    tables: Mapping[str, Executed],
    models: Models,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The settings with the highest mean value over tasks and tuning seeds, and everything that was tried."""

    def value(settings: Settings) -> float:
        jobs = [Job(setting, trainer, arm, budget, seed, settings) for seed in TUNING_SEEDS]
        for job in jobs:
            if job not in rows:
                rows.add(job, run(job, tables, models))
        return float(np.mean([list(rows[job]["values"].values()) for job in jobs]))

    tried = {each: value(each) for each in grid(trainer, executes_only=ARMS[arm].needs == "executions")}
    if ARMS[arm].needs == "both":
        for each in _best(tried, FINALISTS):
            for early in EARLY[1:]:
                tried[replace(each, early=early)] = value(replace(each, early=early))
    chosen = _best(tried, 1)[0]
    shown = f"rate {chosen.rate:g}, entropy {chosen.entropy:g}, epochs {chosen.epochs}, early {chosen.early:g}"
    tell(f"{setting} {trainer} {arm} at {budget}: {tried[chosen]:.4f} with {shown}")
    return {
        "settings": chosen.as_json(),
        "value": round(tried[chosen], 5),
        "tried": [[each.rate, each.entropy, each.epochs, each.early, round(got, 5)] for each, got in tried.items()],
    }


def _best(tried: Mapping[Settings, float], count: int) -> Sequence[Settings]:
    return sorted(tried, key=lambda each: -tried[each])[:count]
