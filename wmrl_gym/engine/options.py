"""The options of an engine: the one list of them, from which every signature and docstring is made."""

# ruff: noqa: RUF009 - a field is made by a function, as dataclasses.field makes it

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from wmrl_gym.lazy import renamed
from wmrl_gym.world_models import PairKind

AnchorMode = Literal["blocking", "background"]
StartFrom = Literal["real", "buffer"]
UpdateMode = Literal["blocking", "background"]
Replaces = Literal["step", "reward"]
UncertaintyKind = Literal["model", "disagreement"]
Horizon: TypeAlias = int | Callable[[int], int] | None
"""Steps of an imagined episode: a number, a function of how many real transitions there have been, or None for no limit."""

T = TypeVar("T")


def option(default: Any, doc: str, *, internal: bool = False) -> Any:
    """A field that is an option: its default, what it means, and whether only the engine's own code sets it."""
    return field(default=default, metadata={"doc": doc, "internal": internal})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine imagines; each option is a keyword argument of the environments with a world model.

    Args:
        {options}

    Raises:
        ValueError: an option out of range.
    """

    anchors: Any = option(0.1, "share of the episodes that are anchors, executed for real, in [0, 1]; or a schedule.")
    group_size: int | None = option(
        None,
        "consecutive episodes that share their start and the anchor decision (GRPO's groups); None is 1, or a schedule's own.",
    )
    anchor_mode: AnchorMode = option(
        "blocking",
        'whether an anchor\'s steps wait for their execution ("blocking"), or are imagined like any other and executed in the '
        'background ("background"), so that the pairs arrive late.',
    )
    pairs: PairKind | None = option(
        None,
        'how an anchor is predicted: from each real observation ("teacher_forced"), or rolled on from the episode\'s start '
        '("open_loop"); None is the model\'s own choice.',
    )
    update_every: int = option(32, "real transitions between two updates of the model; 0 never updates it.")
    update_mode: UpdateMode = option(
        "blocking",
        'whether an update holds up the step at which it falls due ("blocking"), or runs on a thread of its own, where the model '
        'allows it, and takes effect at the first step after it has finished ("background"): at which, depends on the machine.',
    )
    max_model_steps: Horizon = option(
        None,
        "imagined episodes are truncated after so many steps: a number, or a function of how many real transitions there have "
        "been (a horizon that grows as the model gets better).",
    )
    max_episode_steps: int | None = option(
        None, "every episode is truncated after so many steps, real ones too; the environment's own limit counts besides."
    )
    start_states: StartFrom = option(
        "real",
        '"real": imagined episodes start at a real reset. "buffer": at an observation that really occurred, so that short ones '
        "reach everywhere; anchors, and episodes whose seed or options are given, start at a real reset in any case.",
    )
    max_in_flight: int = option(64, "background anchors that wait or run at once; one more waits for one of them.")
    replaces: Replaces = option(
        "step",
        '"step": the model predicts whole steps. "reward": all steps are real, and the model (a RewardModel) predicts what they '
        "are worth, except in anchors.",
    )
    uncertainty: UncertaintyKind = option(
        "model",
        'what a schedule by uncertainty goes by: what the "model" says of its errors, or the measured "disagreement".',
    )
    imagined_info: Mapping[str, Any] | None = option(
        None,
        'what info says in imagined steps where the model predicts nothing of it, such as {"is_success": False}; without it keys '
        "of the environment's own are there in real steps only.",
    )
    seed: int | None = option(
        None, "of anchor choices, starts and imagination, until reset(seed=...) gives another; None draws one."
    )
    num_slots: int = option(1, "rollouts imagined at once.", internal=True)
    buffer_capacity: int = option(100_000, "real transitions kept.", internal=True)

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            value = getattr(self, name)
            if value not in get_args(kind) and not (name == "pairs" and value is None):
                allowed = " or ".join(f'"{each}"' for each in get_args(kind))
                raise ValueError(f"{name} must be {allowed}, got {value!r}")
        if self.update_every < 0:
            raise ValueError(f"update_every must be 0 (never) or more, got {self.update_every}")
        for name in ("max_model_steps", "max_episode_steps", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and not callable(value) and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.imagined_info is not None and not isinstance(self.imagined_info, Mapping):
            raise ValueError(f"imagined_info must be a dict or None, got {self.imagined_info!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any], *, where: str) -> EngineOptions:
        """The options of a call.

        Args:
            given: keyword arguments.
            where: who was called, for the error.

        Raises:
            TypeError: an argument that is no option.
        """
        unknown = sorted(set(given) - set(names()))
        if unknown:
            raise TypeError(f"{where} has no argument {unknown[0]!r}; its options are {', '.join(names())}")
        return cls(**given)

    def step_limit(self, transitions: int) -> float:
        """The fewest steps after which an imagined episode is truncated that starts after so many real transitions.

        Raises:
            ValueError: a schedule answers less than 1.
        """
        steps = self.max_model_steps(transitions) if callable(self.max_model_steps) else self.max_model_steps
        if steps is not None and steps < 1:
            raise ValueError(f"max_model_steps must be at least 1, and the schedule says {steps} at {transitions} transitions")
        limits = [limit for limit in (steps, self.max_episode_steps) if limit is not None]
        return min(limits, default=np.inf)


_CHOICES: dict[str, Any] = {
    "anchor_mode": AnchorMode,
    "pairs": PairKind,
    "update_mode": UpdateMode,
    "start_states": StartFrom,
    "replaces": Replaces,
    "uncertainty": UncertaintyKind,
}


def names() -> tuple[str, ...]:
    """The options that a user may give, in order."""
    return tuple(each.name for each in fields(EngineOptions) if not each.metadata["internal"])


def takes_options(cls: type[T]) -> type[T]:
    """Write the options into the docstring of a class (at ``{options}``) and into the signature of its constructor."""
    shown = [each for each in fields(EngineOptions) if cls is EngineOptions or not each.metadata["internal"]]
    lines = [f"{each.name}: {each.metadata['doc']}" for each in shown]
    cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace("{options}", "\n    ".join(lines))
    if cls is not EngineOptions:
        own = inspect.signature(cls.__init__)
        fixed = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        extra = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=_default(each), annotation=each.type)
            for each in shown
        ]
        cls.__init__.__signature__ = own.replace(parameters=[*fixed, *extra])  # type: ignore[attr-defined]
    return cls


def _default(each: Any) -> Any:
    return inspect.Parameter.empty if each.default is MISSING else each.default


takes_options(EngineOptions)


__getattr__ = renamed(__name__, {"Cost": "wmrl_gym.engine.ledger.Cost"})
