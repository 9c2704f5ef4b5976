"""What the engine adds to a world model's own call, at 256 environments: ``python -m benchmarks.throughput``.

``WorldModelVectorEnv`` steps against bare calls of the same model on the same states and actions, taking turns within one
run; and the whole stack of corrections on top. Single-threaded. Results go to ``benchmarks/results/throughput.json`` and
``throughput.png``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.study.config import STUDY_TASKS
from wmrl_gym.study.run import machine
from wmrl_gym.study.training import open_sandbox
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers.vector import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20, help="turns that each contestant takes (default: 20)")
    parser.add_argument("--executions", type=int, default=160, help="real executions that the model is fitted on (default: 160)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds = measure(arguments.num_envs, rounds=arguments.rounds, executions=arguments.executions)
    raw = median(seconds["bare model call"])
    n = arguments.num_envs
    document: dict[str, Any] = {"num_envs": n, "machine": machine(), "contestants": {}}
    for name, each in seconds.items():
        per_step = median(each)
        document["contestants"][name] = {"steps_per_s": n / per_step, "share_of_bare_call": raw / per_step}
        print(f"{name:<34} {n / per_step:>10,.0f} steps/s   {raw / per_step:6.2f} of the bare call")
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "throughput.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _draw(document, arguments.results / "throughput.png")
    return 0


def measure(num_envs: int, *, rounds: int, executions: int) -> dict[str, list[float]]:
    """Seconds a step, by contestant and round; a round is nine steps, three episodes."""
    sandbox = open_sandbox(2)
    model = OutcomeModel(encoder="none")
    made: dict[str, Any] = {}
    try:
        made["WorldModelVectorEnv"] = _make(num_envs, model, sandbox, executions)
        made["with debiasing"] = OnlineDebiasing(_make(num_envs, model, sandbox, executions))
        made["with all three corrections"] = InverseVarianceDenoising(
            ResidualCorrection(OnlineDebiasing(_make(num_envs, model, sandbox, executions)))
        )
        engine = made["WorldModelVectorEnv"].engine
        for envs in made.values():
            envs.reset(seed=0)
        rng = np.random.default_rng(0)
        space = made["WorldModelVectorEnv"].action_space
        space.seed(0)
        contestants: dict[str, Callable[[Any], Any]] = {
            "bare model call": lambda actions: model.step(engine._state, actions, rng),
            **{name: envs.step for name, envs in made.items()},
        }
        return _take_turns(contestants, [[space.sample() for _ in range(9)] for _ in range(rounds + 1)])
    finally:
        for envs in made.values():
            envs.close()
        sandbox.close()


def _make(num_envs: int, model: OutcomeModel, sandbox: Any, executions: int) -> Any:
    return gym.make_vec(
        "wmrl/AutoResearchDesign-v0",
        task=list(STUDY_TASKS),
        num_envs=num_envs,
        max_real=2,
        world_model=model,
        anchors=0.0,
        warmup=executions,
        update_every=0,
        sandbox=sandbox,
        seed=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def _take_turns(contestants: dict[str, Callable[[Any], Any]], rounds: list[list[Any]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number, actions in enumerate(rounds):
        for name, step in contestants.items():
            started = perf_counter()
            for action in actions:
                step(action)
            if number > 0:  # the first round warms caches up
                seconds[name].append((perf_counter() - started) / len(actions))
    return seconds


def _draw(document: dict[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(document["contestants"])
    shares = [document["contestants"][name]["share_of_bare_call"] for name in names]
    axes.barh(names, shares, color=["#888888"] + ["#2ca02c"] * (len(names) - 1))
    axes.axvline(0.8, color="#d62728", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"throughput at {document['num_envs']} environments, as a share of the bare model call")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
