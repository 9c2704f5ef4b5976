"""Runs that are kept: one that has finished is not run again."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from stable_baselines3.common.callbacks import BaseCallback

Train = Callable[..., dict[str, Any]]
"""``train(arm, task, setting, seed=, folder=, tell=)`` trains one arm and returns its record."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One comparison.

    Args:
        name: of it.
        arms: what is compared: for each arm's name what it is called.
        setting: a dataclass, the same for all arms.
        train: trains one arm.
        spent: of a point of a curve, the key of what an arm has spent.
        unit: what that is called.
        total: for an arm's name, how far its training goes, for the progress bar.
        seeds: number of seeds, unless another is asked for.
        baseline: the arm without a world model that the others are held against.
    """

    name: str
    arms: Mapping[str, str]
    setting: Any
    train: Train
    spent: str
    unit: str
    total: Callable[[str], int]
    seeds: int
    baseline: str = "real"


class Meter(BaseCallback):
    """Judges policies on the way; judging costs no time."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[dict[str, float]] = []
        self._began, self._aside = time.perf_counter(), 0.0

    def judge(self) -> None:
        """Judge the present policy by real episodes: one more point of the curve."""
        started = time.perf_counter()
        seconds = started - self._began - self._aside
        success = self.success()
        self.curve.append({**self.so_far(), "seconds": seconds, "success": success})
        self._aside += time.perf_counter() - started

    @abstractmethod
    def success(self) -> float:
        """Share of real episodes in which the present policy succeeds."""

    @abstractmethod
    def so_far(self) -> dict[str, float]:
        """What has been spent."""


def run_all(
    variant: Variant, *, arms: Sequence[str], tasks: Sequence[str], seeds: Sequence[int], runs: Path, console: Console
) -> list[dict[str, Any]]:
    """Train what is missing in the folder ``runs``; returns every record.

    Raises:
        SystemExit: a run that is there was made with other settings.
    """
    records = []
    columns = (TextColumn("{task.description:<52}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        for seed in seeds:
            for task in tasks:
                for arm in arms:
                    found = kept(runs, variant, arm=arm, task=task, seed=seed)
                    if found is None:
                        bar = bars.add_task(f"seed {seed}  {task:<14} {variant.arms[arm]}", total=variant.total(arm))

                        def tell(done: int, bar: Any = bar) -> None:
                            bars.update(bar, completed=done)

                        shared = runs / f"seed-{seed}"
                        # A copy, since a trainer may write into the arguments that it is given.
                        record = variant.train(arm, task, deepcopy(variant.setting), seed=seed, folder=shared, tell=tell)
                        found = keep(record, runs, variant)
                    records.append(found)
    return records


def kept(runs: Path, variant: Variant, *, arm: str, task: str, seed: int) -> dict[str, Any] | None:
    """The record of a run that has finished; None where it has not.

    Raises:
        SystemExit: it was made with other settings.
    """
    path = _path(runs, arm=arm, task=task, seed=seed)
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found["setting"] != plain(variant.setting):
        raise SystemExit(f"{path} was run with other settings: choose another folder with --runs")
    return found


def keep(record: Mapping[str, Any], runs: Path, variant: Variant) -> dict[str, Any]:
    """Write a finished run's record, whole or not at all; returns it with its settings."""
    found = {"setting": plain(variant.setting), **record}
    path = _path(runs, arm=record["arm"], task=record["task"], seed=record["seed"])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(path)
    return found


def _path(runs: Path, *, arm: str, task: str, seed: int) -> Path:
    return runs / f"{task}-{arm}-{seed}.json"


def plain(setting: Any) -> Any:
    """A dataclass of settings as JSON has it."""
    return json.loads(json.dumps(asdict(setting)))
