"""A language model behind a server that speaks OpenAI's chat completions, as an agent of the text environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from wmrl_gym.rollouts.contract import AgentFailed, Said, Start

if TYPE_CHECKING:
    from wmrl_gym.world_models.llm.chat import Asker, ChatClient

_FOR_A_MESSAGE = 64
"""More tokens than a chat template puts around a message."""


class ChatAgent:
    """Has a conversation for each rollout: the task, and then feedback for each reply.

    What a server does wrong (it is down, busy, answers with errors or pages, or without end) is asked again as
    :class:`~wmrl_gym.world_models.llm.chat.ChatClient` does, and then the rollout is lost: it says nothing of the model. A chain
    of thought is no part of the reply: it is neither run nor told again.

    Args:
        client: of the server.
        system: instructions before the task; "" for none.
    """

    counts_tokens = True

    def __init__(self, client: ChatClient, *, system: str = "") -> None:
        self.client, self.system = client, system
        self._ask: Asker | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connections that all rollouts share."""
        async with self.client.session() as self._ask:
            yield

    def player(self, start: Start) -> _Conversation:
        """The conversation of one rollout."""
        return _Conversation(self, start)

    async def ask(self, messages: tuple[tuple[str, str], ...], seed: int) -> Any:
        """The reply, or a failure.

        Raises:
            RuntimeError: outside of :meth:`opened`.
        """
        from wmrl_gym.world_models.llm.schema import Question

        if self._ask is None:
            raise RuntimeError("a ChatAgent answers within `async with agent.opened()`")
        return await self._ask(Question(messages, (), seed))


class _Conversation:
    def __init__(self, agent: ChatAgent, start: Start) -> None:
        self._agent, self._start = agent, start
        self._messages: list[tuple[str, str]] = [("system", agent.system)] if agent.system else []

    def most_tokens(self, observation: Any) -> int:
        texts = [*(text for _, text in self._messages), _prompt(observation)]
        # A token stands for one byte at least.
        read = sum(len(text.encode("utf-8", "surrogatepass")) + _FOR_A_MESSAGE for text in texts)
        return read + self._agent.client.max_tokens

    async def reply(self, observation: Any) -> Said:
        from wmrl_gym.world_models.llm.chat import ChatFailure
        from wmrl_gym.world_models.llm.schema import without_thoughts

        self._messages.append(("user", _prompt(observation)))
        reply = await self._agent.ask(tuple(self._messages), self._start.chance(len(self._messages)))
        if isinstance(reply, ChatFailure):
            spent = reply.kind not in ("unreachable", "error", "refused")
            raise AgentFailed("server", f"{reply.kind}: {reply}", spent=spent)
        action = without_thoughts(reply.text)
        self._messages.append(("assistant", action))
        read, written = (None, None) if reply.usage is None else reply.usage
        return Said(action, reply.text, read, written, reply.tokens)

    async def close(self) -> None:
        """Connections are shared."""


def _prompt(observation: Mapping[str, Any]) -> str:
    """What an agent reads at a turn.

    >>> _prompt({"task": "Predict y.", "feedback": "valid", "turn": 1, "max_turns": 4})
    'valid\\n\\n3 of 4 turns are left.'
    """
    turn, most = int(observation["turn"]), int(observation["max_turns"])
    text = str(observation["feedback"] if turn else observation["task"])
    return f"{text}\n\n{most - turn} of {most} turns are left."
