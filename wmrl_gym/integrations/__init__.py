"""Trainers: one module for each RL library, imported when it is asked for."""

from wmrl_gym.lazy import lazy

__all__ = ["arrays", "sb3", "skrl", "tianshou", "torchrl"]

__getattr__, __dir__ = lazy(__name__, {"arrays": "", "sb3": "", "skrl": "", "tianshou": "", "torchrl": ""})
