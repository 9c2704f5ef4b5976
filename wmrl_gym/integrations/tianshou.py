"""Tianshou 2: vector environments that its collectors take, and algorithms that use weights and skip what is unknown.

>>> import gymnasium as gym, wmrl_gym
>>> from wmrl_gym.integrations import tianshou
>>> envs = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "Disabled"})
>>> len(tianshou.to_vector_env(envs))
4
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

if find_spec("tianshou") is None:
    raise DependencyNotInstalled("tianshou is not installed, run `pip install 'wmrl-gym[tianshou]'`")

from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm, OnPolicyAlgorithm
from tianshou.algorithm.modelfree.a2c import ActorCriticOnPolicyAlgorithm
from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer
from tianshou.env import BaseVectorEnv

from wmrl_gym.engine.info import KEYS
from wmrl_gym.integrations.arrays import known_to_the_end
from wmrl_gym.wrappers import step_info

__all__ = ["GymnasiumVectorEnv", "to_vector_env", "weighted"]

_ALWAYS = tuple(name for name, key in KEYS.items() if key.always)
_PART_OF_ONE = {"action_space": "single_action_space", "observation_space": "single_observation_space"}


class GymnasiumVectorEnv(BaseVectorEnv):  # type: ignore[misc]
    """A Gymnasium vector environment in Tianshou's form: a collector steps all of it and resets the ends itself.

    ``info`` has the keys that are always there, such as ``weight``, ``reward_valid`` and ``pair``; numbers that nobody knows
    would be NaN in Tianshou's buffers.

    Args:
        envs: with ``autoreset_mode="Disabled"``, and observations that are arrays.

    Raises:
        ValueError: another autoreset mode.
        TypeError: observations of a Dict, a Tuple or text.
    """

    def __init__(self, envs: VectorEnv[Any, Any, NDArray[Any]]) -> None:
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode is not AutoresetMode.DISABLED:
            raise ValueError(f"Tianshou's collectors reset environments themselves: autoreset_mode must be DISABLED, got {mode}")
        if not isinstance(envs.single_observation_space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            raise TypeError(f"observations must be arrays, got {type(envs.single_observation_space).__name__}: encode them first")
        self.envs = envs
        self.env_num = self.wait_num = envs.num_envs
        self.is_async, self.timeout, self.ready_id = False, None, list(range(envs.num_envs))
        self.workers: list[Any] = []
        self.waiting_conn: list[Any] = []
        self.waiting_id: list[int] = []
        self.is_closed = False
        self._seed: Any = None

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """An attribute of the environments, once for each of ``id``."""
        value = getattr(self.envs, _PART_OF_ONE.get(key, key), None)
        return [value] * len(self._wrap_id(id))

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Nothing: they share one object.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(f"the environments share one object: set {key!r} on `.envs` instead")

    def reset(
        self, env_id: Any = None, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Reset the environments of ``env_id``, or all; uses the seed given to :meth:`seed` since the last reset of all."""
        self._assert_is_not_closed()
        ids = np.asarray(self._wrap_id(env_id))
        if len(ids) == self.env_num:
            given, self._seed = (self._seed if seed is None else seed), None
            observation, infos = self.envs.reset(seed=given, options=options)
        else:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            observation, infos = self.envs.reset(seed=seed, options={**(options or {}), "reset_mask": mask})
        return np.asarray(observation)[ids], self._rows(infos, ids)

    def step(self, action: Any, id: Any = None) -> Any:
        """Step all environments.

        Raises:
            ValueError: only some are asked for.
        """
        self._assert_is_not_closed()
        ids = np.asarray(self._wrap_id(id))
        if len(ids) != self.env_num:
            raise ValueError(
                f"the {self.env_num} environments are stepped together, and {len(ids)} were asked for: collect n_step, "
                f"a multiple of {self.env_num}, and no n_episode"
            )
        ordered = np.empty_like(np.asarray(action))
        ordered[ids] = action
        observation, reward, terminated, truncated, infos = self.envs.step(ordered)
        return np.asarray(observation)[ids], reward[ids], terminated[ids], truncated[ids], self._rows(infos, ids)

    def seed(self, seed: int | list[int] | None = None) -> list[list[int] | None]:
        """Seed the next reset of all: an int as :meth:`gymnasium.vector.VectorEnv.reset` takes it, or one for each."""
        self._seed = seed
        if seed is None:
            return [None] * self.env_num
        return [[seed + slot] for slot in range(self.env_num)] if isinstance(seed, int) else [[each] for each in seed]

    def render(self, **kwargs: Any) -> list[Any]:
        """None for each: imagined environments draw nothing."""
        return [None] * self.env_num

    def close(self) -> None:
        """Close the environments."""
        self._assert_is_not_closed()
        self.envs.close()
        self.is_closed = True

    def _rows(self, infos: dict[str, Any], ids: NDArray[np.int64]) -> NDArray[Any]:
        """One dict for each environment, all with the same keys."""
        info = step_info(infos, np.zeros(self.env_num, np.bool_))
        columns = {name: info[name] for name in _ALWAYS}
        rows = np.empty(len(ids), dtype=object)
        for at, slot in enumerate(ids.tolist()):
            rows[at] = {**{name: column[slot] for name, column in columns.items()}, "env_id": slot}
        return rows


