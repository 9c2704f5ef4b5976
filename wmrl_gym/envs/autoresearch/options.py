"""The options of AutoResearch's environments, in one list, which constructors, signatures and the documentation follow."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, TypeVar, get_args

from wmrl_gym.envs.autoresearch.rules import Rules
from wmrl_gym.sandbox import Limits, Sandbox

FeedbackMode = Literal["validation", "none", "test"]
"""Which score an agent sees each turn: on the validation part, none at all, or on the very part that pays."""
ClassT = TypeVar("ClassT", bound=type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Rules):
    """How an AutoResearch environment is played; :class:`~wmrl_gym.envs.autoresearch.rules.Rules` are options as well.

    Args:
        feedback: "validation" shows the score on the validation part each turn, while the reward comes from the hidden test part;
            "none" shows no score; "test" shows the score that pays, which an agent can then climb.
        sandbox: "local", "docker", "ray", "unsafe-rlimits", or a sandbox of your own, which is then yours to close.
        workers: executions at the same time, where several threads execute.
        limits: bounds of each execution; None takes the task's own, and in the design environment one second of CPU time.

    Raises:
        ValueError: for senseless rules, an unknown feedback mode, or an end at a score that is not shown.
        TypeError: an option is of another type.
    """

    feedback: FeedbackMode = "validation"
    sandbox: str | Sandbox = "local"
    workers: int = 1
    limits: Limits | None = None

    def __post_init__(self) -> None:
        """Check each option."""
        Rules.__post_init__(self)
        if self.feedback not in get_args(FeedbackMode):
            raise ValueError(f"feedback must be one of {', '.join(map(repr, get_args(FeedbackMode)))}, got {self.feedback!r}")
        if self.feedback == "none" and self.terminate_on is not None:
            raise ValueError(f'terminate_on={self.terminate_on} ends at a score that is shown, and feedback="none" shows none')
        if not isinstance(self.limits, (Limits, NoneType)):
            raise TypeError(f"limits must be Limits or None, got {self.limits!r}")
        if not isinstance(self.sandbox, str) and not all(
            callable(getattr(self.sandbox, name, None)) for name in ("run", "close")
        ):
            raise TypeError(f"sandbox must be a name or a sandbox, got {self.sandbox!r}")
        if isinstance(self.workers, bool) or not isinstance(self.workers, int):
            raise TypeError(f"workers must be a whole number, got {self.workers!r}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    @classmethod
    def of(cls, given: Mapping[str, Any], **defaults: Any) -> Options:
        """The options that were given by name, and the defaults of the others.

        Raises:
            TypeError: for a name that is no option, naming the closest.
        """
        names = [each.name for each in fields(cls)]
        for name in given:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                # Python's own words at the end: TorchRL's GymEnv tries `frameskip` on every environment, and reads these.
                raise TypeError(
                    f"{name!r} is no option, did you mean {close!r}? Options are {', '.join(names)} "
                    f"(got an unexpected keyword argument {name!r})"
                )
        return cls(**{**defaults, **given})


def takes_options(*, turns: int) -> Callable[[ClassT], ClassT]:
    """Let a class whose constructor takes ``**options`` show them by name in its signature, with so many turns by default."""

    def show(decorated: ClassT) -> ClassT:
        constructor: Any = decorated.__init__  # type: ignore[misc]
        own = [each for each in inspect.signature(constructor).parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [
            each.replace(default=turns if each.name == "max_turns" else each.default)
            for each in inspect.signature(Options).parameters.values()
        ]
        constructor.__signature__ = inspect.Signature(sorted([*own, *options], key=lambda each: each.kind))
        return decorated

    return show
