"""Stable-Baselines3: environments as its ``VecEnv``, buffers that use weights or relabel, late anchors joined, logs, whole runs
on disk. What sb3-contrib needs is in :mod:`wmrl_gym.integrations.sb3.contrib`.

>>> import gymnasium as gym
>>> from stable_baselines3 import PPO
>>> from wmrl_gym.integrations import sb3
>>> venv = sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=4))
>>> model = PPO("MlpPolicy", venv, n_steps=8, batch_size=32, n_epochs=1, **sb3.weighted(venv)).learn(32)
"""

from importlib.util import find_spec

if find_spec("stable_baselines3") is None:
    from gymnasium.error import DependencyNotInstalled

    raise DependencyNotInstalled("stable-baselines3 is not installed, run `pip install 'wmrl-gym[sb3]'`")

from wmrl_gym.integrations.sb3.buffers import WeightedDictRolloutBuffer, WeightedRolloutBuffer, weighted
from wmrl_gym.integrations.sb3.callbacks import LateAnchors, WorldModelCallback
from wmrl_gym.integrations.sb3.replay import RelabelledDictReplayBuffer, RelabelledReplayBuffer, relabelled
from wmrl_gym.integrations.sb3.saving import load, save
from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv, LastStep, base_of, to_vec_env

__all__ = [
    "GymnasiumVecEnv",
    "LastStep",
    "LateAnchors",
    "RelabelledDictReplayBuffer",
    "RelabelledReplayBuffer",
    "WeightedDictRolloutBuffer",
    "WeightedRolloutBuffer",
    "WorldModelCallback",
    "base_of",
    "load",
    "relabelled",
    "save",
    "to_vec_env",
    "weighted",
]
