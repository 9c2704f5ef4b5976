"""Settings of the arms of ``benchmarks.speedup``: for each arm on one grid, on seeds that no comparison uses.

One setting after the other is varied from the best so far: learning rate, entropy, then what an arm has besides: passes over a
rollout and its size where all is executed; whether the world model learns, and when anchors come, where there are any. Every
run is a whole one, graded by real execution; a run that is there is not done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from wmrl_gym.files import write_json
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.study.config import StudyConfig
from wmrl_gym.study.run import Study
from wmrl_gym.study.settings import FILE, ArmSettings, table

SEEDS = (9000, 9001)
EPISODES = 6
"""Evaluation episodes a task."""
ARMS = ("recommended", "mixture", "real", "model", "paper")
BASE = {"real": ArmSettings(0.003, 0.01, epochs=4, num_envs=8)}
"""Where the search begins; all other arms begin alike, with ``ArmSettings(0.003, 0.01)``."""
EVERYONE: dict[str, tuple[Any, ...]] = {"rate": (0.003, 0.001, 0.01), "entropy": (0.01, 0.05)}
EXECUTING: dict[str, tuple[Any, ...]] = {"epochs": (4, 12), "num_envs": (8, 4)}
ANCHORED: dict[str, tuple[Any, ...]] = {"learns": (24, 0), "early": (0.0, 0.7)}


@dataclass(slots=True)
class Search:
    """Tries settings of one arm, one coordinate after the other.

    Args:
        arm: its name.
        value: of settings; it is asked once for each.
    """

    arm: str
    value: Callable[[ArmSettings], float]
    tried: dict[ArmSettings, float] = field(default_factory=dict)

    def run(self) -> ArmSettings:
        """The best settings found."""
        best = BASE.get(self.arm, ArmSettings(0.003, 0.01))
        for name, choices in self._coordinates():
            options = [replace(best, **{name: choice}) for choice in choices]
            for each in options:
                if each not in self.tried:
                    self.tried[each] = self.value(each)
            best = max(options, key=lambda each: self.tried[each])
        return best

    def _coordinates(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield from EVERYONE.items()
        if self.arm == "real":
            yield from EXECUTING.items()
        elif self.arm != "model":
            yield from ANCHORED.items()


def tune(arms: tuple[str, ...], *, runs: Path, sandbox: Sandbox, seconds: float, console: Console, file: Path = FILE) -> None:
    """Tune some arms, and write what was chosen and what each value was into the table of settings.

    Args:
        arms: their names.
        runs: where runs are kept.
        sandbox: executes.
        seconds: of training.
        console: is told of each value.
        file: the table.
    """
    for arm in arms:

        def value(settings: ArmSettings, arm: str = arm) -> float:
            found = [_run(arm, settings, seed, runs=runs, sandbox=sandbox, seconds=seconds) for seed in SEEDS]
            console.print(f"{arm} {asdict(settings)}: {', '.join(f'{each:.3f}' for each in found)}", highlight=False)
            return sum(found) / len(found)

        search = Search(arm, value)
        best = search.run()
        tried = [{**asdict(each), "value": round(score, 4)} for each, score in search.tried.items()]
        entry = {"settings": asdict(best), "value": round(search.tried[best], 4), "seeds": list(SEEDS), "tried": tried}
        write_json(file, dict(sorted((table() | {arm: entry}).items())))


def _run(arm: str, settings: ArmSettings, seed: int, *, runs: Path, sandbox: Sandbox, seconds: float) -> float:
    name = hashlib.sha256(json.dumps([asdict(settings), seconds], sort_keys=True).encode()).hexdigest()[:12]
    config = StudyConfig(
        arms=(arm,), seconds=seconds, seed=seed, settings={arm: settings}, snapshots=1, curve_episodes=1, final_episodes=EPISODES
    )
    folder = runs / "tuning" / f"{arm}-{name}-{seed}"
    study = Study(config, folder, console=Console(quiet=True), memory=runs / "executed.jsonl")
    return study.run(sandbox)[0].reward[0]
