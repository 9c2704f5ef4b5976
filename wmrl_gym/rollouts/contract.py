"""What an agent is to :class:`~wmrl_gym.rollouts.running.Rollouts`, and what comes of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

Ending = Literal["finished", "agent", "timeout", "lost", "capped", "cancelled"]
"""How a rollout ended: by the environment's rules; because the agent failed or took too long, in which case it is worth what it
had reached; because our side or a server failed, so that nothing is known; because a budget allowed no more; or by request."""
KNOWN: tuple[Ending, ...] = ("finished", "agent", "timeout")
"""Endings that say something of the agent."""
FailureKind = Literal["raised", "nothing", "slow", "died", "too_long", "server"]


@dataclass(frozen=True, slots=True)
class Start:
    """What one rollout begins with.

    Args:
        task: name of the context, one of ``Factored.contexts``.
        seed: of the episode's start; members of a group share it.
        group: number of the group.
        member: number within the group; with the seed it decides the agent's chance.
    """

    task: str
    seed: int = 0
    group: int = 0
    member: int = 0

    def chance(self, *more: int) -> int:
        """A seed of 31 bits for the agent's own chance, different for each task, seed, member and ``more``."""
        words = [self.seed, self.member, *self.task.encode(), *more]
        return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def groups(tasks: Iterable[str], seeds: Iterable[int], *, size: int = 1) -> list[Start]:
    """A group of rollouts for each task and seed.

    >>> groups(["a", "b"], [7], size=2)[1:3]
    [Start(task='a', seed=7, group=0, member=1), Start(task='b', seed=7, group=1, member=0)]

    Raises:
        ValueError: a group of fewer than one.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    seeds = list(seeds)
    pairs = [(task, seed) for task in tasks for seed in seeds]
    return [Start(task, seed, number, member) for number, (task, seed) in enumerate(pairs) for member in range(size)]


@dataclass(frozen=True, slots=True)
class Said:
    """An agent's reply.

    Args:
        action: what the environment is given.
        text: the reply as it was written, chain of thought included; "" where it is not a text.
        prompt_tokens: that were read for it; None where nobody counted.
        completion_tokens: that were written; None where nobody counted.
        tokens: text and log-probability of each token written, where the agent gives them.
    """

    action: Any
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens: tuple[tuple[str, float], ...] = ()


class AgentFailed(Exception):
    """An agent gave no reply.

    Args:
        kind: it raised, said nothing, took too long, died, wrote without end, or its server failed.
        said: why, for people.
        spent: whether tokens may have been spent all the same.
    """

    def __init__(self, kind: FailureKind, said: str, *, spent: bool = True) -> None:
        super().__init__(said)
        self.kind, self.spent = kind, spent

    @property
    def lost(self) -> bool:
        """Whether the agent has no part in it, so that nothing is known of what it would have done."""
        return self.kind == "server"


class Player(Protocol):
    """An agent within one rollout."""

    def most_tokens(self, observation: Any) -> int:
        """More tokens than the reply to this observation can take, the prompt's included; 0 where none are counted."""
        ...

    async def reply(self, observation: Any) -> Said:
        """The reply to an observation.

        Raises:
            AgentFailed: there is none.
        """
        ...

    async def close(self) -> None:
        """The rollout is over."""
        ...


class Agent(Protocol):
    """Plays many rollouts at once."""

    counts_tokens: bool
    """Whether replies say how many tokens they took, so that these can be bounded."""

    def opened(self) -> AbstractAsyncContextManager[Any]:
        """Have what all rollouts share, such as connections, for a block."""
        ...

    def player(self, start: Start) -> Player:
        """The agent of one rollout."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and what it brought.

    Args:
        observation: that was replied to.
        said: the reply.
        code: what was run; "" where nothing could be.
        status: name of the outcome; "" where nothing is known.
        feedback: the text that the agent reads next.
        reward: of this step; a placeholder where it is not valid.
        reward_due: whether the step pays.
        reward_valid: whether the reward is known.
        executed: whether something was executed for it.
        thought_s: seconds until the reply came.
        ran_s: seconds until its outcome was known, time in a queue included.
        cpu_s: CPU seconds that execution took.
        spent_tokens: of the prompt and the reply; where nobody counted, the most that it can have been.
        info: of the step.
    """

    observation: Any
    said: Said
    code: str
    status: str
    feedback: str
    reward: float
    reward_due: bool
    reward_valid: bool
    executed: bool
    thought_s: float
    ran_s: float
    cpu_s: float
    spent_tokens: int = 0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode.

    Args:
        start: what it began with.
        turns: in order.
        ended: how it ended.
        problem: what went wrong; "" where nothing did.
        kind: of an agent's failure; "" where it did not fail.
        reward: its return, or what it had reached when the agent failed; None where that is not known.
        standing: what else the environment says of where it ended, such as ``test_score`` and ``percentile``.
        seconds: it took.
        spent_tokens: of all turns, and of a reply that did not come.
    """

    start: Start
    turns: tuple[Turn, ...]
    ended: Ending
    problem: str = ""
    kind: str = ""
    reward: float | None = None
    standing: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    spent_tokens: int = 0

    @property
    def known(self) -> bool:
        """Whether it says something of the agent: neither lost nor stopped from outside."""
        return self.ended in KNOWN
