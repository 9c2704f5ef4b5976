"""Training arms for equal numbers of policy steps and of real executions, so that the load of the machine does not matter."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from wmrl_gym.envs.autoresearch.design.space import NVEC, SLOTS
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import Progress
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.integrations import sb3
from wmrl_gym.sandbox import Limits
from wmrl_gym.study.config import ARMS, PPO_SETTINGS
from wmrl_gym.study.evaluation import RememberedDesigns
from wmrl_gym.study.training import unchecked_distributions
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

_GROUP = 8
"""Episodes a group, of the arms with the paper's anchors."""


class FewDesigns(RememberedDesigns):
    """A part of the design space, small enough that all of it can be executed: model family, size and strength.

    Everything else is fixed: medians for what is missing, standard scaling, one-hot encoding, all features. With nine families,
    five sizes and five strengths there are at most 225 scripts a task, so that arms and seeds can share what was executed.

    Arguments are those of :class:`~wmrl_gym.study.evaluation.RememberedDesigns`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._chosen = [list(SLOTS).index(name) for name in ("family", "size", "strength")]
        self._fixed = np.array([2, 1, 1, 0, 0, 0, 0, 0, 0], dtype=np.int64)
        self.action_space = MultiDiscrete(NVEC[self._chosen])

    def attempt(self, state: Progress, action: Any) -> DesignAttempt:
        """The designs that the actions, shape (B, 3), stand for."""
        design = np.tile(self._fixed, (len(action), 1))
        design[:, self._chosen] = action
        return super().attempt(state, design)


@dataclass(frozen=True, slots=True)
class EqualConfig:
    """A comparison at equal policy steps and equal real executions.

    Args:
        steps: policy steps of every arm that imagines.
        executions: real executions of every arm, warm-up included.
        warmup: of them, random designs that the world model is first fitted on. The arm without anchors spends all of its
            executions so, and the arm that only executes none.
        learns: whether the world model goes on learning from the anchors; else it stays as the warm-up left it.
        tasks: names of the tasks; None is all that are embedded.
        max_turns: attempts in an episode.
        num_envs: environments imagined at once; ``n_steps`` of each are a rollout.
        real_envs: environments of the arm that only executes.
        workers: executions at once.
        snapshots: policies kept after the untrained one, the final one included.
        cpu_s: CPU seconds that one execution may take; what takes longer is a time-out.
        ppo: settings of PPO, the same in every arm; but the arm that only executes has so many fewer steps, and its learning rate
            is larger by that factor.

    Raises:
        ValueError: more is to be spent on warm-up than in all, or a number is not positive.
    """

    steps: int = 6_400
    executions: int = 700
    warmup: int = 60
    learns: bool = True
    tasks: tuple[str, ...] | None = None
    max_turns: int = 1
    num_envs: int = 64
    real_envs: int = 32
    workers: int = 1
    snapshots: int = 1
    cpu_s: float = 0.4
    ppo: dict[str, Any] = field(default_factory=lambda: PPO_SETTINGS | {"n_steps": 1, "batch_size": 64, "learning_rate": 2e-4})

    def __post_init__(self) -> None:
        for name in ("steps", "executions", "warmup", "max_turns", "num_envs", "real_envs", "workers", "snapshots"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.cpu_s > 0:
            raise ValueError(f"cpu_s must be positive, got {self.cpu_s}")
        if not self.warmup <= self.executions <= self.steps:
            raise ValueError(f"need warmup <= executions <= steps, got {self.warmup}, {self.executions} and {self.steps}")

    @property
    def limits(self) -> Limits:
        """Of one execution."""
        return Limits(wall_s=max(6.0, 6.0 * self.cpu_s), cpu_s=self.cpu_s, memory_mb=2048)

    @property
    def anchors(self) -> float:
        """The share of anchors that spends what warm-up leaves over the policy steps."""
        return (self.executions - self.warmup) / self.steps


@dataclass(slots=True)
class EqualRun:
    """What training an arm left.

    Args:
        policies: parameters of the policies on the way, the untrained one first and the final one last.
        steps: the policy steps after which each was kept.
        executions: real executions, counted whether or not another arm had executed the same script.
        stats: the wrappers' last words.
    """

    policies: list[dict[str, torch.Tensor]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    executions: int = 0
    stats: dict[str, float] = field(default_factory=dict)


class _Keep(BaseCallback):
    """Keeps a policy each time that a further share of the steps is done."""

    def __init__(self, run: EqualRun, *, total: int, snapshots: int) -> None:
        super().__init__()
        self.run, self.every, self.snapshots = run, total / snapshots, snapshots

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.every * len(self.run.policies) and len(self.run.policies) < self.snapshots:
            keep(self.run, self.model)

    def _on_step(self) -> bool:
        return True


def keep(run: EqualRun, model: Any) -> None:
    """Add the present policy to ``run``."""
    run.policies.append({name: value.detach().clone() for name, value in model.policy.state_dict().items()})
    run.steps.append(int(model.num_timesteps))


def environments(arm: str, config: EqualConfig, *, designs: RememberedDesigns, seed: int) -> VectorEnv[Any, Any, Any]:
    """The vector environment that an arm trains on; anchors are blocking, so that a run depends on nothing but its seed.

    Raises:
        ValueError: an unknown arm.
    """
    if arm not in ARMS:
        raise ValueError(f"arm must be one of {sorted(ARMS)}, got {arm!r}")
    mode = AutoresetMode.SAME_STEP
    if arm == "real":
        return FactoredVectorEnv(designs, num_envs=config.real_envs, max_real=config.workers, autoreset_mode=mode)
    model = OutcomeModel(seed=seed, encoder="none")
    shared: dict[str, Any] = {
        "num_envs": config.num_envs,
        "max_real": config.workers,
        "anchors": 0.0 if arm == "model" else config.anchors,
        "warmup": 0,
        "update_every": 16 if config.learns else 0,
        "autoreset_mode": mode,
        "seed": seed,
    }
    if arm in ("model", "mixture"):
        return WorldModelVectorEnv(designs, model, group_size=_GROUP, **shared)
    return corrected(designs, model, preset=arm, **shared)  # type: ignore[arg-type]  # the arms have the presets' names


def train(arm: str, config: EqualConfig, *, designs: RememberedDesigns, seed: int) -> EqualRun:
    """Train one arm.

    Args:
        arm: its name.
        config: the comparison.
        designs: the environment, shared by all arms with what it remembers.
        seed: of policy, environments and model.
    """
    torch.set_num_threads(1)
    before = designs.asked
    envs = environments(arm, config, designs=designs, seed=seed)
    run = EqualRun()
    try:
        if isinstance(envs.unwrapped, WorldModelVectorEnv):
            envs.unwrapped.warm_up(config.executions if arm == "model" else config.warmup)
        venv = sb3.to_vec_env(envs)
        venv.seed(seed)
        total = config.executions if arm == "real" else config.steps
        settings = config.ppo | {"learning_rate": config.ppo["learning_rate"] * config.steps / total}
        with warnings.catch_warnings():
            # Rollouts of the arm that only executes are smaller than a minibatch; the settings stay the same all the same.
            warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
            model = PPO("MlpPolicy", venv, seed=seed, device="cpu", **settings, **sb3.weighted(venv, seed=seed))
        keep(run, model)
        with unchecked_distributions():
            model.learn(total, callback=_Keep(run, total=total, snapshots=config.snapshots))
        keep(run, model)
        run.executions, run.stats = designs.asked - before, diagnostics(envs)
    finally:
        envs.close()
    return run