def to_vector_env(envs: VectorEnv[Any, Any, NDArray[Any]]) -> GymnasiumVectorEnv:
    """``envs`` as a vector environment that Tianshou's collectors take; see :class:`GymnasiumVectorEnv`."""
    return GymnasiumVectorEnv(envs)


class _OnPolicy:
    """Leaves out unknown returns before anything is computed of them, and multiplies advantages by the weights."""

    def _preprocess_batch(self, batch: Any, buffer: ReplayBuffer, indices: NDArray[np.int64]) -> Any:
        # A step is left out with all of its episode before it, so that the rest is whole from there to the episode's end.
        kept = _returns_known(buffer, indices)
        if not kept.any():
            raise RuntimeError("not one step of this rollout has a known reward: real execution or the model is failing")
        return super()._preprocess_batch(batch[kept], buffer, indices[kept])  # type: ignore[misc]

    def _add_returns_and_advantages(self, batch: Any, buffer: ReplayBuffer, indices: NDArray[np.int64]) -> Any:
        batch = super()._add_returns_and_advantages(batch, buffer, indices)  # type: ignore[misc]
        weight = np.asarray(buffer.info.weight[indices], np.float64)
        batch.adv = batch.adv * batch.adv.new_tensor(weight)
        return batch


class _OffPolicy:
    """Leaves out sampled steps of which a reward is unknown, those of an n-step return too."""

    def _preprocess_batch(self, batch: Any, buffer: ReplayBuffer, indices: NDArray[np.int64]) -> Any:
        if isinstance(buffer, PrioritizedReplayBuffer):
            raise TypeError("weighted() cannot leave steps out of a PrioritizedReplayBuffer, which expects priorities for all")
        kept, at = np.ones(len(indices), np.bool_), indices
        for _ in range(getattr(self, "n_step_return_horizon", getattr(self, "n_step", 1))):
            kept &= np.asarray(buffer.info.reward_valid[at], np.bool_)
            at = buffer.next(at)
        if not kept.any():
            raise RuntimeError("not one of the sampled steps has a known reward: real execution or the model is failing")
        return super()._preprocess_batch(batch[kept], buffer, indices[kept])  # type: ignore[misc]


def weighted(algorithm: type[Any]) -> type[Any]:
    """A Tianshou algorithm that uses ``info["weight"]`` and skips unknown rewards: ``weighted(PPO)(policy=..., critic=...)``.

    On-policy algorithms leave out each step whose return is unknown before anything is computed of the batch, running statistics
    of returns included, and multiply advantages by the weights after GAE. Off-policy ones leave out what they sample of
    unknown reward; they have no advantages to weight.

    Args:
        algorithm: such as ``tianshou.algorithm.PPO`` or ``DQN``.

    Raises:
        TypeError: an on-policy algorithm without advantages, or a class of another kind.
    """
    if not isinstance(algorithm, type) or not issubclass(algorithm, (OnPolicyAlgorithm, OffPolicyAlgorithm)):
        raise TypeError(f"weighted takes an on-policy or off-policy algorithm of Tianshou, got {algorithm!r}")
    if issubclass(algorithm, OffPolicyAlgorithm):
        return type(f"Weighted{algorithm.__name__}", (_OffPolicy, algorithm), {"__module__": __name__})
    if not issubclass(algorithm, ActorCriticOnPolicyAlgorithm):
        raise TypeError(f"{algorithm.__name__} has no advantages that weights could multiply: use PPO, A2C, NPG or TRPO")
    return type(f"Weighted{algorithm.__name__}", (_OnPolicy, algorithm), {"__module__": __name__})


def _returns_known(buffer: ReplayBuffer, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which steps have a known return; ``indices`` are in the order of time, one environment after the other."""
    valid = np.asarray(buffer.info.reward_valid[indices], np.bool_)
    last = np.isin(indices, buffer.unfinished_index())
    return known_to_the_end(valid, np.asarray(buffer.done[indices], np.bool_) | last)
