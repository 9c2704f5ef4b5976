"""Replay buffers for off-policy algorithms, whose rewards follow the calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv
from wmrl_gym.wrappers.cores import Debiasing, Residual
from wmrl_gym.wrappers.diagnostics import layers
from wmrl_gym.wrappers.engine import Engine

_KEPT = ("wm_reward", "wm_reward_std", "real_reward", "context", "depth", "propensity", "pair", "reward_valid")


class Relabelling:
    """What the relabelled buffers add to SB3's.

    A reward is sampled long after it was predicted, when f has learnt from many more anchors. So raw predictions are kept, and a
    sampled reward is what the wrappers would pay *now*: f of the prediction; for an anchor its truth, or with
    :class:`~wmrl_gym.wrappers.ResidualCorrection` ``f + (kappa / p)(r - f)``. Late truths of background anchors are taken over as
    they arrive. Steps whose reward is not known are never sampled. Weights are not used: nothing here multiplies a loss.
    """

    def __init__(self, *args: Any, venv: GymnasiumVecEnv, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "optimize_memory_usage", False):
            raise ValueError("optimize_memory_usage must be False: it leaves out which steps are valid")
        self.venv = venv
        self.rng = np.random.default_rng(seed)
        self.debiasing, self.residual, self.engine = _parts(venv.envs)
        shape = (self.buffer_size, self.n_envs)  # type: ignore[attr-defined]
        kinds: dict[str, Any] = {"context": np.int64, "depth": np.int64, "pair": np.int64, "reward_valid": np.bool_}
        self.kept = {name: np.zeros(shape, kinds.get(name, np.float64)) for name in _KEPT}
        self.kept["pair"][:] = -1
        self._where: dict[int, tuple[int, int]] = {}
        if self.engine is not None:
            self.engine.collect_late()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add one step of every environment, with what its info said."""
        last, pos = self.venv.last, self.pos  # type: ignore[attr-defined]
        if last is None:
            raise RuntimeError("the buffer belongs to another VecEnv than the one that was stepped")
        for number in self.kept["pair"][pos].tolist():
            self._where.pop(number, None)
        for name in _KEPT:
            self.kept[name][pos] = getattr(last, name)
        for slot in np.flatnonzero(last.pair >= 0).tolist():
            self._where[int(last.pair[slot])] = (pos, slot)
        super().add(*args, **kwargs)  # type: ignore[misc]

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """``batch_size`` steps of known reward, with replacement, with the rewards of now.

        Raises:
            RuntimeError: there is not one.
        """
        self.settle()
        filled = self.buffer_size if self.full else self.pos  # type: ignore[attr-defined]
        step, slot = np.nonzero(self.kept["reward_valid"][:filled])
        if not len(step):
            raise RuntimeError("not one step in the buffer has a known reward: real execution or the model is failing")
        chosen = self.rng.integers(len(step), size=batch_size)
        return self._samples(step[chosen], slot[chosen], env)

    def settle(self) -> None:
        """Take over the late truths that have arrived."""
        if self.engine is None or not self._where:
            return
        self.engine.poll()
        truths, lost = self.engine.collect_late()
        for number, truth in truths.items():
            if number in self._where:
                self.kept["real_reward"][self._where.pop(number)] = truth
                if self.residual is not None and number in self.residual:
                    self.residual.late_reward(number, truth)  # what kappa learns from
        for number in lost:
            # An anchor without a truth is a step that was imagined, like any other.
            self._where.pop(number, None)
            if self.residual is not None:
                self.residual.forget(number)

    def rewards_at(self, step: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.float32]:
        """What the wrappers would pay now for the steps at ``(step, slot)``: float32, shape (n,)."""
        reward = self.rewards[step, slot].astype(np.float64)  # type: ignore[attr-defined]
        row = {name: values[step, slot] for name, values in self.kept.items()}
        predicted, known = np.isfinite(row["wm_reward"]), np.isfinite(row["real_reward"])
        f = row["wm_reward"].copy()
        if self.debiasing is not None and predicted.any():
            columns = (row[name][predicted] for name in ("wm_reward", "wm_reward_std", "context", "depth"))
            f[predicted] = self.debiasing.believe(*columns).value
        reward = np.where(predicted, f, reward)
        reward[known] = row["real_reward"][known]
        both = known & predicted
        if self.residual is not None and both.any():
            gain = self.residual.gain(row["propensity"][both])
            reward[both] = f[both] + gain * (row["real_reward"][both] - f[both])
        return reward.astype(np.float32)

    def _samples(self, step: NDArray[np.int64], slot: NDArray[np.int64], env: VecNormalize | None) -> Any:
        raise NotImplementedError

    def _fields(self, step: NDArray[np.int64], slot: NDArray[np.int64], env: VecNormalize | None) -> dict[str, Any]:
        """The parts of SB3's samples, as tensors."""
        buffer: Any = self
        # An episode that was cut short goes on: there learners bootstrap.
        done = buffer.dones[step, slot] * (1 - buffer.timeouts[step, slot])
        reward = buffer._normalize_reward(self.rewards_at(step, slot).reshape(-1, 1), env)
        numbers = {"actions": buffer.actions[step, slot], "dones": done.reshape(-1, 1), "rewards": reward}
        seen = {
            name: buffer._normalize_obs(_at(getattr(buffer, name), step, slot), env)
            for name in ("observations", "next_observations")
        }
        as_tensor = buffer.to_torch
        tensors = {name: _each(as_tensor, value) for name, value in seen.items()}
        return tensors | {name: as_tensor(value) for name, value in numbers.items()}


