"""The state variant: robots whose steps are dear, and an ensemble that imagines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import SAC

import wmrl_gym  # noqa: F401 - registers the ids
from benchmarks.robots.runs import Meter, Variant
from benchmarks.robots.trials import expert
from wmrl_gym.batch import concatenate
from wmrl_gym.corrections import OneRealSlot
from wmrl_gym.data import Transitions
from wmrl_gym.data.demonstrations import Episode, run_episode
from wmrl_gym.integrations.sb3 import relabelled, to_vec_env
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers.diagnostics import diagnostics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

TASKS = ("reach", "button-press", "drawer-open")
ARMS = {
    "real": "real steps only",
    "often": "real steps only, as many updates",
    "model": "world model alone",
    "mixture": "plain mixture",
    "recommended": "WMRL, recommended",
}
_REAL = ("real", "often")
_HAND, _PLACES = slice(0, 3), (slice(4, 7), slice(36, 39))
"""Where in the state the hand's position stands, and those of the object and of the target."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared, the same in every arm and task.

    Args:
        demonstrations: episodes of the scripted expert that every arm begins with; their steps are not counted.
        real_steps: real steps that each arm may take.
        warmup: of them, random ones before anything is imagined or learnt.
        num_envs: imagined side by side, of which one is always real.
        horizon: steps of an imagined episode.
        episode_steps: of a real episode.
        action_repeat: steps of the simulator in a step.
        few_updates: of SAC for each real step, with real steps only.
        gradient_steps: of SAC for each real step, in the other arms.
        real_share: of what SAC learns from, how much is real where steps are imagined too.
        remembered: imagined steps of each environment that are kept.
        update_every: real steps between two fits of the model.
        fit_steps: gradient steps of a fit, at most.
        curve_points: policies judged on the way.
        judged_episodes: real episodes that judge a policy.
        least_unit: the least that an entry of the observation is divided by, in its own units (metres mostly).
        sac: arguments of SAC.
    """

    demonstrations: int = 4
    real_steps: int = 400
    warmup: int = 100
    num_envs: int = 16
    horizon: int = 5
    episode_steps: int = 40
    action_repeat: int = 5
    few_updates: int = 1
    gradient_steps: int = 10
    real_share: float = 0.5
    remembered: int = 100
    update_every: int = 100
    fit_steps: int = 400
    curve_points: int = 3
    judged_episodes: int = 20
    least_unit: float = 0.02
    sac: dict[str, Any] = field(
        default_factory=lambda: {
            "learning_rate": 1e-3,
            "batch_size": 128,
            "gamma": 0.95,
            "tau": 0.04,
            "target_update_interval": 4,
            "ent_coef": "auto_0.05",
            "policy_kwargs": {"net_arch": [128, 128], "optimizer_kwargs": {"fused": True}},
        }
    )


QUICK = Setting(
    demonstrations=1,
    real_steps=120,
    warmup=60,
    gradient_steps=1,
    curve_points=1,
    judged_episodes=2,
    update_every=60,
    fit_steps=40,
)


def variant(*, quick: bool) -> Variant:
    """The comparison; ``quick`` shows that it runs."""
    setting = QUICK if quick else Setting()
    unit, seeds = "real steps", 1 if quick else 5
    return Variant("state", ARMS, setting, train, "real_steps", unit, lambda arm: setting.real_steps, seeds, baseline="often")


@dataclass(frozen=True, slots=True)
class Units:
    """What observations and rewards are measured in, so that networks see numbers of about one.

    Places are seen from the hand: what an action brings then depends little on where the target is, of which few are ever seen.

    Args:
        centre: float64, shape (D,).
        width: float64, shape (D,).
        reward: the mean reward of a demonstrated step.
    """

    centre: NDArray[np.float64]
    width: NDArray[np.float64]
    reward: float

    @classmethod
    def of(cls, shown: Sequence[Episode], *, least: float) -> Units:
        """Those that demonstrations suggest."""
        seen = from_hand(np.concatenate([episode.observation for episode in shown]))
        paid = np.concatenate([episode.reward for episode in shown])
        return cls(seen.mean(axis=0), np.maximum(seen.std(axis=0), least), float(paid.mean()))

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """An observation in these units."""
        return ((from_hand(observation) - self.centre) / self.width).astype(np.float32)


def from_hand(observation: NDArray[np.float32]) -> NDArray[np.float64]:
    """States with the object's and the target's place as the hand sees them: float64, shape (..., D)."""
    seen = observation.astype(np.float64)
    for place in _PLACES:
        seen[..., place] -= seen[..., _HAND]
    return seen


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes real environments of a task; picklable."""

    task: str
    setting: Setting
    units: Units | None = None

    def __call__(self) -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = gym.make(
            "wmrl/VLAManipulationState-v0",
            task=self.task,
            reward="dense",
            split="id",
            max_episode_steps=self.setting.episode_steps,
            action_repeat=self.setting.action_repeat,
        )
        units = self.units
        if units is None:
            return env
        space = gym.spaces.Box(-np.inf, np.inf, units.centre.shape, np.float32)
        env = gym.wrappers.TransformObservation(env, units.observation, space)
        return gym.wrappers.TransformReward(env, lambda reward: float(reward) / units.reward)

    def shown(self, *, seed: int) -> list[Episode]:
        """Demonstrations of the scripted expert: episodes that no policy is judged by."""
        env, first = self(), 1_000_003 * (seed + 1) + 500_000
        numbers = range(first, first + self.setting.demonstrations)
        episodes = [run_episode(env, expert, seed=number) for number in numbers]
        env.close()
        return episodes


