"""Trainers: one module for each RL library, imported when it is asked for."""

from wmrl_gym.lazy import lazy

__all__ = ["sb3"]

__getattr__, __dir__ = lazy(__name__, {"sb3": ""})
