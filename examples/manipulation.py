"""From scripted experts to a progress model that judges a robot's frames, and a picture of what it says.

Experts of Meta-World show a few tasks, images and sentences included. A progress model learns from them with no label but
time. It is then shown episodes that it has not seen: an expert's, the same with another task's sentence, and one of random
actions. Last, it stands in for the reward of real episodes; one in four is an anchor that still pays the true reward.

    python examples/manipulation.py --episodes 8 --out runs/manipulation-example
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.progress import track

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.data.demonstrations import Episode, run_episode
from wmrl_gym.world_models import ProgressModel
from wmrl_gym.wrappers import OnlineDebiasing, WorldModelWrapper

TASKS = ("drawer-open", "button-press", "door-open")


@dataclass(frozen=True)
class Config:
    episodes: int = 8  # of an expert, for each task
    steps: int = 600  # gradient steps
    judged: int = 8  # real episodes that the model judges at the end
    seed: int = 0
    out: Path = Path("runs/manipulation-example")


def make(task: str | Sequence[str], **options: Any) -> gym.Env[Any, Any]:
    # Each action holds for two steps of the simulator, and only the second is drawn: that is half of the time.
    return gym.make("wmrl/VLAManipulation-v0", task=task, image_size=64, action_repeat=2, **options)


def expert(env: gym.Env[Any, Any], observation: Any) -> Any:
    return env.unwrapped.expert_action()  # type: ignore[attr-defined]


def at_random(env: gym.Env[Any, Any], observation: Any) -> Any:
    return env.action_space.sample()


def demonstrate(config: Config) -> list[Episode]:
    """Experts show every task; what fails stays in, and says so."""
    env = make(TASKS)
    wanted = [(config.seed + number, TASKS[number % len(TASKS)]) for number in range(config.episodes * len(TASKS))]
    episodes = [
        run_episode(env, expert, seed=seed, options={"task": task}) for seed, task in track(wanted, "experts demonstrate")
    ]
    env.close()
    return episodes


def unseen(config: Config, act: Any, *, seed: int) -> Episode:
    """An episode that the model has not learnt from: another start, and the drawer stands further out."""
    env = make("drawer-open", split="ood", phrasing="plain", max_episode_steps=60)
    env.action_space.seed(seed)
    episode = run_episode(env, act, seed=10_000 + seed)
    env.close()
    return episode


def judge(model: ProgressModel, config: Config) -> tuple[float, float]:
    """Let the model stand in for the reward; returns the mean predicted reward of successes and of failures."""
    env = WorldModelWrapper(make("drawer-open", max_episode_steps=60), model, anchors=0.25, replaces="reward", seed=config.seed)
    debiased = OnlineDebiasing(env)
    said: dict[bool, list[float]] = {True: [], False: []}
    for episode in track(range(config.judged), "judges real episodes"):
        observation, info = debiased.reset(seed=20_000 if episode == 0 else None)
        over, terminated = False, False
        while not over:
            act = expert if episode % 2 == 0 else at_random
            observation, _, terminated, truncated, info = debiased.step(act(env, observation))
            over = terminated or truncated
        said[terminated].append(info["wm_reward"])
    debiased.close()
    return tuple(float(np.mean(values)) if values else float("nan") for values in said.values())  # type: ignore[return-value]


def draw(path: Path, shown: dict[str, tuple[Episode, Any, Any]]) -> None:
    """A strip of frames above the predicted and the true progress, for each episode."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(shown), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(shown), height_ratios=(1, 3))
    for column, (title, (episode, predicted, true)) in enumerate(shown.items()):
        frames = episode.observation["image"][np.linspace(0, len(episode), 6).astype(int)]
        panels[0, column].imshow(np.concatenate(list(frames), axis=1))
        panels[0, column].axis("off")
        panels[0, column].set_title(title, fontsize=9)
        below = panels[1, column]
        below.plot(predicted, color="#2ca02c", label="predicted")
        below.plot(true, color="#444444", linestyle="--", label="true")
        below.set_ylim(-0.03, 1.03)
        below.set_xlabel("step")
        below.grid(alpha=0.3)
    panels[1, 0].set_ylabel("progress")
    panels[1, 0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("episodes", "steps", "judged", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    parser.add_argument("--out", type=Path, default=Config.out)
    config = Config(**vars(parser.parse_args(arguments)))
    console = Console()

    episodes = demonstrate(config)
    won = sum(episode.success for episode in episodes)
    console.print(f"{won} of {len(episodes)} expert episodes succeeded")

    model = ProgressModel(seed=config.seed)
    with console.status(f"learning progress for {config.steps} steps"):
        measures = model.fit(episodes, steps=config.steps)
    console.print({name: round(value, 3) for name, value in measures.items()})
    model.save(config.out / "progress")

    good, bad = unseen(config, expert, seed=1), unseen(config, at_random, seed=2)
    frames, time_passed = good.observation["image"], np.linspace(0, 1, len(good) + 1)
    shown = {
        f'expert, "{good.instruction}"': (good, model.progress(frames, good.instruction), time_passed),
        'the same, "press the button"': (good, model.progress(frames, "press the button"), np.zeros(len(good) + 1)),
        f'random actions, "{bad.instruction}"': (
            bad,
            model.progress(bad.observation["image"], bad.instruction),
            np.zeros(len(bad) + 1),
        ),
    }
    for title, (_, predicted, true) in shown.items():
        console.print(f"{title:<60} ends at {predicted[-1]:.2f}, true {true[-1]:.2f}")
    draw(config.out / "progress.png", shown)
    console.print(f"picture: {config.out / 'progress.png'}")

    success, failure = judge(model, config)
    console.print(f"as a reward: {success:.2f} for real episodes that succeed, {failure:.2f} for those that do not")


if __name__ == "__main__":
    main()
