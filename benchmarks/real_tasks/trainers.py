"""PPO of Stable-Baselines3, and a group method, on tasks side by side; both give exact values on the way.

The policy of a task is a softmax for each slot: a task's only attempt follows on an observation that is always the same, so that
there is nothing else to learn. Tasks share no parameter, and advantages are centred and scaled for each task, as they are where a
task is trained on alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.real_tasks.designs import SIZES
from benchmarks.real_tasks.settings import Settings
from benchmarks.real_tasks.side_by_side import SideBySide
from wmrl_gym.integrations import sb3
from wmrl_gym.integrations.sb3.vec_env import LastStep
from wmrl_gym.study.training import unchecked_distributions

POINTS = 10
"""Points of a learning curve after the first."""
_ENDS = np.cumsum(SIZES)[:-1]
_WIDTH = int(SIZES.sum())

Slots = list[NDArray[np.float64]]
"""Probabilities for each slot: float64, shape (T, choices), of T tasks."""


@dataclass(frozen=True, slots=True)
class Point:
    """A policy on the way.

    Args:
        steps: policy steps a task.
        executions: real executions a task, the mean over tasks.
        value: exact value, the mean over tasks.
        entropy: in nats, the mean over tasks; that of the untrained policy is log 225 = 5.4.
    """

    steps: int
    executions: float
    value: float
    entropy: float


@dataclass(slots=True)
class Curve:
    """What is measured of a policy on the way.

    Args:
        value: of every design of each task, float64, shape (T, 225).
        executions: says how many there have been in all tasks.
        points: of the learning curve.
        final: float64, shape (T, 225). The last policy's probabilities.
    """

    value: NDArray[np.float64]
    executions: Callable[[], int]
    points: list[Point] = field(default_factory=list)
    final: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, steps: int, slots: Slots) -> None:
        """One more point, for a policy that chooses each slot with these probabilities."""
        tasks = len(self.value)
        joint = slots[0]
        for other in slots[1:]:
            joint = (joint[:, :, None] * other[:, None, :]).reshape(tasks, -1)
        entropy = -sum(float((p * np.log(np.maximum(p, 1e-300))).sum()) for p in slots) / tasks
        value = float((joint * self.value).sum()) / tasks
        self.points.append(Point(steps, self.executions() / tasks, value, entropy))
        self.final = joint

    @property
    def values(self) -> list[float]:
        """The last policy's value on each task."""
        return [float(each) for each in (self.final * self.value).sum(axis=1)]


class Trainer(Protocol):
    """Trains a policy on each task for so many steps, and keeps the curve."""

    def __call__(self, envs: SideBySide, settings: Settings, curve: Curve, *, total: int, seed: int) -> None: ...


