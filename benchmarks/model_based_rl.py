"""SAC with branched rollouts in a learnt world model against plain SAC: ``python -m benchmarks.model_based_rl``.

On Pendulum-v1 and InvertedPendulum-v5, five seeds each, plain SAC takes 4,000 real steps, and what it returns at their end is the
mark. SAC in a world model (:class:`~wmrl_gym.world_models.EnsembleDynamics`, rollouts that branch off real transitions, as in
MBPO, arXiv 1906.08253) may take a fifth of them. A third arm, which is run where ``--arms`` names it, is plain SAC that learns as
often from each real step as the second arm does, to see what imagination itself is worth. Real steps are what counts, so that a
busy machine changes nothing but the time it takes.

Each run is a file below ``--out``; a benchmark that was interrupted goes on with the runs that are missing. Results go to
``benchmarks/results/model_based_rl.json`` and ``model_based_rl.png``. The settings were chosen on seeds above 100.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from wmrl_gym.corrections import OneRealSlot
from wmrl_gym.integrations.sb3 import to_vec_env
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

RESULTS = Path(__file__).parent / "results"
ENVIRONMENTS = ("Pendulum-v1", "InvertedPendulum-v5")
PLAIN, IMAGINED, OFTEN = "SAC", "SAC in a world model", "SAC, as many updates"
COLOURS = {PLAIN: "#7f7f7f", IMAGINED: "#2ca02c", OFTEN: "#1f77b4"}


@dataclass(frozen=True, slots=True)
class Settings:
    """One for both environments and all arms.

    Args:
        real_steps: of plain SAC.
        share: the other arms' real steps, as a share of these.
        warmup: real steps with random actions at the beginning of the arms with few.
        gradient_steps: of SAC for each real step, in these arms.
        num_envs: imagined side by side; about one step in so many is real.
        first_horizon: steps of an imagined episode after the warm-up ...
        last_horizon: ... and at the end.
        update_every: real steps between two fits of the model.
        episodes: real episodes in an evaluation, with the policy's mean action.
        evaluations: of the arms with few real steps; plain SAC is evaluated after every 200.
        tolerance: share of plain SAC's gain over an untrained policy that may be missing where it counts as reached.
    """

    real_steps: int = 4_000
    share: float = 0.2
    warmup: int = 200
    gradient_steps: int = 20
    num_envs: int = 16
    first_horizon: int = 20
    last_horizon: int = 40
    update_every: int = 100
    episodes: int = 10
    evaluations: int = 8
    tolerance: float = 0.05

    @property
    def few(self) -> int:
        """Real steps of the arms with few."""
        return round(self.real_steps * self.share)


SAC_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch_size": 128,
    "gamma": 0.98,
    "tau": 0.02,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run returned.

    Args:
        real_steps: executed before each evaluation.
        returns: mean return of each evaluation's episodes.
    """

    real_steps: list[int]
    returns: list[float]


class Evaluations(BaseCallback):
    """Plays real episodes on the side, at given numbers of real steps, and ends training after the last."""

    def __init__(self, env_id: str, at: Sequence[int], episodes: int) -> None:
        super().__init__()
        self.env_id, self.at, self.episodes = env_id, list(at), episodes
        self.curve = Curve([], [])

    @property
    def executed(self) -> int:
        """Real steps so far."""
        envs = getattr(self.training_env, "envs", None)
        return int(envs.last_cost["executions"]) if isinstance(envs, WorldModelVectorEnv) else self.num_timesteps

    def _on_step(self) -> bool:
        executed = self.executed
        if self.at and executed >= self.at[0]:
            self.at = [mark for mark in self.at if mark > executed]
            returns = evaluate(self.model, self.env_id, episodes=self.episodes)  # type: ignore[arg-type]
            self.curve.real_steps.append(executed)
            self.curve.returns.append(float(returns.mean()))
        return bool(self.at)


def evaluate(agent: SAC, env_id: str, *, episodes: int) -> NDArray[np.float64]:
    """Returns of real episodes with the policy's mean action, side by side; their starts are always the same."""
    envs = SyncVectorEnv([lambda: gym.make(env_id)] * episodes, autoreset_mode=AutoresetMode.DISABLED)
    observation, _ = envs.reset(seed=10_000)
    total, alive = np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        action, _ = agent.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = envs.step(action)
        total += np.where(alive, reward, 0.0)
        ended = terminated | truncated
        alive &= ~ended
        if ended.any():  # stepped on, but no longer counted
            observation, _ = envs.reset(options={"reset_mask": ended})
    envs.close()
    return total


