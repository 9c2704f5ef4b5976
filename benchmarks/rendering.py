"""How fast the manipulation environments are, against what they stand on: ``python -m benchmarks.rendering``.

Three comparisons, each of two things that take turns within one run, in CPU seconds of this process: a Meta-World step with its
128 x 128 image, ours against the simulator's own; a LIBERO episode's start, ours against its own reset (and how long ours takes);
and steps a second of 64 environments imagined by a model of the state against real ones. Results go to
``benchmarks/results/rendering.json`` and ``rendering.png``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.envs.manipulation.rendering import choose_gl
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

RESULTS = Path(__file__).parent / "results"
SIZE = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="turns that each contestant takes (default: 6)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    choose_gl()
    document: dict[str, Any] = {"machine": machine(), "image_size": SIZE, "comparisons": {}}
    for name, measure in (("Meta-World frames", frames), ("LIBERO starts", starts), ("imagined steps", imagined)):
        document["comparisons"][name] = found = measure(arguments.rounds)
        said = f"{found['ours']:.4g} against {found['theirs']:.4g} {found['unit']}"
        print(f"{name:<18} {found['what']}: {said}, ratio {found['ratio']:.1f}")
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "rendering.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, arguments.results / "rendering.png")
    return 0


def frames(rounds: int) -> dict[str, Any]:
    """Steps with an image, a second: ours against Meta-World's own rendering."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    ours = gym.make("wmrl/VLAManipulation-v0", task="drawer-open", image_size=SIZE).unwrapped
    theirs: Any = ALL_V3_ENVIRONMENTS["drawer-open-v3"](render_mode="rgb_array", camera_name="corner2", width=SIZE, height=SIZE)
    theirs._set_task_called, theirs._freeze_rand_vec = True, False
    theirs.reset()
    ours.reset(seed=0)
    action = np.zeros(4, np.float32)

    def shipped() -> None:
        theirs.step(action)
        theirs.render()

    taken = take_turns({"ours": (lambda: ours.step(action), 60), "theirs": (shipped, 8)}, rounds)
    ours.close()
    theirs.close()
    return _compared("steps with an image", taken, unit="a CPU second")


def starts(rounds: int) -> dict[str, Any]:
    """Seconds of an episode's start in LIBERO: ours, image included, against its own reset and initial state."""
    env: Any = gym.make("wmrl/LIBERO-v0", suite="libero_goal", task=0, image_size=SIZE).unwrapped
    env.reset(seed=0)
    simulator = env.simulator.env
    states = env.simulator.states

    def shipped() -> None:
        simulator.env.hard_reset = True
        simulator.reset()
        simulator.set_init_state(states[0])

    def taken(call: Callable[[], Any], times: int) -> tuple[list[float], list[float]]:
        cpu, wall = [], []
        for _ in range(times):
            began, started = time.process_time(), time.perf_counter()
            call()
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - started)
        return cpu, wall

    (ours, ours_wall), (theirs, theirs_wall) = taken(lambda: env.reset(seed=1), 4 * rounds), taken(shipped, 2)
    env.close()
    mine, its = median(ours), median(theirs)
    found = {"what": "a start after the first", "unit": "CPU seconds", "ours": mine, "theirs": its, "ratio": its / mine}
    return {**found, "ours_wall": median(ours_wall), "theirs_wall": median(theirs_wall)}


def imagined(rounds: int) -> dict[str, Any]:
    """Steps a second: 64 imagined environments against a real one."""
    name = "wmrl/VLAManipulationState-v0"
    real = gym.make(name, task="drawer-open", reward="dense").unwrapped
    real.reset(seed=0)
    envs = WorldModelVectorEnv(
        lambda: gym.make(name, task="drawer-open", reward="dense"),
        EnsembleDynamics(min_transitions=400, max_gradient_steps=200),
        num_envs=64,
        anchors=0.0,
        warmup=400,
        update_every=0,
        max_model_steps=200,
        seed=0,
    )
    envs.reset(seed=0)
    action, actions = np.zeros(4, np.float32), np.zeros((64, 4), np.float32)
    taken = take_turns({"ours": (lambda: envs.step(actions), 40), "theirs": (lambda: real.step(action), 100)}, rounds)
    envs.close()
    real.close()
    taken["ours"] = [seconds / 64 for seconds in taken["ours"]]
    return _compared("steps at batch 64", taken, unit="a CPU second")


def take_turns(contestants: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds a call, by contestant and round; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, (call, times) in contestants.items():
            started = time.process_time()
            for _ in range(times):
                call()
            if number > 0:
                seconds[name].append((time.process_time() - started) / times)
    return seconds


def _compared(what: str, taken: dict[str, list[float]], *, unit: str) -> dict[str, Any]:
    rates = {name: 1.0 / median(each) for name, each in taken.items()}
    return {"what": what, "unit": unit, **rates, "ratio": rates["ours"] / rates["theirs"]}


def draw(document: dict[str, Any], path: Path) -> None:
    """The ratios, with what was wanted of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(document["comparisons"])
    axes.barh(names, [document["comparisons"][name]["ratio"] for name in names], color="#2ca02c")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the simulator's own")
    axes.grid(alpha=0.3, axis="x")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
