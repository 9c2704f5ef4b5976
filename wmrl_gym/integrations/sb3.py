"""Stable-Baselines3: vector environments as its ``VecEnv``, rollout buffers that use weights, late anchors joined, logs.

>>> import gymnasium as gym
>>> from stable_baselines3 import PPO
>>> from wmrl_gym.integrations import sb3
>>> venv = sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=4))
>>> model = PPO("MlpPolicy", venv, n_steps=8, batch_size=32, n_epochs=1, **sb3.weighted(venv)).learn(32)
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from wmrl_gym.wrappers.cores import Residual
from wmrl_gym.wrappers.diagnostics import diagnostics, layers
from wmrl_gym.wrappers.engine import Engine

try:
    import torch
    from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize
except ImportError as error:
    raise gym.error.DependencyNotInstalled("stable-baselines3 is not installed, run `pip install 'wmrl-gym[sb3]'`") from error


@dataclass(frozen=True, slots=True)
class LastStep:
    """What the last step said that SB3 has no place for: each array of ``num_envs`` rows.

    Args:
        reward: float64, as the environment returned it.
        weight: float64.
        reward_valid: bool.
        pair: int64, number of a background anchor's pair; -1 for none.
    """

    reward: NDArray[np.float64]
    weight: NDArray[np.float64]
    reward_valid: NDArray[np.bool_]
    pair: NDArray[np.int64]


class GymnasiumVecEnv(VecEnv):
    """A Gymnasium vector environment in SB3's form.

    Ended episodes carry ``terminal_observation``, ``TimeLimit.truncated`` and Monitor's ``episode`` in their info, as well as
    the environment's own keys of that step; infos of other steps are empty, since building hundreds of dicts a step would cost
    more than a prediction does.

    Args:
        envs: a vector environment in any autoreset mode, with Box, Discrete or Dict observations.

    Raises:
        TypeError: an observation space that SB3 cannot take, such as text.
    """

    def __init__(self, envs: VectorEnv[Any, Any, NDArray[Any]]) -> None:
        _check_spaces(envs.single_observation_space)
        self.envs = envs
        self.mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.last: LastStep | None = None
        self._actions: Any = None
        self._began = time.time()
        self._return, self._length = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)

    def reset(self) -> Any:
        """Start all episodes; uses the seed given to :meth:`seed` since the last reset."""
        seed = self._seeds[0]
        observation, _ = self.envs.reset(seed=None if seed is None else int(seed))
        self._reset_seeds()
        self._return[:], self._length[:] = 0.0, 0
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        observation, reward, terminated, truncated, infos = self.envs.step(self._actions)
        over = terminated | truncated
        self.last = LastStep(
            reward.astype(np.float64),
            _of_step(infos, "weight", over, default=1.0).astype(np.float64),
            _of_step(infos, "reward_valid", over, default=True).astype(bool),
            _of_step(infos, "pair", over, default=-1).astype(np.int64),
        )
        self._return += reward
        self._length += 1
        rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if over.any():
            observation = self._end(observation, over, truncated & ~terminated, infos, rows)
        return observation, reward.astype(np.float32), over, rows

    def _end(
        self, observation: Any, over: NDArray[np.bool_], cut: NDArray[np.bool_], infos: dict[str, Any], rows: list[dict[str, Any]]
    ) -> Any:
        """Fill in the infos of ended episodes; returns the observations of the new ones in their place."""
        same_step = self.mode == AutoresetMode.SAME_STEP
        source = infos.get("final_info", {}) if same_step else infos
        plain = {key: value for key, value in source.items() if not key.startswith("_") and isinstance(value, np.ndarray)}
        for slot in np.flatnonzero(over).tolist():
            row = {key: value[slot] for key, value in plain.items() if source.get(f"_{key}", over)[slot]}
            row["terminal_observation"] = infos["final_obs"][slot] if same_step else _row(observation, slot)
            row["TimeLimit.truncated"] = bool(cut[slot])
            elapsed = round(time.time() - self._began, 6)
            row["episode"] = {"r": float(self._return[slot]), "l": int(self._length[slot]), "t": elapsed}
            rows[slot] = row
        self._return[over], self._length[over] = 0.0, 0
        if not same_step:
            observation, _ = self.envs.reset(options={"reset_mask": over})
        return observation

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [_find(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"the sub-environments share one object: set {attr_name!r} on `.envs` instead")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [_find(self.envs, method_name)(*args, **kwargs)] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        found = any(isinstance(layer, wrapper_class) for layer in layers(self.envs))
        return [found] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [None] * self.num_envs


def to_vec_env(envs: VectorEnv[Any, Any, NDArray[Any]]) -> GymnasiumVecEnv:
    """``envs`` as a ``VecEnv`` that any SB3 algorithm trains on."""
    return GymnasiumVecEnv(envs)


def weighted(venv: GymnasiumVecEnv, *, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments that make an on-policy algorithm use weights and skip invalid steps: ``PPO(..., **weighted(venv))``."""
    buffer = WeightedDictRolloutBuffer if isinstance(venv.observation_space, gym.spaces.Dict) else WeightedRolloutBuffer
    return {"rollout_buffer_class": buffer, "rollout_buffer_kwargs": {"venv": venv, "seed": seed}}


