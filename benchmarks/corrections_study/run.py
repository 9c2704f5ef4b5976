"""Run the study scenario by scenario, keep each result at once, and judge the whole."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.corrections_study.methods import FRACTION, Entry
from benchmarks.corrections_study.speed import measure
from benchmarks.corrections_study.theory import error_floor, fused_variance, gradient_errors
from benchmarks.corrections_study.train import Scenario, train
from benchmarks.corrections_study.world import CONTEXTS, GROUP, HARD, KINDS, MILD, make_worlds

STEPS, EARLY = 120, 39
CHUNK = 24
FIRST_SEED = 2000
"""Seeds of the table; those from 100 to 263 were used to tune and to choose, and those from 1000 to 1047 for a first look."""
NOISES: tuple[tuple[float, bool], ...] = ((0.15, False), (0.05, False), (0.3, False), (0.15, True))


def scenarios(quick: bool) -> list[Scenario]:
    """Kinds of bias x noises; the quick run has one noise."""
    return [Scenario(kind, sigma, hetero) for sigma, hetero in NOISES[: 1 if quick else None] for kind in KINDS]


def _summary(curves: NDArray[np.float64], real_per_step: float) -> dict[str, Any]:
    """What is kept of one method's curves (S, steps)."""
    per_step = real_per_step * CONTEXTS * GROUP
    reached = curves >= 0.9
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf)
    return {
        "final": curves[:, -1].round(5).tolist(),
        "early": curves[:, EARLY].round(5).tolist(),
        "real_to_90": [None if np.isinf(k) else round(float(k * per_step)) for k in first],
        "curve": curves.mean(axis=0).round(4)[::4].tolist(),
    }


def run_scenario(scenario: Scenario, entries: Sequence[Entry], seeds: int) -> dict[str, Any]:
    """All methods on one scenario: name -> summary over ``seeds`` seeds."""
    parts = []
    for start in range(FIRST_SEED, FIRST_SEED + seeds, CHUNK):
        chunk = range(start, min(start + CHUNK, FIRST_SEED + seeds))
        parts.append(train(make_worlds(chunk), scenario, list(entries), steps=STEPS, seed=start))
    curves = np.concatenate(parts, axis=1)
    real = [entry.make(1).real_per_step for entry in entries]
    return {entry.name: _summary(curves[k], real[k]) for k, entry in enumerate(entries)}


def load(path: Path, setup: dict[str, Any]) -> dict[str, Any]:
    """Earlier results of the methods whose learning rates are the same, if all else of the set-up is; else none.

    Every method meets the same random numbers whatever runs beside it, so that rows of new ones can be added.
    """
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        before = kept["setup"]
        if {**before, "rates": None} == {**setup, "rates": None}:
            same = [name for name, rate in setup["rates"].items() if before["rates"].get(name) == rate]
            rows = {label: {name: row[name] for name in same if name in row} for label, row in kept["scenarios"].items()}
            return {**kept, "setup": setup, "scenarios": rows}
    return {"setup": setup, "scenarios": {}}


def save(path: Path, results: dict[str, Any]) -> None:
    """Write in one move, so that an interrupted run leaves the last whole state."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(results) + "\n")
    os.replace(draft, path)


def add(results: dict[str, Any], scenario: Scenario, entries: Sequence[Entry], *, only: Sequence[str] | None = None) -> bool:
    """Run what a scenario lacks, of ``only`` if that is given, and say whether that was anything."""
    done = results["scenarios"]
    # What never looks at the model learns the same in every scenario.
    first: dict[str, Any] = next(iter(done.values()), {})
    same = {e.name: first[e.name] for e in entries if not e.uses_model and e.name in first}
    before = done.get(scenario.label, {})
    known = same | before
    missing = [entry for entry in entries if entry.name not in known and (only is None or entry.name in only)]
    if missing:
        known |= run_scenario(scenario, missing, results["setup"]["seeds"])
    done[scenario.label] = {entry.name: known[entry.name] for entry in entries if entry.name in known}
    return done[scenario.label].keys() != before.keys()


def run(
    path: Path,
    entries: Sequence[Entry],
    *,
    seeds: int,
    quick: bool,
    noises: int = len(NOISES),
    only: Sequence[str] | None = None,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All that is not in ``path`` yet; ``tick`` is told what was finished.

    Args:
        path: of the results; written after each scenario.
        entries: the methods.
        seeds: bandits of each scenario.
        quick: one noise.
        noises: of how many of the noises what is missing is run.
        only: names of methods; of others nothing is run. None runs all.
        tick: see above.
    """
    rates = {entry.name: entry.rate for entry in entries}
    setup = {"seeds": seeds, "first_seed": FIRST_SEED, "steps": STEPS, "fraction": FRACTION, "rates": rates}
    results = load(path, setup)
    for scenario in scenarios(quick)[: noises * len(KINDS)]:
        if add(results, scenario, entries, only=only):
            save(path, results)
        tick(scenario.label)
    few = 4 if quick else 8
    checks: dict[str, Callable[[], Any]] = {
        "error_floor": lambda: error_floor((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), seeds=range(500, 500 + 2 * few)),
        "speed": measure,
        "fused_variance": lambda: fused_variance(seeds=range(500, 500 + few)),
        "gradients": lambda: {
            kind: gradient_errors(tuple(entries), Scenario(kind), seeds=range(500, 500 + few)) for kind in KINDS
        },
    }
    for name, check in checks.items():
        if name not in results:
            results[name] = check()
            save(path, results)
        tick(name)
    results["verdict"] = judge(results)
    save(path, results)
    return results


