"""A Gymnasium vector environment as a ``VecEnv``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from wmrl_gym.engine.info import KEYS
from wmrl_gym.wrappers.diagnostics import layers
from wmrl_gym.wrappers.vector.corrections import VectorStepInfo


class LastStep(VectorStepInfo):
    """What the last step said that SB3 has no place for: arrays of ``num_envs`` rows, by the keys of ``info``.

    A pair whose truth is there already is none that is waited for: its number is -1.

    Args:
        reward: float64, as the environment returned it.
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended.
    """

    def __init__(self, reward: NDArray[np.float64], infos: dict[str, Any], over: NDArray[np.bool_]) -> None:
        super().__init__(infos, over)
        self.reward = reward.astype(np.float64)
        self["pair"] = np.where(np.isfinite(self["real_reward"]), -1, self["pair"])

    def __getattr__(self, name: str) -> NDArray[Any]:
        """The keys as attributes, such as ``last.weight``."""
        if name not in KEYS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]


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
        self.last = LastStep(reward, infos, over)
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
        chosen = list(self._get_indices(indices))
        result = _find(self.envs, method_name)(*args, **kwargs)
        # MaskablePPO stacks what each environment answers; a vector environment answers for all at once.
        return [result[at] for at in chosen] if method_name == "action_masks" else [result] * len(chosen)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        found = any(isinstance(layer, wrapper_class) for layer in layers(self.envs))
        return [found] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [None] * self.num_envs


class OneSlot(SyncVectorEnv):
    """A single environment as a vector environment with one slot, whose layers and masks are still found.

    Args:
        env: it.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        _check_spaces(env.observation_space)
        super().__init__([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
        self.env = env

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal: bool, shape (1, n)."""
        return np.asarray(_find(self.env, "action_masks")())[None]


def to_vec_env(envs: VectorEnv[Any, Any, NDArray[Any]] | gym.Env[Any, Any]) -> GymnasiumVecEnv:
    """``envs`` as a ``VecEnv`` that any SB3 algorithm trains on; a single environment becomes one with a single slot.

    SB3 takes a single environment as it is, too, and then learns from unknown rewards without a word: nothing in it looks at
    ``info["reward_valid"]``. With ``to_vec_env`` and ``weighted`` (or ``relabelled``) it does not.

    Raises:
        TypeError: neither, or an observation space that SB3 cannot take, such as text.
    """
    if isinstance(envs, gym.Env):
        return GymnasiumVecEnv(OneSlot(envs))
    if not isinstance(envs, VectorEnv):
        raise TypeError(f"to_vec_env takes a Gymnasium environment, single or vector, got {type(envs).__name__}")
    return GymnasiumVecEnv(envs)


def vec_layers(venv: Any) -> Iterator[Any]:
    """SB3's own wrappers around an environment, outermost first, and what is below them."""
    while isinstance(venv, VecEnvWrapper):
        yield venv
        venv = venv.venv
    yield venv


def base_of(venv: Any) -> GymnasiumVecEnv:
    """The environment below SB3's own wrappers.

    Raises:
        TypeError: it is none that :func:`to_vec_env` made.
    """
    *_, below = vec_layers(venv)
    if not isinstance(below, GymnasiumVecEnv):
        raise TypeError(
            f"expected what sb3.to_vec_env(...) makes of an environment, single or vector, got {type(below).__name__}"
        )
    return below


def learnable(venv: Any) -> GymnasiumVecEnv:
    """The environment below SB3's own wrappers, for a buffer that leaves out unknown rewards.

    Raises:
        TypeError: it is none that :func:`to_vec_env` made, or VecNormalize scales its rewards.
    """
    if scales_rewards(venv):
        raise TypeError("VecNormalize learns its scale from every reward, unknown ones included: use norm_reward=False")
    return base_of(venv)


def scales_rewards(venv: Any) -> bool:
    """Whether one of SB3's wrappers around an environment scales its rewards."""
    return any(isinstance(layer, VecNormalize) and layer.norm_reward for layer in vec_layers(venv))


def _check_spaces(space: gym.Space[Any]) -> None:
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"observation": space}
    unusable = [key for key, part in parts.items() if isinstance(part, (gym.spaces.Text, gym.spaces.Dict, gym.spaces.Tuple))]
    if unusable:
        raise TypeError(
            f"SB3 takes Box and Discrete observations, or one level of a Dict of them; {unusable} are "
            f"{[type(parts[key]).__name__ for key in unusable]}: encode them as numbers first"
        )


def _row(observation: Any, slot: int) -> Any:
    if isinstance(observation, dict):
        return {key: value[slot].copy() for key, value in observation.items()}
    return observation[slot].copy()


def _find(envs: Any, name: str) -> Any:
    for layer in layers(envs):
        if hasattr(layer, name):
            return getattr(layer, name)
    raise AttributeError(f"no layer of {envs} has {name!r}")