class _Points(BaseCallback):
    """Adds a point at the start of a rollout where one is due."""

    def __init__(self, curve: Curve, *, total: int) -> None:
        super().__init__()
        self.curve, self.every, self.tasks = curve, total / POINTS, len(curve.value)

    def add(self) -> None:
        with torch.no_grad():
            slots: Any = self.model.policy.get_distribution(torch.eye(self.tasks)).distribution  # type: ignore[operator]
        self.curve.add(self.num_timesteps // self.tasks, [slot.probs.double().numpy() for slot in slots])

    def _on_rollout_start(self) -> None:
        if self.num_timesteps / self.tasks >= self.every * len(self.curve.points):
            self.add()

    def _on_step(self) -> bool:
        return True


class TaskwiseBuffer(sb3.WeightedRolloutBuffer):
    """The package's weighted buffer, with advantages normalised within each task instead of within a minibatch of all.

    Args:
        tasks: how many there are side by side.
    """

    def __init__(self, *args: Any, tasks: int, **kwargs: Any) -> None:
        self.tasks = tasks
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """The package's, then normalised as PPO does it where a minibatch is a task's whole rollout."""
        super().compute_returns_and_advantage(last_values, dones)
        rows = self.advantages.reshape(len(self.advantages), self.tasks, -1)
        known = np.where(self.usable.reshape(rows.shape), rows, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a task without a known reward in this rollout
            mean, std = np.nanmean(known, axis=(0, 2)), np.nanstd(known, axis=(0, 2), ddof=1)
        scaled = (rows - np.nan_to_num(mean)[:, None]) / (np.nan_to_num(std)[:, None] + 1e-8)
        self.advantages = scaled.reshape(self.advantages.shape).astype(np.float32)


def ppo(envs: SideBySide, settings: Settings, curve: Curve, *, total: int, seed: int) -> None:
    """PPO on the package's VecEnv and weighted buffer; a rollout is one episode of each slot, and one minibatch."""
    torch.set_num_threads(1)
    venv, tasks = sb3.to_vec_env(envs), len(envs.parts)
    venv.seed(seed)
    made = sb3.weighted(venv, seed=seed)
    made["rollout_buffer_kwargs"] |= {"tasks": tasks}
    made["rollout_buffer_class"] = TaskwiseBuffer
    model = PPO(
        "MlpPolicy",
        venv,
        seed=seed,
        device="cpu",
        n_steps=1,
        batch_size=venv.num_envs,
        n_epochs=settings.epochs,
        learning_rate=settings.rate,
        ent_coef=settings.entropy,
        gamma=1.0,
        gae_lambda=1.0,
        clip_range=0.2,
        max_grad_norm=float("inf"),
        normalize_advantage=False,
        policy_kwargs={"net_arch": [], "optimizer_kwargs": {"fused": True}},
        **made,
    )
    policy: Any = model.policy
    for head in (policy.action_net, policy.value_net):
        head.bias.requires_grad_(False)  # tasks would share it
    points = _Points(curve, total=total)
    with unchecked_distributions():
        model.learn(total * tasks, callback=points, log_interval=total * tasks)
    points.add()


def group(envs: SideBySide, settings: Settings, curve: Curve, *, total: int, seed: int) -> None:
    """A policy gradient whose baseline is the group's mean: all episodes of a task's rollout start alike and are one group. Adam.

    Rewards are centred, not divided by the group's own spread, which would undo corrections of the reward. Weights of steps count
    as they do in :func:`ppo`: they multiply the advantage. Unknown rewards are left out.
    """
    rng = np.random.default_rng(seed)
    tasks, each = len(envs.parts), envs.each
    theta, adam = np.zeros((tasks, _WIDTH)), _Adam((tasks, _WIDTH), settings.rate)
    envs.reset(seed=seed)
    done, every = 0, total / POINTS
    while done < total:
        slots = _softmax(theta)
        if done >= every * len(curve.points):
            curve.add(done, slots)
        chosen = np.stack([_sample(p, rng.random((tasks, each))) for p in slots], axis=2)
        _, reward, terminated, truncated, infos = envs.step(chosen.reshape(tasks * each, -1))
        last = LastStep(reward, infos, terminated | truncated)
        advantage = _centred(reward.reshape(tasks, each), last.reward_valid.reshape(tasks, each))
        advantage = advantage * last.weight.reshape(tasks, each)
        hot = np.concatenate([np.eye(int(n))[chosen[:, :, at]] for at, n in enumerate(SIZES)], axis=2)
        for _ in range(settings.epochs):
            slots = _softmax(theta)
            push = np.einsum("ti,tij->tj", advantage, hot - np.concatenate(slots, axis=1)[:, None]) / each
            theta = adam.step(theta, push + settings.entropy * _entropy_gradient(slots))
        done += each
    curve.add(done, _softmax(theta))


def _centred(reward: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    count = np.maximum(valid.sum(axis=1, keepdims=True), 1)
    mean = np.where(valid, reward, 0.0).sum(axis=1, keepdims=True) / count
    return np.where(valid, reward - mean, 0.0)


def _softmax(theta: NDArray[np.float64]) -> Slots:
    parts = [np.exp(part - part.max(axis=1, keepdims=True)) for part in np.split(theta, _ENDS, axis=1)]
    return [part / part.sum(axis=1, keepdims=True) for part in parts]


def _sample(p: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    above = uniform[:, :, None] >= np.cumsum(p, axis=1)[:, None, :]
    return np.minimum(above.sum(axis=2), p.shape[1] - 1).astype(np.int64)


def _entropy_gradient(slots: Slots) -> NDArray[np.float64]:
    logs = [np.log(np.maximum(p, 1e-300)) for p in slots]
    return np.concatenate([-p * (log - (p * log).sum(axis=1, keepdims=True)) for p, log in zip(slots, logs, strict=True)], axis=1)


class _Adam:
    """Adam (Kingma and Ba, 2015), uphill."""

    def __init__(self, shape: tuple[int, ...], rate: float) -> None:
        self.rate, self.first, self.second, self.count = rate, np.zeros(shape), np.zeros(shape), 0

    def step(self, at: NDArray[np.float64], gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        mean, square = self.first / (1 - 0.9**self.count), self.second / (1 - 0.999**self.count)
        return at + self.rate * mean / (np.sqrt(square) + 1e-8)


TRAINERS: dict[str, Trainer] = {"ppo": ppo, "group": group}
