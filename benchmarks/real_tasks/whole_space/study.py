"""One run: an arm, a seed and a task, trained with PPO at so many real executions, and graded by episodes that it plays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm

from benchmarks.real_tasks.arms import ARMS, environments
from benchmarks.real_tasks.models import bound
from benchmarks.real_tasks.settings import Settings
from benchmarks.real_tasks.whole_space.executed import TURNS, ExecutedOnce, Table
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.integrations import sb3
from wmrl_gym.study.training import unchecked_distributions
from wmrl_gym.world_models import OutcomeModel

BUDGET = 300
"""Real executions of a run on one task."""
FURTHER = 4 * BUDGET
"""Those of real execution alone, to say whether it needs four times as many."""
EPISODES = 48
"""Episodes that grade a policy: the standard deviation of a policy's episodes being some .1, the error of a mean over eight tasks
is .005 a run, and .002 over ten seeds."""
GRADED = 1_000_003
"""Added to the seed of a run for the episodes that grade it."""

Models = Callable[[str], OutcomeModel]
"""A world model that knows nothing of the task with this name, bound to nothing yet."""


@dataclass(frozen=True, slots=True)
class SpaceJob:
    """What is run.

    Args:
        task: its name.
        arm: its name.
        budget: real executions.
        seed: of policy, environments and anchors.
        settings: of the policy and of the anchors; ``steps`` and ``num_envs`` are episodes.
        episodes: that grade the policy.
    """

    task: str
    arm: str
    budget: int
    seed: int
    settings: Settings
    episodes: int = EPISODES

    def as_json(self) -> dict[str, Any]:
        """As a row keeps it."""
        return json.loads(json.dumps(asdict(self)))


def run(job: SpaceJob, table: Table, models: Models) -> dict[str, Any]:
    """Train an arm on a task, and grade it.

    Returns:
        ``value`` and ``error`` (of the final policy, over its episodes), ``executions`` asked for in training, ``new`` (scripts
        that nobody had executed before, in training and grading), and ``cpu_s`` of this process.
    """
    began, known = process_time(), len(table)
    arm, source = ARMS[job.arm], ExecutedOnce(table, at_once=ARMS[job.arm].needs == "executions")
    model = bound(models(job.task), source) if arm.needs in ("model", "both") else None
    envs = environments(
        arm,
        source,
        model=model,
        settings=job.settings,
        budget=job.budget // TURNS,  # an anchor is a whole episode
        warmup=0,
        learns=0,
        seed=job.seed,
    )
    try:
        learner = _learner(envs, job)
        with unchecked_distributions():
            learner.learn(TURNS * (job.budget // TURNS if arm.needs == "executions" else job.settings.steps))
    finally:
        envs.close()
    value = grade(learner, table, episodes=job.episodes, seed=job.seed + GRADED)
    return {
        "value": float(value.mean()),
        "error": float(value.std(ddof=1) / np.sqrt(len(value))),
        "executions": source.asked,
        "new": len(table) - known,
        "cpu_s": process_time() - began,
    }


def _learner(envs: Any, job: SpaceJob) -> PPO:
    """PPO on the package's VecEnv and weighted buffer; a rollout is one episode of each slot, and one minibatch."""
    torch.set_num_threads(1)
    venv = sb3.to_vec_env(envs)
    venv.seed(job.seed)
    return PPO(
        "MlpPolicy",
        venv,
        seed=job.seed,
        device="cpu",
        n_steps=TURNS,
        batch_size=TURNS * venv.num_envs,
        n_epochs=job.settings.epochs,
        learning_rate=job.settings.rate,
        ent_coef=job.settings.entropy,
        gamma=1.0,
        gae_lambda=1.0,
        policy_kwargs={"net_arch": [64], "optimizer_kwargs": {"fused": True}},
        **sb3.weighted(venv, seed=job.seed),
    )


def grade(learner: BaseAlgorithm, table: Table, *, episodes: int, seed: int) -> np.ndarray:
    """Rewards of episodes that a policy plays, its actions sampled, really executed: float64, shape (episodes,)."""
    source = ExecutedOnce(table, at_once=True)
    envs = FactoredVectorEnv(source, num_envs=episodes, autoreset_mode=AutoresetMode.SAME_STEP)
    observation, _ = envs.reset(seed=seed)
    torch.manual_seed(seed)
    try:
        for _ in range(TURNS):
            actions, _ = learner.predict(observation, deterministic=False)
            observation, reward, terminated, truncated, _ = envs.step(actions)
    finally:
        envs.close()
    if not (terminated | truncated).all():
        raise RuntimeError(f"episodes must end after {TURNS} attempts")
    return np.asarray(reward, np.float64)
