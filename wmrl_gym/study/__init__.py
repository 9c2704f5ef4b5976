"""Comparisons of ways to train at equal wall-clock time: what ``wmrl demo`` and ``benchmarks.speedup`` run."""

from wmrl_gym.study.config import ARMS, Arm, StudyConfig

__all__ = ["ARMS", "Arm", "StudyConfig"]
