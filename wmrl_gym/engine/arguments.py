"""What is asked to be imagined and how often to be executed, taken apart: real execution, time limits, schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

from wmrl_gym.corrections import AnchorSchedule
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.execution import EnvExecution, FactoredExecution, RealExecution
from wmrl_gym.factored import Factored

_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit)


def schedule_of(anchors: float | Schedule, group_size: int | None) -> Schedule:
    """The schedule that ``anchors`` stands for.

    Args:
        anchors: a fraction, or a schedule with a group size of its own.
        group_size: episodes a group; None is 1, or the schedule's.

    Raises:
        ValueError: a fraction outside [0, 1], something else, or a schedule with groups of another size.
    """
    if isinstance(anchors, Real):
        if 0.0 <= float(anchors) <= 1.0:
            return AnchorSchedule(float(anchors), group_size=1 if group_size is None else group_size)
        raise ValueError(f"anchors must be a fraction in [0, 1] or a schedule, got {anchors!r}")
    if not callable(getattr(anchors, "decide", None)) or not callable(getattr(anchors, "reseeded", None)):
        raise ValueError(f"anchors must be a fraction in [0, 1] or a schedule, got {anchors!r}")
    own = int(getattr(anchors, "group_size", 1))
    if group_size is not None and group_size != own:
        raise ValueError(f"the schedule has groups of {own}, and group_size={group_size} was asked for: give one of them")
    return anchors  # type: ignore[return-value]


def parts_of(env: gym.Env[Any, Any]) -> Factored[Any, Any] | None:
    """The parts of a factored environment, unless a wrapper that may change its spaces or rewards stands around it."""
    factored = getattr(env.unwrapped, "factored", None)
    layer: Any = env
    while isinstance(layer, _TRANSPARENT):
        layer = layer.env
    return factored if isinstance(factored, Factored) and layer is env.unwrapped else None


def time_limit(env: gym.Env[Any, Any]) -> int | None:
    """The fewest steps after which a TimeLimit around ``env``, or its specification, truncates."""
    limits = [] if env.spec is None or env.spec.max_episode_steps is None else [int(env.spec.max_episode_steps)]
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(int(layer._max_episode_steps))
        layer = layer.env
    return min(limits, default=None)


def execution_of(env: gym.Env[Any, Any], *, background: bool) -> RealExecution:
    """Real execution of one environment: by its parts where it has some, else by the environment itself.

    Raises:
        ValueError: executions in the background need a second instance, and nothing says how it is made.
    """
    factored = parts_of(env)
    if factored is not None:
        return FactoredExecution(factored, owned=False)
    make = None if env.spec is None else partial(gym.make, env.spec)
    if background and make is None:
        raise ValueError(
            "anchors in the background run beside the agent's own episodes, in a second instance: use an environment made by "
            'gymnasium.make, WorldModelVectorEnv with a function that makes one, or anchor_mode="blocking"'
        )
    return EnvExecution(make, first=env)


def executions_of(source: Any, *, max_real: int) -> tuple[RealExecution, int | None]:
    """Real execution of many environments, and their own time limit.

    Args:
        source: the parts of a factored environment, the id of a registered one, or a function that makes one.
        max_real: executions at once.

    Raises:
        TypeError: ``source`` is none of these.
    """
    if isinstance(source, Factored):
        return FactoredExecution(source, max_real=max_real), None
    if not isinstance(source, str) and not callable(source):
        raise TypeError(f"source must be a Factored, an environment id or a function that makes one, got {type(source).__name__}")
    make: Callable[[], gym.Env[Any, Any]] = partial(gym.make, source) if isinstance(source, str) else source
    first = make()
    factored = parts_of(first)
    if factored is not None:
        return FactoredExecution(factored, max_real=max_real), time_limit(first)
    return EnvExecution(make, first=first, max_real=max_real), time_limit(first)
