"""What a world model around one environment adds to its step: ``python -m benchmarks.step_overhead``.

CPU time of a whole step over CartPole, with a world model that does nothing, in multiples of a step of bare
``gym.make("CartPole-v1")`` in the same run: the contestants take turns, and the median over rounds counts, so that other work on
the machine counts little. Writes ``benchmarks/results/step_overhead.json`` and ``.png``; exits with 1 above a limit.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np

from wmrl_gym.study.run import machine
from wmrl_gym.world_models import Prediction, WorldModel
from wmrl_gym.wrappers import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection, WorldModelWrapper

RESULTS = Path(__file__).parent / "results"
LIMITS = {"WorldModelWrapper": 4.0, "with three corrections": 9.0}
"""The most that a step may cost, in bare steps."""


class Nothing(WorldModel):
    """Predicts that nothing moves and that every step pays 1, by the same arrays each time."""

    _yes, _no, _one, _unknown = np.ones(1, bool), np.zeros(1, bool), np.ones(1), np.full(1, np.nan)

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        """The state is the observation."""
        return observation

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        """The same again, for a batch of one."""
        return state, Prediction(state, self._one, self._unknown, self._no, self._no, self._yes, self._yes)


def contestants() -> dict[str, gym.Env[Any, Any]]:
    """The bare environment, and what is compared with it."""
    return {
        "bare": gym.make("CartPole-v1"),
        "WorldModelWrapper": WorldModelWrapper(gym.make("CartPole-v1"), Nothing(), seed=0),
        "with three corrections": InverseVarianceDenoising(
            ResidualCorrection(OnlineDebiasing(WorldModelWrapper(gym.make("CartPole-v1"), Nothing(), seed=0)))
        ),
    }


def measure(rounds: int, steps: int) -> dict[str, list[float]]:
    """CPU seconds a step, by contestant and round."""
    envs = contestants()
    seconds: dict[str, list[float]] = {name: [] for name in envs}
    for env in envs.values():
        env.reset(seed=0)
    for number in range(rounds + 2):
        for name, env in envs.items():
            began = process_time()
            for step in range(steps):
                _, _, terminated, truncated, _ = env.step(step % 2)
                if terminated or truncated:
                    env.reset()
            if number >= 2:  # the first rounds warm caches up
                seconds[name].append((process_time() - began) / steps)
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="turns that each contestant takes (default: 60)")
    parser.add_argument("--steps", type=int, default=500, help="steps of a turn (default: 500)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds = measure(arguments.rounds, arguments.steps)
    bare = np.array(seconds["bare"])
    multiples = {name: float(median(np.array(seconds[name]) / bare)) for name in LIMITS}
    document = {
        "machine": machine(),
        "bare_us_a_step": 1e6 * median(seconds["bare"]),
        "multiples_of_a_bare_step": multiples,
        "limits": LIMITS,
        "passed": all(multiples[name] <= limit for name, limit in LIMITS.items()),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "step_overhead.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(multiples, arguments.results / "step_overhead.png")
    print(f"a bare step: {document['bare_us_a_step']:.1f} us of CPU")
    for name, multiple in multiples.items():
        print(f"{name:<24} {multiple:5.2f} bare steps (at most {LIMITS[name]:g})")
    return 0 if document["passed"] else 1


def draw(multiples: dict[str, float], path: Path) -> None:
    """Bars, and the limits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.barh(list(multiples), list(multiples.values()), color="#2ca02c")
    for at, name in enumerate(multiples):
        axes.plot([LIMITS[name]] * 2, [at - 0.4, at + 0.4], color="#d62728", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel('CPU time of a step, in steps of bare gym.make("CartPole-v1")')
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
