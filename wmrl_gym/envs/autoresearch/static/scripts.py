"""Asks a small process of its own about a script, so that no text that an agent writes can hurt the process that trains."""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from wmrl_gym.envs.autoresearch.static import facts as process
from wmrl_gym.envs.autoresearch.static.facts import LENGTH, READY, TOO_COMPLEX, Facts
from wmrl_gym.threads import tell_when_forked

_WALL_S = 120.0
"""Seconds after which an answer is given up: the bound on CPU time ends hard scripts long before."""
_DYING_S = 20.0
"""Seconds that a process may take to end once its pipe is closed."""
_LONGEST = 64 << 20
"""The longest answer that is accepted, in bytes."""
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT, -signal.SIGQUIT}
"""How the process ends where it is not its script that ends it."""
_TRIES = 2

ValueT = TypeVar("ValueT")


class ScriptUnreadable(RuntimeError):
    """Nothing is known of a script, because the process that reads scripts was lost."""


@dataclass(frozen=True, slots=True)
class Script:
    """What is known of a script before it runs.

    Args:
        error: what running it would print if it does not compile, None if it does.
        packed: its facts, packed, which are small and seldom asked for again; None if it does not compile.
    """

    error: str | None
    packed: bytes | None

    @property
    def facts(self) -> Facts | None:
        """What it says; None if it does not compile."""
        return None if self.packed is None else Facts(*marshal.loads(self.packed))


class Recent(Generic[ValueT]):
    """The values that were asked for last, as many as fit into so many bytes. Threads may share it.

    Args:
        most: bytes, keys and values together.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._kept: OrderedDict[Hashable, tuple[ValueT, int]] = OrderedDict()
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: a thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> ValueT | None:
        """The value that is kept for a key; None if none is."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return None if found is None else found[0]

    def keep(self, key: Hashable, value: ValueT, size: int) -> None:
        """Keep a value of so many bytes."""
        with self._lock:
            self.held += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = (value, size)
            while self.held > self.most:
                self.held -= self._kept.popitem(last=False)[1][1]


def read_script(code: str) -> Script:
    """Read a script, in a process that may die of it.

    A script that exceeds the bounds of that process does not compile: that is its verdict.

    Raises:
        ScriptUnreadable: the process cannot be started or was ended from outside, twice.

    >>> read_script("import os\\nprint(os.name)").facts.imports
    frozenset({'os'})
    """
    answer = _ANSWERS.get(code)
    if answer is None:
        source = code.encode("utf-8", "surrogatepass")
        answer = _READER.ask(source)
        _ANSWERS.keep(code, answer, len(answer) + 4 * len(code) + 200)
    return Script(*marshal.loads(answer))


class _Reader:
    """The process, started when it is first needed, and again when it has died."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, source: bytes) -> bytes:
        """The answer, as the process packs it."""
        ended: int | None = None
        with self._lock:
            for _ in range(_TRIES):
                begun = False
                try:
                    if self._child is None:
                        self._child = _start()
                        _receive(self._child, len(READY), monotonic() + _WALL_S)
                    begun = True
                    return self._exchanged(self._child, source)
                except TimeoutError:
                    self._end(wait_s=0.0)
                except OSError:  # its pipe is closed, or there is no process, descriptor or memory to be had
                    ended = self._end(wait_s=_DYING_S)
                    if begun and ended is not None and ended not in _FROM_OUTSIDE:
                        return marshal.dumps((TOO_COMPLEX, None))
        raise ScriptUnreadable(f"the process that reads scripts was lost (exit status {ended})")

    @staticmethod
    def _exchanged(child: subprocess.Popen[bytes], source: bytes) -> bytes:
        """Send a script and receive the answer."""
        deadline = monotonic() + _WALL_S
        _send(child, LENGTH.pack(len(source)) + source, deadline)
        (length,) = LENGTH.unpack(_receive(child, LENGTH.size, deadline))
        if length > _LONGEST:
            raise OSError(f"an answer of {length} bytes")
        return _receive(child, length, deadline)

    def _end(self, *, wait_s: float) -> int | None:
        """End the process; returns its exit status, negative for a signal, if it ended by itself within so many seconds."""
        child, self._child = self._child, None
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
        ended = child.returncode
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        return ended

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end(wait_s=0.0)

    def forked(self) -> None:
        """In a forked child: the process is the parent's."""
        if self._child is not None:
            self._child.returncode = 0  # it is not ours to wait for
        self._child, self._lock = None, threading.Lock()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(Path(process.__file__))]
    apart: dict[str, Any] = {"stderr": subprocess.DEVNULL, "cwd": "/", "env": {}, "start_new_session": True}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, **apart)
    assert child.stdin is not None
    os.set_blocking(child.stdin.fileno(), False)
    return child


def _send(child: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    assert child.stdin is not None
    fd, view = child.stdin.fileno(), memoryview(data)
    while view:
        if not _ready([], [fd], deadline):
            raise TimeoutError
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(fd, view) :]


def _receive(child: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
    assert child.stdout is not None
    fd, parts = child.stdout.fileno(), list[bytes]()
    while count:
        if not _ready([fd], [], deadline):
            raise TimeoutError
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise BrokenPipeError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _ready(read: list[int], write: list[int], deadline: float) -> bool:
    poll = select.poll()
    for fd in read:
        poll.register(fd, select.POLLIN)
    for fd in write:
        poll.register(fd, select.POLLOUT)
    return bool(poll.poll(max(0.0, deadline - monotonic()) * 1000))


_READER = _Reader()
_ANSWERS = Recent[bytes](32 << 20)
tell_when_forked(_READER)
atexit.register(_READER.close)
