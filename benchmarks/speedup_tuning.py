"""Settings of the arms of ``benchmarks.speedup``: for each arm on one grid, on seeds that no comparison uses.

One setting after the other is varied from the best so far: learning rate (up or down as long as that is better), entropy, then
what an arm has besides: passes over a rollout and its size where all is executed; whether the world model learns, and when
anchors come, where there are any. Every run is a whole one, graded by real execution; a run that is there is not done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
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
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
START = ArmSettings(0.003, 0.01)
"""Where the search begins in every arm; the one that only executes makes few and small rollouts."""
EXECUTES = replace(START, rate=0.01, epochs=12, num_envs=4)
ENTROPIES = (0.01, 0.05)
EXECUTING: dict[str, tuple[Any, ...]] = {"epochs": (12, 4), "num_envs": (4, 8)}
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
        best = self._climbed(EXECUTES if self.arm == "real" else START)
        own = EXECUTING if self.arm == "real" else {} if self.arm == "model" else ANCHORED
        for name, choices in {"entropy": ENTROPIES, **own}.items():
            best = max((replace(best, **{name: choice}) for choice in choices), key=self._value)
        return best

    def _climbed(self, start: ArmSettings) -> ArmSettings:
        """The best learning rate of :data:`RATES`, as far as each step from ``start`` is one up."""
        at = RATES.index(start.rate)
        while True:
            near = [replace(start, rate=RATES[each]) for each in (at, at - 1, at + 1) if 0 <= each < len(RATES)]
            best = max(near, key=self._value)
            if best == near[0]:
                return best
            at = RATES.index(best.rate)

    def _value(self, settings: ArmSettings) -> float:
        if settings not in self.tried:
            self.tried[settings] = self.value(settings)
        return self.tried[settings]


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