def imagined(env_id: str, seed: int, settings: Settings) -> Curve:
    """SAC in a world model that learns from a few real steps."""

    def horizon(transitions: int) -> int:
        done = np.clip((transitions - settings.warmup) / (settings.few - settings.warmup), 0.0, 1.0)
        return round(settings.first_horizon + done * (settings.last_horizon - settings.first_horizon))

    envs = WorldModelVectorEnv(
        env_id,
        EnsembleDynamics(min_transitions=settings.warmup),
        num_envs=settings.num_envs,
        anchors=OneRealSlot(settings.num_envs),
        start_states="buffer",
        max_model_steps=horizon,
        update_every=settings.update_every,
        warmup=settings.warmup,
        autoreset_mode="SameStep",
        seed=seed,
    )
    venv = to_vec_env(envs)
    agent = SAC(
        "MlpPolicy",
        venv,
        seed=seed,
        train_freq=1,
        gradient_steps=settings.gradient_steps,
        learning_starts=20 * settings.num_envs,
        # Short: what an old policy did in an old model is forgotten.
        buffer_size=400 * settings.num_envs,
        **SAC_SETTINGS,
    )
    curve = _learn(agent, env_id, _marks(settings), settings)
    venv.close()
    return curve


def plain(env_id: str, seed: int, settings: Settings) -> Curve:
    """SAC, with one update for each real step."""
    agent = SAC("MlpPolicy", gym.make(env_id), seed=seed, **SAC_SETTINGS)
    return _learn(agent, env_id, range(200, settings.real_steps + 1, 200), settings)


def often(env_id: str, seed: int, settings: Settings) -> Curve:
    """SAC, with few real steps and as many updates for each as in the world model."""
    agent = SAC(
        "MlpPolicy",
        gym.make(env_id),
        seed=seed,
        gradient_steps=settings.gradient_steps,
        learning_starts=settings.warmup,
        **SAC_SETTINGS,
    )
    return _learn(agent, env_id, _marks(settings), settings)


ARMS: dict[str, Callable[[str, int, Settings], Curve]] = {PLAIN: plain, IMAGINED: imagined, OFTEN: often}


def _marks(settings: Settings) -> list[int]:
    first = settings.warmup
    return [round(first + (settings.few - first) * (i + 1) / settings.evaluations) for i in range(settings.evaluations)]


def _learn(agent: SAC, env_id: str, at: Sequence[int], settings: Settings) -> Curve:
    callback = Evaluations(env_id, at, settings.episodes)
    agent.learn(10**9, callback=callback)
    return callback.curve


def untrained(env_id: str, settings: Settings) -> float:
    """Mean return of a policy that has learnt nothing."""
    agents = [SAC("MlpPolicy", gym.make(env_id), seed=seed, **SAC_SETTINGS) for seed in range(5)]
    return float(np.mean([evaluate(agent, env_id, episodes=settings.episodes) for agent in agents]))


def steps_until(curve: Curve, mark: float) -> int | None:
    """Real steps at the first evaluation from which on half of the evaluations reach ``mark``; None where there is none.

    >>> steps_until(Curve([100, 200, 300, 400], [9.0, 1.0, 8.0, 9.0]), 7.0)
    100
    >>> steps_until(Curve([100, 200], [1.0, 2.0]), 7.0) is None
    True
    """
    reached = np.array(curve.returns) >= mark
    for first in np.flatnonzero(reached).tolist():
        if reached[first:].mean() >= 0.5:
            return curve.real_steps[first]
    return None


def summarise(env_id: str, curves: dict[str, list[Curve]], settings: Settings) -> dict[str, Any]:
    """What the arms came to, against what plain SAC returned in the end."""
    finals = {arm: np.array([np.mean(curve.returns[-2:]) for curve in each]) for arm, each in curves.items()}
    nothing = untrained(env_id, settings)
    mark = float(finals[PLAIN].mean() - settings.tolerance * (finals[PLAIN].mean() - nothing))
    summary: dict[str, Any] = {"untrained": nothing, "mark": mark, "arms": {}}
    for arm, each in curves.items():
        until = [steps_until(curve, mark) for curve in each]
        difference = finals[arm] - finals[PLAIN]
        summary["arms"][arm] = {
            "real_steps": max(curve.real_steps[-1] for curve in each),
            "final_return": float(finals[arm].mean()),
            "final_return_error": _error(finals[arm]),
            "difference_to_SAC": float(difference.mean()),
            "difference_error": _error(difference),
            "seeds_that_reach_the_mark": sum(steps is not None for steps in until),
            "median_real_steps_to_the_mark": float(np.median([np.inf if steps is None else steps for steps in until])),
            "finals": finals[arm].tolist(),
            "real_steps_to_the_mark": until,
            "curves": [asdict(curve) for curve in each],
        }
    return summary


