"""One run of the study: an arm, a seed and a budget, on all tasks side by side; rows are kept as they come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any, Protocol

import numpy as np

from benchmarks.real_tasks.arms import ARMS, environments
from benchmarks.real_tasks.designs import Executed
from benchmarks.real_tasks.models import Models
from benchmarks.real_tasks.settings import SETTINGS, Settings
from benchmarks.real_tasks.side_by_side import SideBySide
from benchmarks.real_tasks.trainers import TRAINERS, Curve


@dataclass(frozen=True, slots=True)
class Job:
    """What is run.

    Args:
        setting: what the world model knows.
        trainer: "ppo" or "group".
        arm: its name.
        budget: real executions on each task; 0 where an arm has none or executes everything.
        seed: of policies, environments and models.
        settings: of the policy and of the anchors.
    """

    setting: str
    trainer: str
    arm: str
    budget: int
    seed: int
    settings: Settings

    def as_json(self) -> dict[str, Any]:
        """As a row keeps it."""
        return json.loads(json.dumps(asdict(self)))


class Named(Protocol):
    """A job, or whatever else says of itself in JSON what is to be run."""

    def as_json(self) -> dict[str, Any]: ...


class Rows:
    """A file of finished runs, one JSON line each; what is there already is not run again.

    Args:
        path: the file.
        study: names the tables and the world model; rows of another study are left alone. None is the study of the newest row.

    Raises:
        FileNotFoundError: there is no row, and no study was named.
    """

    def __init__(self, path: Path, *, study: str | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        rows = [json.loads(line) for line in lines]
        if study is None and not rows:
            raise FileNotFoundError(f"{path} holds no rows: run the comparison first")
        self.path, self.study = path, rows[-1]["study"] if study is None else study
        self._rows: dict[str, dict[str, Any]] = {_name(row["job"]): row for row in rows if row["study"] == self.study}

    def __contains__(self, job: Named) -> bool:
        """Whether this run is there."""
        return _name(job.as_json()) in self._rows

    def __getitem__(self, job: Named) -> dict[str, Any]:
        """The row of a run.

        Raises:
            KeyError: it is not there.
        """
        return self._rows[_name(job.as_json())]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All rows, in the order in which they came."""
        return iter(self._rows.values())

    def add(self, job: Named, row: Mapping[str, Any]) -> None:
        """Keep what a run brought."""
        whole = {"study": self.study, "job": job.as_json(), **row}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(whole) + "\n")
        self._rows[_name(whole["job"])] = whole


def _name(job: Mapping[str, Any]) -> str:
    return json.dumps(job, sort_keys=True)


def study_of(tables: Mapping[str, Executed], models: Models) -> str:
    """Names what rows depend on besides their job: the tables and what the pretrained model says."""
    digest = hashlib.sha256()
    for task in sorted(tables):
        digest.update(task.encode() + np.round(tables[task].value, 9).tobytes())
        digest.update(np.round(models.predictions(task), 6).tobytes())
    return digest.hexdigest()[:16]


def run(job: Job, tables: Mapping[str, Executed], models: Models) -> dict[str, Any]:
    """Train an arm on all tasks, and say what came of it.

    Args:
        job: what is run.
        tables: what was executed, by task.
        models: gives the world models.

    Returns:
        ``values`` (exact, by task), ``curve`` (rows of steps, executions, value and entropy), ``executions`` (a task),
        ``hit`` (share of the last policy's probability that lies on the world model's favourite design), ``cpu_s``.
    """
    began = process_time()
    arm, setting = ARMS[job.arm], SETTINGS[job.setting]
    warmup = setting.executions(job.budget) if arm.needs == "both" else job.budget if arm.needs == "model" else 0
    parts, sources = [], []
    for task in tables:
        model = models.fresh(task, job.setting, seed=job.seed) if arm.needs in ("model", "both") else None
        source = models.source(task, at_once=arm.needs in ("executions", "everything"))
        made = environments(
            arm,
            source,
            model=model,
            settings=job.settings,
            budget=job.budget,
            warmup=warmup,
            learns=setting.learns,
            seed=job.seed,
        )
        if warmup and not setting.pretrained:
            made.unwrapped.warm_up(warmup)  # type: ignore[attr-defined]
        parts.append(made)
        sources.append(source)
    envs = SideBySide(parts)
    curve = Curve(np.stack([table.value for table in tables.values()]), lambda: sum(each.asked for each in sources))
    total = job.budget if arm.needs == "executions" else job.settings.steps
    try:
        TRAINERS[job.trainer](envs, job.settings, curve, total=total, seed=job.seed)
    finally:
        envs.close()
    return {
        "values": dict(zip(tables, curve.values, strict=True)),
        "curve": [[each.steps, each.executions, each.value, each.entropy] for each in curve.points],
        "executions": curve.points[-1].executions,
        "hit": float(np.mean([p[models.predictions(t).argmax()] for t, p in zip(tables, curve.final, strict=True)])),
        "cpu_s": process_time() - began,
    }
