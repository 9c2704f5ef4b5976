"""Turns what a user passes into what an engine needs: the world model, the schedule of anchors, real execution, time limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

from wmrl_gym.corrections import AnchorSchedule
from wmrl_gym.engine.engine import Engine
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.execution import FactoredExecution, RealExecution
from wmrl_gym.engine.gym_execution import EnvExecution
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.reward_only import engine_of
from wmrl_gym.factored import Factored
from wmrl_gym.world_models import Interface, WorldModel

_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit)


class SharedModel:
    """Holds a world model in an environment's specification: copies of the specification share it, since weights may be large.

    Args:
        model: the world model.
    """

    def __init__(self, model: Any) -> None:
        self.model: Any = model.model if isinstance(model, SharedModel) else model

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedModel:
        return self


def model_of(given: Any) -> WorldModel:
    """The world model that was passed as an argument, on its own or inside a specification.

    Raises:
        TypeError: it is none.
    """
    model = given.model if isinstance(given, SharedModel) else given
    if not isinstance(model, WorldModel):
        what = f"the class {model.__name__}: call it first" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a WorldModel, got {what}")
    return model


def build_engine(real: RealExecution, model: WorldModel, options: EngineOptions, *, num_slots: int, limit: int | None) -> Engine:
    """An engine for a model, which is bound to the environment.

    Args:
        real: real execution.
        model: the world model.
        options: as the user gave them.
        num_slots: rollouts imagined at once.
        limit: the environment's own time limit.

    Raises:
        TypeError: the model cannot replace what it is to.
        ValueError: an argument out of range, or a model that is bound to an environment with other spaces.
    """
    schedule = schedule_of(options.anchors, options.group_size)
    _bind(model, real.interface)
    limits = [each for each in (limit, options.max_episode_steps) if each is not None]
    pairs = model.pairs if options.pairs is None else options.pairs
    options = replace(options, num_slots=num_slots, pairs=pairs, max_episode_steps=min(limits, default=None))
    return engine_of(real, model, schedule=schedule, options=options)


def _bind(model: WorldModel, interface: Interface) -> None:
    """Bind a model to an environment, and refuse one that was fitted to other spaces."""
    bound = model.interface
    if bound is not None and (bound.factored is None or interface.factored is None):  # outcomes are the same in any of its spaces
        for name in ("observation_space", "action_space"):
            old, new = getattr(bound, name), getattr(interface, name)
            if old != new:
                raise ValueError(
                    f"model is bound to an environment whose {name} is {old}, and this one's is {new}: make another "
                    f"{type(model).__name__}"
                )
    model.bind(interface)


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
    """The factored logic of ``env``; None where it has none, or where a wrapper around it may change its spaces or rewards."""
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
        return FactoredExecution(factored, owned=False, statistics=_statistics(env))
    hidden = [] if env.spec is None else [each.name for each in env.spec.additional_wrappers if each.kwargs is None]
    if background and (env.spec is None or hidden):
        why = (
            f"the wrapper {hidden[0]} below does not record its arguments (RecordConstructorArgs)" if hidden else "it has no spec"
        )
        raise ValueError(
            "anchors in the background run beside the agent's own episodes, in a second instance, and this environment cannot be "
            f"made again: {why}. Use gymnasium.make, WorldModelVectorEnv with a function that makes one, or "
            'anchor_mode="blocking"'
        )
    return EnvExecution(None if env.spec is None or hidden else partial(gym.make, env.spec), first=env)


def _statistics(env: gym.Env[Any, Any]) -> RecordEpisodeStatistics[Any, Any] | None:
    """The outermost RecordEpisodeStatistics around a factored environment, whose steps the engine takes itself."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, RecordEpisodeStatistics):
            return layer
        layer = layer.env
    return None


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
        return FactoredExecution(factored, max_real=max_real, statistics=_statistics(first)), time_limit(first)
    return EnvExecution(make, first=first, max_real=max_real), time_limit(first)