class _Weighted:
    """What both buffers add to SB3's. An unknown reward makes the returns of its episode so far unknown: those steps go too."""

    def __init__(self, *args: Any, venv: GymnasiumVecEnv, seed: int = 0, **kwargs: Any) -> None:
        self.venv = venv
        self.rng = np.random.default_rng(seed)
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        shape = (self.buffer_size, self.n_envs)  # type: ignore[attr-defined]
        self.weights = np.ones(shape)
        self.valid = np.ones(shape, bool)
        self.pairs = np.full(shape, -1, np.int64)
        self.given = np.zeros(shape)
        super().reset()  # type: ignore[misc]

    def add(self, *args: Any, **kwargs: Any) -> None:
        last, pos = self.venv.last, self.pos  # type: ignore[attr-defined]
        if last is None:
            raise RuntimeError("the buffer belongs to another VecEnv than the one that was stepped")
        self.weights[pos], self.valid[pos] = last.weight, last.reward_valid
        self.pairs[pos], self.given[pos] = last.pair, last.reward
        super().add(*args, **kwargs)  # type: ignore[misc]

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        self._last = (last_values, dones)
        super().compute_returns_and_advantage(last_values=last_values, dones=dones)  # type: ignore[misc]
        self.advantages: NDArray[Any] = self.advantages * self.weights.astype(np.float32)
        self.usable = self._usable()

    def recompute(self) -> None:
        """Returns and advantages anew, after rewards or validity were changed."""
        self.compute_returns_and_advantage(*self._last)

    def _usable(self) -> NDArray[np.bool_]:
        """Valid steps whose episode has no unknown reward after them: bool, shape (n_steps, n_envs)."""
        usable = self.valid.copy()
        for step in reversed(range(len(usable) - 1)):
            same_episode = self.episode_starts[step + 1] == 0  # type: ignore[attr-defined]
            usable[step] &= usable[step + 1] | ~same_episode
        return usable

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        order = self._order(self.usable)
        if batch_size is None:
            batch_size = len(order)
        whole = super().get(None)  # type: ignore[misc]
        next(whole)  # SB3's own: flattens the arrays, once
        for start in range(0, len(order), batch_size):
            yield self._get_samples(order[start : start + batch_size])  # type: ignore[attr-defined]

    def _order(self, usable: NDArray[np.bool_]) -> NDArray[np.int64]:
        indices = np.flatnonzero(usable.swapaxes(0, 1).reshape(-1))
        if not len(indices):
            raise RuntimeError("not one step of this rollout has a known reward: real execution or the model is failing")
        return self.rng.permutation(indices)


class WeightedRolloutBuffer(_Weighted, RolloutBuffer):
    """SB3's rollout buffer with each advantage multiplied by ``info["weight"]`` and steps of unknown reward left out.

    Args:
        venv: the environment that is stepped.
        seed: of the minibatches' order.
    """

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """Minibatches of the usable steps, in random order.

        Raises:
            RuntimeError: there is not one.
        """
        return super().get(batch_size)


class WeightedDictRolloutBuffer(_Weighted, DictRolloutBuffer):
    """:class:`WeightedRolloutBuffer` for Dict observations."""

    def get(self, batch_size: int | None = None) -> Generator[DictRolloutBufferSamples, None, None]:  # type: ignore[override]
        """Minibatches of the usable steps, in random order.

        Raises:
            RuntimeError: there is not one.
        """
        return super().get(batch_size)


