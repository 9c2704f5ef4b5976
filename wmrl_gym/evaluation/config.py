"""What is evaluated: an agent, tasks and seeds; and what it may cost."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS, TRAIN_TASKS, Task, list_tasks, load_task

AgentKind = Literal["server", "program", "policy", "random", "scripted"]
SETS = {"held-out": HELD_OUT_TASKS, "train": TRAIN_TASKS}
"""Names that stand for several tasks, besides "all"."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Who acts.

    Args:
        kind: a chat server, a user's program, a saved policy of the design environment, uniformly drawn designs, or the scripted
            proposer.
        place: the server's address, the program as ``path.py:name`` or ``module:name``, or the policy's file; "" for the others.
        model: the name that a server knows its model by.
        settings: further ones: of a server ``temperature``, ``max_reply_tokens`` and ``system``; of the proposer ``skill``.

    Raises:
        ValueError: a place that is needed, or a file that is not there.
    """

    kind: AgentKind
    place: str = ""
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "server" and not (self.place and self.model):
            raise ValueError("a server needs an address and the name of its model: give --base-url and --model")
        if self.kind in ("program", "policy") and not self.place:
            raise ValueError(f"a {self.kind} needs its place")
        path = self.path
        if path is not None and not path.is_file():
            raise ValueError(f"there is no file {path}")

    @classmethod
    def of(cls, text: str, **settings: Any) -> AgentSpec:
        """The agent that one word names: ``random``, ``scripted``, ``path.py:name``, ``module:name``, or a policy's file.

        >>> AgentSpec.of("random").kind
        'random'

        Raises:
            ValueError: it names none.
        """
        if text in ("random", "scripted"):
            return cls(text, settings=settings)  # type: ignore[arg-type]
        if text.endswith((".zip", ".safetensors")):
            return cls("policy", text)
        if ":" in text:
            return cls("program", text, settings=settings)
        raise ValueError(
            f"an agent is random, scripted, path.py:name, module:name, a policy saved as .zip or .safetensors, or a server "
            f"(--base-url and --model); got {text!r}"
        )

    @property
    def path(self) -> Path | None:
        """The file that it is, if it is one."""
        if self.kind == "policy":
            return Path(self.place)
        place = self.place.rpartition(":")[0]
        return Path(place) if self.kind == "program" and place.endswith(".py") else None

    @property
    def label(self) -> str:
        """A short name."""
        return self.model or self.place or self.kind

    def identity(self) -> dict[str, Any]:
        """What makes it this agent and no other, as JSON; of a file its hash, of an address no password."""
        from wmrl_gym.world_models.llm.chat import without_password

        place = without_password(self.place) if self.kind == "server" else self.place
        path = self.path
        content = {} if path is None else {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        return {"kind": self.kind, "place": place, "model": self.model, **self.settings, **content}


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """An evaluation.

    Args:
        agent: who acts.
        tasks: names, directories, "held-out", "train" or "all".
        seeds: episodes of each task.
        first_seed: the first episode's; the others follow.
        max_turns: attempts in an episode; None for the environment's own, four for texts and three for designs.
        timeout_s: seconds for one whole episode; None for as long as it takes.
        reply_timeout_s: seconds for one reply.

    Raises:
        ValueError: an argument out of range, or an unknown task.
    """

    agent: AgentSpec
    tasks: tuple[str, ...] = ("held-out",)
    seeds: int = 1
    first_seed: int = 0
    max_turns: int | None = None
    timeout_s: float | None = None
    reply_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.seeds < 1 or not 0 <= self.first_seed <= 2**31 - self.seeds:
            raise ValueError(
                f"there must be at least one seed, and all in [0, 2**31), got {self.seeds} from {self.first_seed} on"
            )
        for name in ("timeout_s", "reply_timeout_s", "max_turns"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.tasks:
            raise ValueError("an evaluation needs at least one task")

    def load_tasks(self) -> tuple[Task, ...]:
        """The tasks, each once.

        Raises:
            ValueError: an unknown task.
            TaskError: a directory that is no task.
        """
        return tuple(load_task(name) for name in names_of(self.tasks))

    def identity(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """What makes it this evaluation and no other, as JSON; tasks by a hash of what decides scores."""
        return {
            "agent": self.agent.identity(),
            "tasks": {task.spec.name: _digest(task) for task in tasks},
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "max_turns": self.max_turns,
            "timeout_s": self.timeout_s,
            "reply_timeout_s": self.reply_timeout_s,
        }


@dataclass(frozen=True, slots=True)
class Caps:
    """What all invocations of an evaluation may spend together; what would pass a bound is not begun.

    Args:
        tokens: of prompts and replies; None for no bound.
        executions: of scripts.
        seconds: of wall-clock time.
    """

    tokens: int | None = None
    executions: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "executions", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"--max-{name} must be positive, got {value}")


def names_of(tasks: Sequence[str]) -> list[str | Path]:
    """The names and directories that were meant, each once.

    >>> len(names_of(["held-out", "diabetes"]))
    8
    """
    found: dict[str | Path, None] = {}
    for name in tasks:
        several = list_tasks() if name == "all" else SETS.get(name)
        if several is not None:
            found |= dict.fromkeys(several)
        else:
            known = name in list_tasks()
            found[name if known or not (os.sep in name or Path(name).is_dir()) else Path(name)] = None
    return list(found)


def _digest(task: Task) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(task.leaderboard.goodness).tobytes())
    digest.update("\0".join(task.answers.ids).encode("utf-8", "surrogatepass"))
    digest.update(np.ascontiguousarray(task.answers.truth).tobytes() + task.answers.test.tobytes())
    digest.update(task.description.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