def _error(values: NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def table(env_id: str, summary: dict[str, Any], settings: Settings) -> Table:
    """The summary of one environment, for people."""
    mark = f"within {settings.tolerance:.0%} of SAC's gain: {summary['mark']:.0f}"
    shown = Table(title=f"{env_id}, mark {mark}")
    for heading in ("arm", "real steps", "final return", "minus SAC's", "seeds at the mark", "steps to it (median)"):
        shown.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, row in summary["arms"].items():
        median = row["median_real_steps_to_the_mark"]
        shown.add_row(
            arm,
            f"{row['real_steps']:,}",
            f"{row['final_return']:.0f} ± {row['final_return_error']:.0f}",
            f"{row['difference_to_SAC']:+.0f} ± {row['difference_error']:.0f}",
            f"{row['seeds_that_reach_the_mark']} of {len(row['finals'])}",
            f"{median:,.0f}" if np.isfinite(median) else "never",
        )
    return shown


def draw(document: dict[str, Any], path: Path) -> None:
    """The curves, a panel for each environment."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    environments = document["environments"]
    figure = Figure(figsize=(5.2 * len(environments), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (env_id, summary) in zip(
        figure.subplots(1, len(environments), squeeze=False)[0], environments.items(), strict=True
    ):
        for arm, row in summary["arms"].items():
            for number, curve in enumerate(row["curves"]):
                axes.plot(curve["real_steps"], curve["returns"], color=COLOURS[arm], linewidth=0.6, alpha=0.4)
                if number == 0:
                    mean = np.mean([each["returns"] for each in row["curves"]], axis=0)
                    at = np.mean([each["real_steps"] for each in row["curves"]], axis=0)
                    axes.plot(at, mean, color=COLOURS[arm], linewidth=2, label=arm)
        axes.axhline(summary["mark"], color="#d62728", linestyle="--", linewidth=1)
        axes.set_title(env_id)
        axes.set_xlabel("real steps")
    figure.axes[0].set_ylabel("return of real episodes")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def run(env_id: str, arm: str, seed: int, *, settings: Settings, out: Path) -> Curve:
    """One run, or its result where it has been made already."""
    path = out / f"{env_id}-{arm.replace(', ', '-').replace(' ', '_')}-{seed}.json"
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["settings"] != asdict(settings):
            raise SystemExit(f"{path} was made with other settings: choose another --out, or remove it")
        return Curve(**found["curve"])
    curve = ARMS[arm](env_id, seed, settings)
    out.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps({"settings": asdict(settings), "curve": asdict(curve)}), encoding="utf-8")
    fresh.replace(path)
    return curve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=[PLAIN, IMAGINED])
    parser.add_argument("--real-steps", type=int, default=Settings().real_steps, help="of plain SAC (default: 4000)")
    parser.add_argument("--out", type=Path, default=Path("runs/model_based_rl"), help="folder of runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    settings = Settings(real_steps=arguments.real_steps)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    plan = [(env_id, arm, seed) for seed in seeds for env_id in arguments.environments for arm in arguments.arms]
    curves: dict[str, dict[str, list[Curve]]] = {env_id: {arm: [] for arm in arguments.arms} for env_id in arguments.environments}
    console = Console()
    for env_id, arm, seed in track(plan, "runs", console=console):
        curves[env_id][arm].append(run(env_id, arm, seed, settings=settings, out=arguments.out))
    if PLAIN not in arguments.arms:
        console.print("without plain SAC there is nothing to compare with")
        return 0
    summaries = {env_id: summarise(env_id, each, settings) for env_id, each in curves.items()}
    for env_id, summary in summaries.items():
        console.print(table(env_id, summary, settings))
    document = {"settings": asdict(settings), "seeds": list(seeds), "machine": machine(), "environments": summaries}
    arguments.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1).replace("Infinity", "null")
    (arguments.results / "model_based_rl.json").write_text(text + "\n", encoding="utf-8")
    draw(document, arguments.results / "model_based_rl.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