class WorldModelCallback(BaseCallback):
    """Logs, after every rollout, what all wrappers have to say: anchors, calibration error, weight, executions and seconds."""

    def __init__(self, venv: GymnasiumVecEnv, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.venv = venv

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        for name, value in diagnostics(self.venv.envs).items():
            self.logger.record(name, value)


class LateAnchors(BaseCallback):
    """Joins background anchors' late truths to the rollout they belong to, before SB3 learns from it.

    At the end of a rollout it waits for that rollout's anchors, rewrites their rewards, leaves out the steps of those that did
    not arrive (and corrects the propensity of the others for it), and has returns and advantages computed again.

    Args:
        venv: the environment, trained with :func:`weighted`.
        timeout_s: the longest wait, in seconds.

    Raises:
        TypeError: there are no background anchors, or the buffer is not a weighted one.
    """

    def __init__(self, venv: GymnasiumVecEnv, *, timeout_s: float = 60.0, verbose: int = 0) -> None:
        super().__init__(verbose)
        if timeout_s < 0:
            raise ValueError(f"timeout_s must not be negative, got {timeout_s}")
        self.venv = venv
        self.timeout_s = timeout_s
        self.engine, self.residual = _late_parts(venv.envs)
        self.arrived, self.missing = 0, 0

    def _init_callback(self) -> None:
        buffer = getattr(self.model, "rollout_buffer", None)
        if not isinstance(buffer, _Weighted):
            raise TypeError(f"LateAnchors needs a weighted buffer: build the algorithm with **weighted(venv), got {buffer}")
        if isinstance(self.model.get_env(), VecNormalize) and self.model.get_env().norm_reward:  # type: ignore[union-attr]
            raise TypeError("LateAnchors cannot rewrite rewards that VecNormalize has scaled: use norm_reward=False")
        self.engine.collect_late()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        where = np.argwhere(buffer.pairs >= 0)
        self.engine.wait(self.timeout_s)
        truths = self.engine.collect_late()
        if not len(where):
            return
        numbers = [int(buffer.pairs[step, slot]) for step, slot in where]
        completion = sum(number in truths for number in numbers) / len(numbers)
        for (step, slot), number in zip(where, numbers, strict=True):
            if number in truths:
                given, corrected = buffer.given[step, slot], self._corrected(number, truths[number], completion)
                buffer.rewards[step, slot] += corrected - given
                buffer.given[step, slot] = corrected
                self.arrived += 1
            else:
                buffer.valid[step, slot] = False
                self.missing += 1
                if self.residual is not None:
                    self.residual.forget(number)
        buffer.recompute()
        self.logger.record("anchors/arrived", self.arrived)
        self.logger.record("anchors/missing", self.missing)

    def _corrected(self, number: int, truth: float, completion: float) -> float:
        return truth if self.residual is None else self.residual.late_reward(number, truth, completion=completion)


def _late_parts(envs: Any) -> tuple[Engine, Residual | None]:
    """The engine with background anchors below, and the residual correction, if any, above it."""
    residual: Residual | None = None
    for layer in layers(envs):
        core = vars(layer).get("core")
        residual = core if isinstance(core, Residual) else residual
        engine = vars(layer).get("engine")
        if isinstance(engine, Engine):
            if engine.options.anchor_mode != "background":
                raise TypeError(f"LateAnchors joins background anchors; {engine.options.anchor_mode} ones need no joining")
            return engine, residual
    raise TypeError("LateAnchors needs an environment with a world model, this one has none")


def _check_spaces(space: gym.Space[Any]) -> None:
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"observation": space}
    unusable = [key for key, part in parts.items() if isinstance(part, (gym.spaces.Text, gym.spaces.Dict, gym.spaces.Tuple))]
    if unusable:
        raise TypeError(
            f"SB3 takes Box and Discrete observations, or one level of a Dict of them; {unusable} are "
            f"{[type(parts[key]).__name__ for key in unusable]}: encode them as numbers first"
        )


def _of_step(infos: dict[str, Any], key: str, over: NDArray[np.bool_], *, default: Any) -> NDArray[Any]:
    """An info of the step itself, which for ended steps stands in ``final_info`` in mode SAME_STEP."""
    value = infos[key].copy() if key in infos else np.full(len(over), default)
    final = infos.get("final_info")
    if final is not None and key in final:
        value = np.where(over, final[key], value)
    return value


def _row(observation: Any, slot: int) -> Any:
    if isinstance(observation, dict):
        return {key: value[slot].copy() for key, value in observation.items()}
    return observation[slot].copy()


def _find(envs: Any, name: str) -> Any:
    for layer in layers(envs):
        if hasattr(layer, name):
            return getattr(layer, name)
    raise AttributeError(f"no layer of {envs} has {name!r}")


__all__ = [
    "GymnasiumVecEnv",
    "LastStep",
    "LateAnchors",
    "WeightedDictRolloutBuffer",
    "WeightedRolloutBuffer",
    "WorldModelCallback",
    "to_vec_env",
    "weighted",
]
