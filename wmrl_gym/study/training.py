"""Training one arm for a fixed wall-clock time."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.policies import BasePolicy
from torch.distributions import Distribution

from wmrl_gym.corrections import EarlySchedule
from wmrl_gym.envs.autoresearch import TRAIN_TASKS
from wmrl_gym.integrations import sb3
from wmrl_gym.sandbox import ExecutionResult, Limits, Sandbox, make_sandbox
from wmrl_gym.study.config import StudyConfig
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.presets import PRESETS, preset_of

Progress = Callable[[float, dict[str, float]], None]
"""Called after every rollout with the seconds elapsed and a line that says how it goes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A policy on the way.

    Args:
        seconds: of training before it.
        executions: real executions before it.
        weights: the policy's parameters.
    """

    seconds: float
    executions: int
    weights: dict[str, torch.Tensor]


@dataclass(slots=True)
class ArmRun:
    """What training an arm left.

    Args:
        snapshots: policies, the untrained first and the final one last.
        seconds: of training.
        executions: real executions.
        steps: environment steps, imagined and real.
        where: seconds by what they were spent on.
        anchors: episode numbers among the first hundred that the schedule makes anchors; it depends on the seed alone.
        stats: the wrappers' last words.
    """

    snapshots: list[Snapshot] = field(default_factory=list)
    seconds: float = 0.0
    executions: int = 0
    steps: int = 0
    where: dict[str, float] = field(default_factory=dict)
    anchors: list[int] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)


class _Clock(BaseCallback):
    """Stops training when its time is over, keeps snapshots, and reports."""

    def __init__(self, run: ArmRun, config: StudyConfig, *, began: float, count: Callable[[], int], progress: Progress) -> None:
        super().__init__()
        self.run, self.config, self.began, self.count, self.progress = run, config, began, count, progress
        self.rollout_s = 0.0
        self._rollout_began: float | None = None
        self._next_keep = 0.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def keep(self, policy: BasePolicy) -> None:
        weights = {name: value.detach().clone() for name, value in policy.state_dict().items()}
        seconds = self.elapsed if self.run.snapshots else 0.0  # the first is the untrained policy
        self.run.snapshots.append(Snapshot(seconds, self.count(), weights))
        every = self.config.seconds / self.config.snapshots
        self._next_keep = (self.elapsed // every + 1) * every

    def end_rollout(self) -> None:
        if self._rollout_began is not None:
            self.rollout_s += time.perf_counter() - self._rollout_began
        self._rollout_began = None

    def _on_rollout_start(self) -> None:
        self._rollout_began = time.perf_counter()
        if self.elapsed >= self._next_keep:
            self.keep(self.model.policy)

    def _on_rollout_end(self) -> None:
        self.end_rollout()

    def _on_step(self) -> bool:
        self.progress(self.elapsed, {"executions": self.count(), "steps": self.num_timesteps})
        return self.elapsed < self.config.seconds


def environments(arm: str, config: StudyConfig, *, sandbox: Sandbox, seed: int) -> VectorEnv[Any, Any, Any]:
    """The vector environment that an arm trains on."""
    chosen = config.settings_of(arm)
    shared: dict[str, Any] = {
        "sandbox": sandbox,
        "num_envs": chosen.num_envs,
        "task": list(config.names),
        "max_real": config.workers,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    if arm == "real":
        return gym.make_vec("wmrl/AutoResearchDesign-v0", **shared)
    model = OutcomeModel(seed=seed, encoder="none")
    if config.pretrained:
        model = OutcomeModel.pretrained(without=[name for name in TRAIN_TASKS if name in config.names], seed=seed)
    imagined: dict[str, Any] = {"world_model": model, "seed": seed, "warmup": 0, "update_every": chosen.learns}
    if config.pretrained:  # it is large: fitting it anew takes a second or two, which nobody waits for
        imagined["update_mode"] = "background"
    if arm == "model":
        return gym.make_vec("wmrl/AutoResearchDesign-v0", **shared, **imagined, anchors=0.0)
    imagined |= {"anchors": anchor_schedule(arm, config), "anchor_mode": "background", "max_in_flight": chosen.max_in_flight}
    if arm == "mixture":
        return gym.make_vec("wmrl/AutoResearchDesign-v0", **shared, **imagined)
    return gym.make_vec("wmrl/AutoResearchDesign-v0", **shared, **imagined, preset=arm, late=True, max_gain=config.max_gain)


def anchor_schedule(arm: str, config: StudyConfig) -> float | EarlySchedule:
    """When an arm's anchors come: by its settings, or from scratch evenly; groups where the arm's preset has them."""
    if not config.pretrained:
        return config.anchors
    chosen = config.settings_of(arm)
    group_size = preset_of(arm).group_size if arm in PRESETS else 1
    episodes = chosen.num_envs * chosen.rollouts // group_size * group_size
    return EarlySchedule(chosen.anchors, episodes=episodes, share=chosen.early, group_size=group_size)


def train(
    arm: str, config: StudyConfig, *, sandbox: Sandbox, seed: int, progress: Progress = lambda seconds, said: None
) -> ArmRun:
    """Train one arm for ``config.seconds``, everything that it executes included.

    Args:
        arm: its name.
        config: the comparison.
        sandbox: executes; its workers are started already, so that no arm pays for that.
        seed: of policy, environments and model.
        progress: called with how it goes.
    """
    torch.set_num_threads(1)
    meter = MeteredSandbox(sandbox, workers=config.workers)
    envs = environments(arm, config, sandbox=meter, seed=seed)
    run = ArmRun()
    try:
        venv = sb3.to_vec_env(envs)
        venv.seed(seed)
        with warnings.catch_warnings():
            # Rollouts of the arm that only executes are smaller than a minibatch; the settings stay the same all the same.
            warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
            model = PPO("MlpPolicy", venv, seed=seed, device="cpu", **config.ppo_of(arm), **sb3.weighted(venv, seed=seed))
        engine = getattr(envs.unwrapped, "engine", None)
        background = engine is not None and engine.options.anchor_mode == "background"
        run.anchors = anchor_choices(engine)
        clock = _Clock(run, config, began=time.perf_counter(), count=lambda: meter.runs, progress=progress)
        clock.keep(model.policy)
        if engine is not None and not config.pretrained:
            wanted = 10**9 if arm == "model" else config.warmup
            engine.warm_up(wanted, seconds=config.seconds / 5)
        warm_s = clock.elapsed
        late = [sb3.LateAnchors(venv, timeout_s=None)] if background else []
        with unchecked_distributions():
            model.learn(10**12, callback=CallbackList([*late, clock]))
        clock.end_rollout()
        clock.keep(model.policy)
        run.seconds, run.executions, run.steps = clock.elapsed, meter.runs, model.num_timesteps
        run.stats = diagnostics(envs)
        run.where = _where(run, rollout_s=clock.rollout_s, warm_s=warm_s)
    finally:
        envs.close()
    return run


def anchor_choices(engine: Any) -> list[int]:
    """Which of the first hundred episodes the schedule makes anchors: a function of the seed alone."""
    if engine is None:
        return []
    return [episode for episode in range(100) if engine.episodes.schedule.decide(episode).anchor]


def _where(run: ArmRun, *, rollout_s: float, warm_s: float) -> dict[str, float]:
    """Seconds by what they were spent on: real execution that training waited for, prediction, model fits, and the learner."""
    waited = run.stats.get("cost/wait_s", rollout_s)  # without a world model rollouts are all execution
    predicted, fitted = run.stats.get("cost/predict_s", 0.0), run.stats.get("cost/update_s", 0.0)
    learning = max(run.seconds - rollout_s - warm_s, 0.0)
    other = max(run.seconds - waited - predicted - fitted - learning, 0.0)
    return {"execution": waited, "prediction": predicted, "model fits": fitted, "policy updates": learning, "the rest": other}


class MeteredSandbox:
    """Passes everything on to ``inner``, and counts.

    Args:
        inner: the sandbox that runs the code.
        workers: how many runs it takes at once.
    """

    def __init__(self, inner: Sandbox, *, workers: int) -> None:
        self.inner = inner
        self.workers = workers
        self.runs = 0
        self.wall_s = 0.0
        self.timed_out = 0
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start every worker, so that the first run to be timed does not pay for it."""
        together = threading.Barrier(self.workers)

        def one(_: int) -> None:
            together.wait(timeout=60)
            self.inner.run("import time; time.sleep(0.3)", data_dir=None, limits=Limits(wall_s=30))

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(one, range(self.workers)))

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """Run ``code``, and count it."""
        result = self.inner.run(code, data_dir=data_dir, limits=limits)
        with self._lock:
            self.runs += 1
            self.wall_s += result.wall_s
            self.timed_out += result.exceeded in ("wall", "cpu")
        return result

    def close(self) -> None:
        """Nothing: the inner sandbox is closed by those who made it."""


def open_sandbox(workers: int) -> Sandbox:
    """A local sandbox with its workers started; what grading imports is imported beside that."""
    sandbox = make_sandbox("local", workers=workers)
    grading = threading.Thread(target=import_module, args=("sklearn.metrics",), daemon=True)
    grading.start()
    MeteredSandbox(sandbox, workers=workers).warm()
    grading.join()
    return sandbox


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Policies draw from distributions whose arguments are not checked at each call: it was a network that made them.

    The checks of both its calls a gradient step cost as much as the distributions themselves.
    """
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
