"""What the tests see of this machine's processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Names the calling process, so that it can be found from outside of its namespace.
NAME_ME = "import ctypes; ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)\n"


def named(name: str) -> list[int]:
    """The processes of that name, wherever they live."""
    return [pid for pid in _all() if _read(pid, "comm").strip() == name]


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``."""
    parents = {child: _parent(child) for child in _all()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return found - {pid}


def children(pid: int) -> set[int]:
    """The processes right below ``pid``."""
    return {child for child in _all() if _parent(child) == pid}


def below(ancestor: int, name: str) -> set[int]:
    """The processes below ``ancestor`` of that name."""
    return {pid for pid in descendants(ancestor) if _read(pid, "comm").strip() == name}


def kill(pid: int) -> None:
    """Kill a process that this test started; it may have died with another one."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        os.sched_yield()


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
