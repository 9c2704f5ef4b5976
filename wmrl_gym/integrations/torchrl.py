"""TorchRL: environments, single and batched, whose data has the keys of ``info``, and advantages that use weights and skip what
is unknown.

>>> import gymnasium as gym
>>> from wmrl_gym.integrations import torchrl
>>> env = torchrl.to_env(gym.make("CartPole-v1"))
>>> env.rollout(3)["next", "weight"].flatten()
tensor([1., 1., 1.])
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

if find_spec("torchrl") is None:
    raise DependencyNotInstalled("torchrl is not installed, run `pip install 'wmrl-gym[torchrl]'`")

from tensordict import TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.gym_like import BaseInfoDictReader
from torchrl.envs.libs.gym import GymWrapper

from wmrl_gym.engine.info import KEYS
from wmrl_gym.integrations.arrays import LateTruths, known_to_the_end
from wmrl_gym.wrappers import step_info

__all__ = ["InfoReader", "Weighted", "join_late", "known", "to_env"]

_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float32}


class InfoReader(BaseInfoDictReader):  # type: ignore[misc]
    """Puts the keys of ``info`` into TorchRL's data, beside the observation: shape (*batch, 1), NaN where nobody knows a number.

    TorchRL's own reader fails on Python numbers, and writes 0 where a key is missing.

    Args:
        num_envs: of a vector environment; None for a single one.
        keys: those that are wanted.

    Raises:
        ValueError: a key that environments with a world model do not have.
    """

    def __init__(self, num_envs: int | None, keys: Sequence[str] = tuple(KEYS)) -> None:
        unknown = [key for key in keys if key not in KEYS]
        if unknown:
            raise ValueError(f"keys must be among {', '.join(KEYS)}; got {unknown}")
        self.num_envs, self.keys = num_envs, tuple(keys)

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Write the keys of one reset or step."""
        n = 1 if self.num_envs is None else self.num_envs
        batched = (
            {key: np.array([value]) for key, value in info_dict.items() if key in KEYS} if self.num_envs is None else info_dict
        )
        info = step_info(batched, np.zeros(n, np.bool_))
        shape = (*tensordict.batch_size, 1)
        for key in self.keys:
            tensordict.set(key, torch.as_tensor(np.array(info[key]), dtype=_DTYPES[KEYS[key].dtype]).reshape(shape))
        return tensordict

    @property
    def info_spec(self) -> Composite:
        """The keys' shapes and dtypes."""
        batch = () if self.num_envs is None else (self.num_envs,)
        return Composite({key: Unbounded((*batch, 1), dtype=_DTYPES[KEYS[key].dtype]) for key in self.keys}, shape=batch)


class _WithMode(VectorWrapper):
    """TorchRL asks for the mode as an attribute, which Gymnasium's vector wrappers hide."""

    @property
    def autoreset_mode(self) -> AutoresetMode:
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode


def to_env(
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, NDArray[Any]], *, keys: Sequence[str] = tuple(KEYS), **options: Any
) -> EnvBase:
    """``env`` as an environment of TorchRL, for its collectors.

    Args:
        env: single, or a vector environment with ``autoreset_mode="Disabled"``: TorchRL resets what has ended itself.
        keys: of ``info``; each is beside the observation in the data, ``("next", key)`` for what a step said.
        **options: of TorchRL's ``GymWrapper``, such as ``categorical_action_encoding=True``.

    Raises:
        ValueError: a vector environment in another autoreset mode.
    """
    num_envs = None
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode is not AutoresetMode.DISABLED:
            raise ValueError(f"TorchRL resets environments itself: autoreset_mode must be DISABLED, got {mode}")
        num_envs = env.num_envs
        env = env if hasattr(env, "autoreset_mode") else _WithMode(env)
    made: EnvBase = GymWrapper(env, **options)
    return made.set_info_dict_reader(InfoReader(num_envs, keys))


def known(data: TensorDictBase) -> TensorDictBase:
    """The steps with a known reward, for algorithms that learn from single steps (DQN, SAC): what a replay buffer may take.

    Args:
        data: as collectors give it, of any batch shape.

    Returns:
        Those steps, in one flat batch.
    """
    return data[data["next", "reward_valid"].squeeze(-1)]


class Weighted(torch.nn.Module):
    """An advantage estimator of TorchRL whose data is fit to learn from: weighted, and without what is unknown.

    ``Weighted(GAE(...))(data)`` takes what a collector gives, time last in its batch shape, and returns a flat batch of the steps
    with a known return: an unknown reward makes those of its whole episode so far unknown.

    Args:
        estimator: such as ``torchrl.objectives.value.GAE``.

    Raises:
        ValueError: an estimator that standardises all advantages, those of unknown rewards among them: standardise in the loss.
    """

    def __init__(self, estimator: torch.nn.Module) -> None:
        super().__init__()
        if getattr(estimator, "average_gae", False):
            raise ValueError(
                "average_gae=True standardises with unknown rewards: use normalize_advantage=True of the loss instead"
            )
        self.estimator = estimator

    def forward(self, data: TensorDictBase) -> TensorDictBase:
        """Advantages times ``weight``, for the steps that may be learnt from.

        Raises:
            RuntimeError: there is not one.
        """
        valid, ends = data["next", "reward_valid"].squeeze(-1), data["next", "done"].squeeze(-1)
        kept = torch.as_tensor(known_to_the_end(valid.movedim(-1, 0).numpy(), ends.movedim(-1, 0).numpy())).movedim(0, -1)
        if not kept.any():
            raise RuntimeError("not one step of this rollout has a known reward: real execution or the model is failing")
        with torch.no_grad():
            estimated = self.estimator(data)
        advantage = estimated["advantage"]
        estimated["advantage"] = advantage * estimated["next", "weight"].to(advantage.dtype)
        return estimated[kept]


def join_late(late: LateTruths, data: TensorDictBase, *, timeout_s: float = 60.0) -> TensorDictBase:
    """Put the late truths of background anchors in a rollout's rewards, in place, before advantages are computed.

    Args:
        late: of the environment, made before its first rollout.
        data: as the collector gave it.
        timeout_s: the longest wait, in seconds.
    """
    following = data["next"]
    waits = following["pair"].where(following["real_reward"].isnan(), -1)
    rewards, valid = following["reward"].double().numpy(), following["reward_valid"].clone().numpy()
    late.join(rewards, valid, pairs=waits.numpy(), timeout_s=timeout_s)
    data["next", "reward"] = torch.as_tensor(rewards, dtype=following["reward"].dtype)
    data["next", "reward_valid"] = torch.as_tensor(valid)
    return data