def difference(results: dict[str, Any], label: str, ours: str, theirs: str, when: str = "final") -> tuple[float, float]:
    """Mean paired difference over seeds, and its standard error."""
    row = results["scenarios"][label]
    d = np.array(row[ours][when]) - np.array(row[theirs][when])
    return float(d.mean()), float(d.std(ddof=1) / np.sqrt(d.size))


def judge(results: dict[str, Any], ours: str = "adaptive") -> dict[str, Any]:
    """The bar, row by row at noise .15: hard rows won by 2 standard errors, mild rows not lost by more than .005.

    A mild row is missed when its loss is beyond .005 by more than one standard error: few seeds must not fail it by chance.
    """
    rows = {}
    for kind in KINDS:
        mean, error = difference(results, Scenario(kind).label, ours, "paper")
        passed = mean > 2.0 * error if kind in HARD else mean > -0.005 - error
        rows[kind] = {"difference": round(mean, 4), "standard_error": round(error, 4), "passed": bool(passed)}
    main = [results["scenarios"][Scenario(kind).label] for kind in KINDS]
    contextual = {name: against_adaptive(results, name) for name in CONTEXTUAL if all(name in row for row in main)}
    floor, fused = results["error_floor"], results["fused_variance"]
    slopes = {name: floor[name]["slope"] for name in ("smooth", "binned")}
    theorems = {
        "floor falls as 1 / n (slope of the last three doublings between -1.5 and -0.5)": all(
            -1.5 < slope < -0.5 for slope in slopes.values()
        ),
        "fused variance is V_E V_WM / (V_E + V_WM), within 3%": abs(fused["ratio"] - 1.0) < 0.03,
        "fused variance is below either": fused["fused"] < min(fused["V_E"], fused["V_WM"]),
    }
    speed = results["speed"]
    costs = {
        "refit with 5,000 pairs below 5 ms": max(speed["smooth: refit ms"], speed["binned: refit ms"]) < 5.0,
        "memory does not grow with pairs": speed["smooth: bytes at 5,000"] == speed["smooth: bytes at 100,000"],
    }
    steps_up = ("mixture", "denoise only", "debias only", "paper")
    means = {name: _mean(results, name) for name in (*steps_up, "recommended", "adaptive")}
    order = [means[name] for name in steps_up]
    return {
        "ours": ours,
        "rows": rows,
        "strict_mild": bool(all(rows[kind]["difference"] >= -0.005 for kind in MILD)),
        "theorems": theorems,
        "costs": costs,
        "contextual": contextual,
        "papers_order_reproduced": bool(all(a < b for a, b in itertools.pairwise(order))),
        "means": {name: round(value, 4) for name, value in means.items()},
        "passed": bool(all((*(row["passed"] for row in rows.values()), *theorems.values(), *costs.values())))
        and (not contextual or any(all(row["passed"] for row in each.values()) for each in contextual.values())),
    }


CONTEXTUAL = ("contextual + residual", "contextual, adaptive")
"""Of these one has to meet the contextual bar."""


def against_adaptive(results: dict[str, Any], ours: str) -> dict[str, Any]:
    """The contextual bar at noise .15: no kind of bias lost by more than a standard error, ``arm`` and ``spike`` won by two."""
    rows = {}
    for kind in KINDS:
        mean, error = difference(results, Scenario(kind).label, ours, "adaptive")
        passed = mean > 2.0 * error if kind in ("arm", "spike") else mean >= -error
        rows[kind] = {"difference": round(mean, 4), "standard_error": round(error, 4), "passed": bool(passed)}
    return rows


def _mean(results: dict[str, Any], name: str) -> float:
    return float(np.mean([results["scenarios"][Scenario(kind).label][name]["final"] for kind in KINDS]))
