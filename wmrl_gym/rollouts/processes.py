"""A user's program as an agent, in processes of its own, so that it may hang, crash or write without end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wmrl_gym.rollouts.contract import AgentFailed, Said, Start

_CHILD = Path(__file__).with_name("child.py")


class ProcessAgent:
    """``act(observation) -> reply`` of a file or a module, in a process for each rollout that is under way.

    The observation is a dict of texts and numbers. A class is made anew for each rollout, and told ``seed=`` if it takes one.
    What is printed goes nowhere. A process that has failed is ended, with all that it started, and the next rollout has another.

    Args:
        spec: ``path.py:name`` or ``module:name``: a function, a class or an object with a method ``act``.
        timeout_s: seconds for a reply.
        max_reply_bytes: a longer reply ends its rollout.

    Raises:
        ValueError: a spec of another form, or a file that is not there.
    """

    counts_tokens = False

    def __init__(self, spec: str, *, timeout_s: float = 120.0, max_reply_bytes: int = 1_000_000) -> None:
        place, colon, name = spec.rpartition(":")
        if not colon or not place or not name:
            raise ValueError(f"an agent is path.py:name or module:name, got {spec!r}")
        if place.endswith(".py") and not Path(place).is_file():
            raise ValueError(f"there is no file {place}")
        if not timeout_s > 0 or max_reply_bytes < 1:
            raise ValueError(f"timeout_s and max_reply_bytes must be positive, got {timeout_s} and {max_reply_bytes}")
        self.spec, self.timeout_s, self.max_reply_bytes = spec, timeout_s, max_reply_bytes
        self._idle: list[Process] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Processes that wait for the next rollout are ended with the block.

        Raises:
            AgentFailed: the agent cannot be loaded.
        """
        try:
            await self._load()
            yield
        finally:
            idle, self._idle = self._idle, []
            for process in idle:
                await end(process)

    def player(self, start: Start) -> _Talk:
        """The process of one rollout."""
        return _Talk(self, start)

    async def _load(self) -> None:
        talk = _Talk(self, Start(""))
        try:
            await talk.reply(None)
        except AgentFailed as failure:
            raise AgentFailed(failure.kind, f"{self.spec} cannot be loaded: {failure}") from failure
        finally:
            await talk.close()

    async def take(self) -> Process:
        """A process that waits, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(_CHILD), self.spec),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=self.max_reply_bytes,
            start_new_session=True,
        )

    def give_back(self, process: Process) -> None:
        """A process whose rollout is over, for the next one."""
        self._idle.append(process)


class _Talk:
    def __init__(self, agent: ProcessAgent, start: Start) -> None:
        self._agent, self._start = agent, start
        self._process: Process | None = None
        self._sound = True

    def most_tokens(self, observation: Any) -> int:
        return 0

    async def reply(self, observation: Any) -> Said:
        # Until it has replied: whoever is cancelled here leaves one that still talks.
        self._sound, agent = False, self._agent
        seed = self._start.chance() if self._process is None else None
        if self._process is None:
            self._process = await agent.take()
        asked = json.dumps({"seed": seed, "observation": plain(observation)})
        try:
            line = await asyncio.wait_for(_exchange(self._process, asked), agent.timeout_s)
            said = json.loads(line)
        except asyncio.TimeoutError:
            raise AgentFailed("slow", f"no reply within {agent.timeout_s:g} s") from None
        except (asyncio.LimitOverrunError, ValueError):
            raise AgentFailed("too_long", f"a reply of more than {agent.max_reply_bytes} bytes") from None
        except (EOFError, OSError):
            raise AgentFailed("died", f"its process ended by itself ({await _how(self._process)})") from None
        self._sound = True
        if "error" in said:
            raise AgentFailed("raised", said["error"])
        if said["reply"] is None:
            raise AgentFailed("nothing", "it replied None")
        return Said(said["reply"], said["reply"])

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._sound and process.returncode is None:
            self._agent.give_back(process)
        elif process is not None:
            await end(process)


async def _exchange(process: Process, asked: str) -> bytes:
    """Write one line and read one.

    Raises:
        EOFError: the process has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(asked.encode("ascii") + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


async def end(process: Process) -> None:
    """End a process and what it started, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:  # its pipes would otherwise be closed by the garbage collector, after the loop
        transport.close()


async def _how(process: Process) -> str:
    """How a process that closed its answers ended."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), 5.0)
    code = process.returncode
    return "it closed its output" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"


def plain(observation: Any) -> Any:
    """An observation as JSON has it: arrays as lists, numbers of NumPy as Python's."""
    if isinstance(observation, Mapping):
        return {key: plain(value) for key, value in observation.items()}
    if isinstance(observation, (np.ndarray, np.generic)):
        return observation.tolist()
    return observation
