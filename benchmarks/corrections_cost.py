"""What corrections add to a step of 256 imagined environments: ``python -m benchmarks.corrections_cost``.

Two vector environments with the same model, seeds and actions, one of them inside the wrappers, take turns; CPU time, so that
other work on the machine counts little. Anchors are executed behind, by a table of what the designs are worth instead of a
sandbox, so that their pairs keep arriving and f is refitted all along. Writes ``benchmarks/results/corrections_cost.json`` and
``.png``; exits with 1 when a preset costs 5% of a step or more (the recommended one, which knows what was
done, 10%), or a refit with 5,000 pairs 5 ms or more.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from benchmarks.corrections_study.speed import measure as measure_parts
from wmrl_gym.corrections import ContextualCalibration
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import VALID
from wmrl_gym.factored import Outcome
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import world_model_parts
from wmrl_gym.wrappers.vector import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv

RESULTS = Path(__file__).parent / "results"
LIMITS = {"recommended": 0.1, "smooth": 0.05, "paper": 0.05, "all three": 0.05}
"""Share of a step that presets may cost, a contextual one twice as much as the others; what else is measured is an option."""


class TabledDesigns(AutoResearchDesign):
    """Designs whose worth is a fixed function of their choices: nothing is executed, since only bookkeeping is measured here."""

    def execute(self, attempt: Any) -> Outcome:
        """A number for each design, always the same."""
        n = len(attempt.task)
        worth = 0.5 + 0.5 * ((attempt.design * (7, 3, 5, 11, 13, 2, 17, 19, 23)).sum(axis=1) % 64 + attempt.task % 8) / 72
        zero = np.zeros(n)
        return Outcome(np.full(n, VALID), worth, worth.copy(), np.full(n, "", dtype=object), np.ones(n, bool), zero, zero)


def stacks() -> dict[str, Callable[[Any], Any]]:
    """What is put around the engine."""
    return {
        "OnlineDebiasing": OnlineDebiasing,
        "recommended": lambda envs: ResidualCorrection(OnlineDebiasing(envs, "contextual"), late=True),
        "smooth": lambda envs: ResidualCorrection(OnlineDebiasing(envs), late=True),
        "paper": lambda envs: InverseVarianceDenoising(OnlineDebiasing(envs, "binned"), late=True),
        "all three": lambda envs: InverseVarianceDenoising(ResidualCorrection(OnlineDebiasing(envs), late=True), late=True),
        "gradient weights": lambda envs: InverseVarianceDenoising(OnlineDebiasing(envs), "gradient", late=True),
        "reward shrinkage": lambda envs: InverseVarianceDenoising(OnlineDebiasing(envs), "reward"),
        "guard": lambda envs: OnlineDebiasing(envs, pessimism=1.0),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=25, help="turns that each contestant takes (default: 25)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    whole, inner = measure(arguments.num_envs, rounds=arguments.rounds)
    shares = {name: float(median(np.array(whole[name]) / np.array(inner[name]) - 1.0)) for name in whole}
    parts = measure_parts()
    refits = {kind: parts[f"{kind}: refit ms"] for kind in ("smooth", "binned")}
    document = {
        "num_envs": arguments.num_envs,
        "machine": machine(),
        "engine_ms_a_step": 1e3 * median(each for rounds in inner.values() for each in rounds),
        "added_share_of_a_step": shares,
        "refit_ms_with_5000_pairs": refits,
        "passed": all(shares[name] < limit for name, limit in LIMITS.items()) and max(refits.values()) < 5.0,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "corrections_cost.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(shares, arguments.results / "corrections_cost.png", num_envs=arguments.num_envs)
    print(f"a step of the engine: {document['engine_ms_a_step']:.2f} ms of CPU")
    for name, share in shares.items():
        print(f"{name:<20} {100 * share:+6.1f} % of a step")
    print(f"a refit with 5,000 pairs: {refits['smooth']:.2f} ms (smooth), {refits['binned']:.2f} ms (binned)")
    return 0 if document["passed"] else 1


class Timed(VectorWrapper[Any, Any, Any, Any, Any]):
    """Adds up the CPU seconds of the steps below it."""

    seconds = 0.0

    def step(self, actions: Any) -> Any:
        """A step of the engine."""
        started = thread_time()
        result = self.env.step(actions)
        self.seconds += thread_time() - started
        return result


def measure(num_envs: int, *, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """CPU seconds a step, of the whole and of the engine in it, by stack and round; a round is twelve steps, four episodes."""
    model = OutcomeModel(encoder="none")
    engines = {name: Timed(_engine(num_envs, model)) for name in stacks()}
    made = {name: wrap(engines[name]) for name, wrap in stacks().items()}
    whole: dict[str, list[float]] = {name: [] for name in made}
    inner: dict[str, list[float]] = {name: [] for name in made}
    space = made["paper"].action_space
    space.seed(0)
    try:
        made["paper"].unwrapped.warm_up(200)
        for envs in made.values():
            envs.reset(seed=0)
            _prefill(envs)
        for number in range(rounds + 3):
            actions = [space.sample() for _ in range(12)]
            for name, envs in made.items():
                engines[name].seconds, total = 0.0, 0.0
                for action in actions:
                    envs.unwrapped.engine.wait(60)
                    started = thread_time()
                    envs.step(action)
                    total += thread_time() - started
                if number >= 3:  # the first rounds warm caches up, and fill windows
                    whole[name].append(total / len(actions))
                    inner[name].append(engines[name].seconds / len(actions))
    finally:
        for envs in made.values():
            envs.close()
    return whole, inner


def _prefill(envs: Any, pairs: int = 5_000) -> None:
    """Give f as many pairs as a long run has."""
    rng = np.random.default_rng(0)
    predicted, context = rng.random(pairs), rng.integers(0, 8, pairs)
    parts = world_model_parts(envs)
    if parts is None or parts.debiasing is None:
        return
    calibration, descriptions = parts.debiasing.calibration, parts.engine.descriptions
    if isinstance(calibration, ContextualCalibration) and descriptions is not None:
        rows = descriptions.of_attempts(DesignAttempt(context, rng.integers(0, NVEC, (pairs, len(NVEC)))))
        calibration.push(predicted, predicted**2, context=context, features=np.tile(rows, 2))
    else:
        calibration.push(predicted, predicted**2, context=context)


def _engine(num_envs: int, model: OutcomeModel) -> WorldModelVectorEnv:
    return WorldModelVectorEnv(
        TabledDesigns(),
        model,
        num_envs=num_envs,
        anchors=0.05,
        anchor_mode="background",
        warmup=0,
        update_every=0,
        seed=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def draw(shares: dict[str, float], path: Path, *, num_envs: int) -> None:
    """Bars, and the limit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colours = ["#2ca02c" if name in LIMITS else "#888888" for name in shares]
    axes.barh(list(shares), [100 * share for share in shares.values()], color=colours)
    for limit in sorted(set(LIMITS.values())):
        axes.axvline(100 * limit, color="#d62728", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"CPU time added to a step of {num_envs} imagined environments, %")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
