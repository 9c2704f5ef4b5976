"""Runs a comparison in a folder, arm by arm; what is there already is not done again."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.torch import load_file, save_file

from wmrl_gym.files import is_begun, write_json
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.study.config import ARMS, MARKER, StudyConfig
from wmrl_gym.study.evaluation import Evaluator, GradedEpisode, RememberedDesigns, mean_and_error
from wmrl_gym.study.machine import machine
from wmrl_gym.study.summary import Point, Row, draw, sentence, table, time_to_reach
from wmrl_gym.study.training import ArmRun, Snapshot, open_sandbox, train


class StudyMismatch(ValueError):
    """The folder holds another comparison."""


class Study:
    """One comparison, for one seed, in a folder.

    Args:
        config: what is compared.
        folder: where everything is written; a comparison that was interrupted there goes on.
        console: where progress and tables are shown.
        memory: file that remembers the designs executed in evaluation; by default one in the folder.

    Raises:
        StudyMismatch: the folder holds a comparison with another configuration, or files that are not a comparison's.
    """

    def __init__(self, config: StudyConfig, folder: Path, *, console: Console, memory: Path | None = None) -> None:
        self.config = config
        self.memory = folder / "executed.jsonl" if memory is None else memory
        self.folder = folder
        self.console = console
        settings = {arm: asdict(config.settings_of(arm)) for arm in config.arms}
        wanted = json.loads(json.dumps(asdict(config) | {"settings": settings}))

        def differing(found: Any) -> list[str]:
            return sorted(key for key in wanted if wanted[key] != found.get(key))

        if not is_begun(folder, MARKER, what="a comparison", differing=differing, error=StudyMismatch):
            write_json(folder / MARKER, wanted)

    def run(self, sandbox: Sandbox | None = None) -> list[Row]:
        """Train and evaluate what is missing, then write ``results.json`` and ``curves.png``.

        Args:
            sandbox: executes; None opens one, and closes it at the end.
        """
        own = open_sandbox(self.config.workers) if sandbox is None else None
        box = sandbox if sandbox is not None else own
        assert box is not None
        try:
            with self._bars() as bars:
                for arm in self.config.arms:
                    if not (self.folder / arm / "run.json").is_file():
                        self._train(arm, box, bars)
                designs = RememberedDesigns(self.memory, sandbox=box, tasks=self.config.names, workers=self.config.workers)
                evaluator = Evaluator(designs, policy_kwargs=self.config.ppo["policy_kwargs"])
                for arm in self.config.arms:
                    if not (self.folder / arm / "grades.json").is_file():
                        self._evaluate(arm, evaluator, bars)
        finally:
            if own is not None:
                own.close()
        rows = self.rows()
        write_json(self.folder / "results.json", {"rows": [asdict(row) for row in rows], "machine": machine()})
        draw(rows, self.folder / "curves.png", title=f"AutoResearchDesign, {self.config.seconds:.0f} s of training for each arm")
        return rows

    def rows(self) -> list[Row]:
        """The results of the arms, all of them done."""
        rows: list[Row] = []
        goal: float | None = None
        for arm in self.config.arms:
            run = _read_json(self.folder / arm / "run.json")
            grades = _read_json(self.folder / arm / "grades.json")
            final = [GradedEpisode(**grade) for grade in grades["final"]]
            reward = mean_and_error(final, "reward")
            curve = [Point(s["seconds"], s["executions"], g) for s, g in zip(run["snapshots"], grades["curve"], strict=True)]
            curve[-1] = Point(curve[-1].seconds, curve[-1].executions, reward[0])
            goal = reward[0] if arm == "real" else goal
            reached = None if goal is None else time_to_reach(tuple(curve), goal)
            percentile = mean_and_error(final, "percentile")
            rows.append(
                Row(arm, reward, percentile, run["executions"], run["steps"], run["seconds"], reached, run["where"], tuple(curve))
            )
        return rows

    def _train(self, arm: str, sandbox: Sandbox, bars: Progress) -> None:
        task = bars.add_task(f"train     {ARMS[arm].title}", total=self.config.seconds, said="")

        def tell(seconds: float, said: dict[str, float]) -> None:
            words = f"{said['steps']:,.0f} steps, {said['executions']:,.0f} executed"
            bars.update(task, completed=min(seconds, self.config.seconds), said=words)

        run = train(arm, self.config, sandbox=sandbox, seed=self.config.seed, progress=tell)
        bars.update(task, completed=self.config.seconds)
        folder = self.folder / arm
        folder.mkdir(exist_ok=True)
        for number, snapshot in enumerate(run.snapshots):
            save_file(snapshot.weights, str(folder / f"policy-{number}.safetensors"))
        # Written last: an arm without it was interrupted, and is trained again.
        write_json(folder / "run.json", _without_weights(run))

    def _evaluate(self, arm: str, evaluator: Evaluator, bars: Progress) -> None:
        folder = self.folder / arm
        count = len(_read_json(folder / "run.json")["snapshots"])
        weights = [load_file(str(folder / f"policy-{number}.safetensors")) for number in range(count)]
        turns = evaluator.designs.rules.max_turns * len(evaluator.designs.contexts)
        total = turns * ((count - 1) * self.config.curve_episodes + self.config.final_episodes)
        task = bars.add_task(f"evaluate  {ARMS[arm].title}", total=total, said="")
        seed = 1_000_003 * (self.config.seed + 1)

        def grade(number: int, episodes: int) -> list[GradedEpisode]:
            return evaluator.grade(
                weights[number], episodes=episodes, seed=seed + number, tick=lambda done: bars.update(task, advance=done)
            )

        curve = [mean_and_error(grade(number, self.config.curve_episodes), "reward")[0] for number in range(count - 1)]
        final = grade(count - 1, self.config.final_episodes)
        curve.append(mean_and_error(final, "reward")[0])
        write_json(folder / "grades.json", {"curve": curve, "final": [asdict(each) for each in final]})

    def _bars(self) -> Progress:
        said = TextColumn("{task.fields[said]}", markup=False)
        columns = (TextColumn("{task.description:<32}"), BarColumn(bar_width=24), TimeElapsedColumn(), said)
        return Progress(*columns, console=self.console)


def show(rows: list[Row], console: Console, folder: Path) -> None:
    """Print the table, what it says, and where the files are."""
    console.print(table(rows))
    if said := sentence(rows):
        console.print(said)
    console.print(f"{folder / 'results.json'}\n{folder / 'curves.png'}", style="dim", highlight=False)


def _without_weights(run: ArmRun) -> dict[str, Any]:
    snapshots = [{"seconds": s.seconds, "executions": s.executions} for s in run.snapshots]
    rest = {name: getattr(run, name) for name in ("seconds", "executions", "steps", "where", "anchors", "stats")}
    return {**rest, "snapshots": snapshots, "finished": time.strftime("%Y-%m-%dT%H:%M:%S")}


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


__all__ = ["MARKER", "Snapshot", "Study", "StudyMismatch", "machine", "show"]