def imagined(arm: str, make: Maker, prior: Transitions, *, seed: int) -> Any:
    """The vector environment of an arm with a world model, which has learnt from ``prior``."""
    setting = make.setting
    # Alone, the model is fitted once, on all the real steps that the others may take.
    warmup = setting.real_steps if arm == "model" else setting.warmup
    options: dict[str, Any] = {
        "num_envs": setting.num_envs,
        "anchors": 0.0 if arm == "model" else OneRealSlot(setting.num_envs),
        "start_states": "buffer",
        "max_model_steps": setting.horizon,
        "update_every": 0 if arm == "model" else setting.update_every,
        "warmup": warmup,
        "autoreset_mode": "SameStep",
        "seed": seed,
    }
    # So many that it is fitted after the warm-up, and not before: demonstrations do not show what mistakes lead to.
    model = EnsembleDynamics(min_transitions=len(prior) + warmup, max_gradient_steps=setting.fit_steps)
    if arm == "recommended":
        envs: Any = corrected(make, model, preset="recommended", **options)
    else:
        envs = WorldModelVectorEnv(make, model, **options)
    envs.unwrapped.learn_from(prior)
    return envs


class RealSteps(Meter):
    """Stops when the real steps are spent, and judges policies on the way, which costs no steps either."""

    def __init__(self, arm: str, make: Maker, *, seed: int, tell: Any) -> None:
        super().__init__()
        self.arm, self.make, self.setting, self.seed, self.tell = arm, make, make.setting, seed, tell
        self._end = self.setting.real_steps

    @property
    def spent(self) -> int:
        """What decides when training is over: real steps, or for the model alone as many vector steps."""
        if self.arm in _REAL:
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
        return success_rate(self.model, self.make, seed=1_000_003 * (self.seed + 1))  # type: ignore[arg-type]

    def so_far(self) -> dict[str, float]:
        return {"real_steps": self.setting.real_steps if self.arm == "model" else self.spent}


def success_rate(agent: SAC, make: Maker, *, seed: int) -> float:
    """Share of real episodes in which the policy's best actions succeed."""
    env, won = make(), 0
    for episode in range(make.setting.judged_episodes):
        observation, _ = env.reset(seed=seed + episode)
        over = success = False
        while not (over or success):
            action, _ = agent.predict(observation, deterministic=True)
            observation, _, terminated, truncated, info = env.step(action)
            over, success = terminated or truncated, bool(info["is_success"])
        won += success
    env.close()
    return won / make.setting.judged_episodes


def remember(agent: SAC, prior: Transitions) -> None:
    """Put recorded steps into SAC's replay buffer."""
    for row in range(len(prior)):
        agent.replay_buffer.add(  # type: ignore[union-attr]
            prior.observation[[row]],
            prior.next_observation[[row]],
            prior.action[[row]],
            prior.reward[[row]],
            (prior.terminated | prior.truncated)[[row]],
            [{"TimeLimit.truncated": bool(prior.truncated[row])}],
        )


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
    units = Units.of(Maker(task, setting).shown(seed=seed), least=setting.least_unit)
    make = Maker(task, setting, units)
    prior = concatenate([episode.transitions() for episode in make.shown(seed=seed)])
    meter = RealSteps(arm, make, seed=seed, tell=tell)
    updates = setting.few_updates if arm == "real" else setting.gradient_steps
    shared: dict[str, Any] = {"seed": seed, "device": "cpu", "gradient_steps": updates, **setting.sac}
    if arm in _REAL:
        env: Any = make()
        agent = SAC("MlpPolicy", env, learning_starts=setting.warmup, **shared)
        remember(agent, prior)
    else:
        env = to_vec_env(imagined(arm, make, prior, seed=seed))
        env.seed(seed)
        size = setting.remembered * setting.num_envs
        mixed = relabelled(env, seed=seed, real_share=setting.real_share)
        agent = SAC("MlpPolicy", env, train_freq=1, learning_starts=0, buffer_size=size, **mixed, **shared)
    agent.learn(10**9, callback=meter)
    meter.judge()
    env.close()
    record = {"arm": arm, "task": task, "seed": seed, "curve": meter.curve, "gradient_steps": int(agent._n_updates)}
    return {**record, "machine": machine()}
