"""Functions and objects of this process as agents: each rollout's calls come from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from wmrl_gym.rollouts.contract import AgentFailed, Said, Start


class CallableAgent:
    """An agent for each rollout, made by a function.

    What it raises ends its rollout; so does a reply that takes longer than ``timeout_s``. Python cannot stop a thread: one that
    never ends stays until the process does, which it does not keep alive.
    :class:`~wmrl_gym.rollouts.processes.ProcessAgent` ends what hangs.

    Args:
        make: gives, for a start, ``act(observation) -> reply``, or an object with such a method. It is called once a rollout.
        timeout_s: seconds for a reply; None for as long as it takes.

    >>> agent = CallableAgent(lambda start: lambda observation: "DESCRIBE")
    >>> asyncio.run(agent.player(Start("diabetes")).reply({})).action
    'DESCRIBE'
    """

    counts_tokens = False

    def __init__(self, make: Callable[[Start], Any], *, timeout_s: float | None = None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive or None, got {timeout_s}")
        self.make, self.timeout_s = make, timeout_s

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Nothing is shared."""
        yield

    def player(self, start: Start) -> _Player:
        """The agent of one rollout."""
        return _Player(self, start)


class _Player:
    def __init__(self, agent: CallableAgent, start: Start) -> None:
        self._agent, self._start = agent, start
        self._act: Callable[[Any], Any] | None = None

    def most_tokens(self, observation: Any) -> int:
        return 0

    async def reply(self, observation: Any) -> Said:
        try:
            action = await asyncio.wait_for(_on_a_thread(self._answer, observation), self._agent.timeout_s)
        except asyncio.TimeoutError:
            raise AgentFailed("slow", f"no reply within {self._agent.timeout_s:g} s") from None
        except Exception as error:
            raise AgentFailed("raised", f"{type(error).__name__}: {error}") from error
        if action is None:
            raise AgentFailed("nothing", "it replied None")
        return Said(action, action if isinstance(action, str) else "")

    def _answer(self, observation: Any) -> Any:
        if self._act is None:
            made = self._agent.make(self._start)
            self._act = getattr(made, "act", made)
        return self._act(observation)

    async def close(self) -> None:
        """Nothing is open."""


async def _on_a_thread(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, problem = None, None
        try:
            result = function(argument)
        except Exception as error:
            problem = error
        except BaseException as error:  # SystemExit, of a script that was meant to be run alone
            problem = RuntimeError(f"{type(error).__name__}: {error}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, problem)

    threading.Thread(target=work, name="agent", daemon=True).start()
    return await done