class RelabelledReplayBuffer(Relabelling, ReplayBuffer):
    """SB3's replay buffer with raw predictions kept, and rewards relabelled by the present f as they are sampled.

    ``SAC("MlpPolicy", venv, **relabelled(venv))``; see :class:`Relabelling`.

    Args:
        venv: the environment that is stepped.
        seed: of what is sampled.

    Raises:
        ValueError: with ``optimize_memory_usage``.
    """

    def _samples(self, step: NDArray[np.int64], slot: NDArray[np.int64], env: VecNormalize | None) -> ReplayBufferSamples:
        return ReplayBufferSamples(**self._fields(step, slot, env))


class RelabelledDictReplayBuffer(Relabelling, DictReplayBuffer):
    """:class:`RelabelledReplayBuffer` for Dict observations."""

    def _samples(self, step: NDArray[np.int64], slot: NDArray[np.int64], env: VecNormalize | None) -> DictReplayBufferSamples:
        return DictReplayBufferSamples(**self._fields(step, slot, env))


def relabelled(venv: GymnasiumVecEnv, *, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments that make an off-policy algorithm relabel what it replays: ``SAC(..., **relabelled(venv))``."""
    buffer = RelabelledDictReplayBuffer if isinstance(venv.observation_space, gym.spaces.Dict) else RelabelledReplayBuffer
    return {"replay_buffer_class": buffer, "replay_buffer_kwargs": {"venv": venv, "seed": seed}}


def _parts(envs: Any) -> tuple[Debiasing | None, Residual | None, Engine | None]:
    """The corrections that a reward goes through, and the engine where its anchors run in the background."""
    found: dict[type, Any] = {}
    for layer in layers(envs):
        for part in (vars(layer).get("core"), vars(layer).get("engine")):
            found[type(part)] = part
    engine = found.get(Engine)
    background = engine is not None and engine.options.anchor_mode == "background"
    return found.get(Debiasing), found.get(Residual), engine if background else None


def _at(array: Any, step: NDArray[np.int64], slot: NDArray[np.int64]) -> Any:
    if isinstance(array, Mapping):
        return {key: value[step, slot] for key, value in array.items()}
    return array[step, slot]


def _each(convert: Any, value: Any) -> Any:
    return {key: convert(part) for key, part in value.items()} if isinstance(value, Mapping) else convert(value)
