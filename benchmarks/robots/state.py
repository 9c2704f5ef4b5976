"""The state variant: robots whose steps are dear, and an ensemble that imagines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import SAC

import wmrl_gym  # noqa: F401 - registers the ids
from benchmarks.robots.runs import Meter, Variant
from wmrl_gym.integrations.sb3 import to_vec_env
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.diagnostics import diagnostics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

TASKS = ("reach", "button-press", "drawer-open")
ARMS = {"real": "real steps only", "model": "world model alone", "mixture": "plain mixture", "recommended": "WMRL, recommended"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared, the same in every arm and task.

    Args:
        real_steps: real steps that each arm may take.
        warmup: of them, random ones before anything is imagined or learnt.
        num_envs: imagined side by side.
        horizon: steps of an imagined episode.
        episode_steps: of a real episode.
        action_repeat: steps of the simulator in a step.
        gradient_steps: of SAC, for each real step.
        update_every: real steps between two fits of the model.
        fit_steps: gradient steps of a fit, at most.
        curve_points: policies judged on the way.
        judged_episodes: real episodes that judge a policy.
    """

    real_steps: int = 1_200
    warmup: int = 300
    num_envs: int = 16
    horizon: int = 5
    episode_steps: int = 40
    action_repeat: int = 5
    gradient_steps: int = 4
    update_every: int = 100
    fit_steps: int = 500
    curve_points: int = 4
    judged_episodes: int = 20
    sac: dict[str, Any] = field(
        default_factory=lambda: {
            "learning_rate": 1e-3,
            "batch_size": 128,
            "gamma": 0.97,
            "tau": 0.01,
            "policy_kwargs": {"net_arch": [128, 128]},
        }
    )


QUICK = Setting(real_steps=300, warmup=200, gradient_steps=1, curve_points=1, judged_episodes=2, update_every=60, fit_steps=40)


def variant(*, quick: bool) -> Variant:
    """The comparison; ``quick`` shows that it runs."""
    setting = QUICK if quick else Setting()
    unit, seeds = "real steps", 1 if quick else 5
    return Variant("state", ARMS, setting, train, "real_steps", unit, lambda arm: setting.real_steps, seeds)


def make_env(task: str, setting: Setting) -> gym.Env[Any, Any]:
    """One real environment."""
    return gym.make(
        "wmrl/VLAManipulationState-v0",
        task=task,
        reward="dense",
        split="id",
        max_episode_steps=setting.episode_steps,
        action_repeat=setting.action_repeat,
    )


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes real environments of a task; picklable."""

    task: str
    setting: Setting

    def __call__(self) -> gym.Env[Any, Any]:
        return make_env(self.task, self.setting)


def imagined(arm: str, task: str, setting: Setting, *, seed: int) -> Any:
    """The vector environment of an arm with a world model."""
    # Real episodes are long and imagined ones short: this share of *episodes* makes one real *step* in num_envs.
    share = setting.horizon / (setting.horizon + setting.episode_steps * (setting.num_envs - 1))
    options: dict[str, Any] = {
        "num_envs": setting.num_envs,
        "anchors": 0.0 if arm == "model" else share,
        "start_states": "buffer",
        "max_model_steps": setting.horizon,
        "update_every": 0 if arm == "model" else setting.update_every,
        "warmup": setting.real_steps if arm == "model" else setting.warmup,
        "autoreset_mode": "SameStep",
        "seed": seed,
    }
    model = EnsembleDynamics(min_transitions=setting.warmup, max_gradient_steps=setting.fit_steps)
    if arm == "recommended":
        return corrected(Maker(task, setting), model, preset="recommended", **options)
    return WorldModelVectorEnv(Maker(task, setting), model, **options)


class RealSteps(Meter):
    """Stops when the real steps are spent, and judges policies on the way, which costs no steps either."""

    def __init__(self, arm: str, task: str, setting: Setting, *, seed: int, tell: Any) -> None:
        super().__init__()
        self.arm, self.task, self.setting, self.seed, self.tell = arm, task, setting, seed, tell
        self._end = setting.real_steps

    @property
    def spent(self) -> int:
        """What decides when training is over: real steps, or for the model alone as many vector steps."""
        if self.arm == "real":
            return self.num_timesteps
        if self.arm == "model":
            return self.num_timesteps // self.setting.num_envs + self.setting.warmup
        return int(diagnostics(self.training_env.envs)["cost/executions"])  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        self.tell(min(self.spent, self._end))
        wanted = self.setting.warmup + (self._end - self.setting.warmup) * (len(self.curve) + 1) / self.setting.curve_points
        if self.spent >= wanted and len(self.curve) < self.setting.curve_points - 1:
            self.judge()
        return self.spent < self._end

    def success(self) -> float:
        return success_rate(self.model, self.task, self.setting, seed=1_000_003 * (self.seed + 1))  # type: ignore[arg-type]

    def so_far(self) -> dict[str, float]:
        return {"real_steps": self.setting.real_steps if self.arm == "model" else self.spent}


def success_rate(agent: SAC, task: str, setting: Setting, *, seed: int) -> float:
    """Share of real episodes in which the policy's best actions succeed."""
    env, won = make_env(task, setting), 0
    for episode in range(setting.judged_episodes):
        observation, _ = env.reset(seed=seed + episode)
        over = success = False
        while not (over or success):
            action, _ = agent.predict(observation, deterministic=True)
            observation, _, terminated, truncated, info = env.step(action)
            over, success = terminated or truncated, bool(info["is_success"])
        won += success
    env.close()
    return won / setting.judged_episodes


def train(arm: str, task: str, setting: Setting, *, seed: int, folder: Path, tell: Any) -> dict[str, Any]:
    """Train one arm; returns its record.

    Args:
        arm: its name.
        task: its name.
        setting: what is compared.
        seed: of the run.
        folder: where runs of a seed may keep what they share; nothing here.
        tell: is told how many real steps were made.
    """
    torch.set_num_threads(1)
    meter = RealSteps(arm, task, setting, seed=seed, tell=tell)
    shared: dict[str, Any] = {"seed": seed, "device": "cpu", "gradient_steps": setting.gradient_steps, **setting.sac}
    if arm == "real":
        env: Any = make_env(task, setting)
        agent = SAC("MlpPolicy", env, learning_starts=setting.warmup, **shared)
    else:
        env = to_vec_env(imagined(arm, task, setting, seed=seed))
        env.seed(seed)
        starts, size = 20 * setting.num_envs, 2_000 * setting.num_envs
        agent = SAC("MlpPolicy", env, train_freq=1, learning_starts=starts, buffer_size=size, **shared)
    agent.learn(10**9, callback=meter)
    meter.judge()
    env.close()
    record = {"arm": arm, "task": task, "seed": seed, "curve": meter.curve, "gradient_steps": int(agent._n_updates)}
    return {**record, "machine": machine()}
