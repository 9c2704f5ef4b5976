"""What a sandbox really enforces on this machine, found out by trying: ``wmrl sandbox check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .base import ExecutionResult, Limits, Sandbox
from .cgroups import homes

_LIMITS = Limits(wall_s=60.0, cpu_s=1.0, memory_mb=200, processes=16, file_mb=8)
_BEGIN = "import ctypes, os, signal, socket, time\nX = b'x' * (1 << 20)\n"


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that a sandbox should enforce.

    Args:
        name: for people.
        code: what tries to get past it; it prints "held" where it did.
        held: whether the sandbox held, told from the result.
    """

    name: str
    code: str
    held: Callable[[ExecutionResult], bool]


def _ended(limit: str) -> Callable[[ExecutionResult], bool]:
    return lambda result: result.exceeded == limit


def _ended_or_refused(result: ExecutionResult) -> bool:
    return result.exceeded == "memory" or (result.exit_code == 1 and "past it" not in result.stdout)


def _refused(result: ExecutionResult) -> bool:
    return result.exit_code is not None and "past it" not in result.stdout


_HOLD = "\ntime.sleep(1)\nprint('past it')\n"
PROBES = (
    Probe("memory of one process", "held = bytearray(X * 600)" + _HOLD, _ended("memory")),
    Probe(
        "memory that copies share",
        "held = []\nfor _ in range(4):\n    held.append(bytearray(X * 100))\n    if os.fork() == 0: time.sleep(60)" + _HOLD,
        _ended("memory"),
    ),
    Probe(
        "memory in files without a name",
        "fd = os.memfd_create('x')\nfor _ in range(600): os.write(fd, X)" + _HOLD,
        _ended_or_refused,
    ),
    Probe(
        "memory in shared mappings",
        "import mmap\nheld = mmap.mmap(-1, 600 << 20)\nfor _ in range(600): held.write(X)" + _HOLD,
        _ended_or_refused,
    ),
    Probe(
        "memory in sockets",
        "for _ in range(5):\n    if os.fork() == 0: break\n"
        "held = [socket.socketpair() for _ in range(400)]\nfor one, _ in held:\n"
        "    one.setblocking(False)\n    try:\n        while True: one.send(X[:65536])\n    except BlockingIOError: pass" + _HOLD,
        _ended_or_refused,
    ),
    Probe("CPU time", "while True: pass", _ended("cpu")),
    Probe(
        "CPU time of children that nobody waits for",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(12):\n    if os.fork() == 0:\n"
        "        until = time.process_time() + .3\n        while time.process_time() < until: pass\n        os._exit(0)\n"
        "time.sleep(15)\nprint('past it')",
        _ended("cpu"),
    ),
    Probe(
        "processes",
        "made = 0\ntry:\n    while made < 64:\n        made += 1\n        if os.fork() == 0: time.sleep(60)\n"
        "    print('past it')\nexcept OSError: pass",
        lambda result: result.exceeded == "processes" or _refused(result),
    ),
    Probe("files", "try: open('file', 'wb').write(X * 20)\nexcept OSError: pass\nelse: print('past it')", _refused),
    Probe("output", "os.write(1, X)", lambda result: len(result.stdout) <= 64 << 10),
    Probe(
        "network",
        "try: socket.create_connection(('127.0.0.1', 1), 1)\n"
        "except ConnectionRefusedError: print('past it')\nexcept OSError: pass",
        _refused,
    ),
    Probe(
        "system calls that reach out",
        "print(*['past it' for flags in (0x20000, 0x10000000) if ctypes.CDLL(None).unshare(flags) == 0])",
        _refused,
    ),
    Probe("files of this machine", f"try: print(open({__file__!r}).read() and 'past it')\nexcept OSError: pass", _refused),
)  # fmt: skip


def measure(sandbox: Sandbox) -> Iterator[tuple[str, bool]]:
    """Try each probe in ``sandbox``; its name, and whether the sandbox held."""
    for probe in PROBES:
        result = sandbox.run(_BEGIN + probe.code, data_dir=None, limits=_LIMITS)
        yield probe.name, result.failed is None and probe.held(result)


def counted_by() -> str:
    """How the local sandbox counts the memory of a run here."""
    found = homes(os.geteuid())
    if found is None:
        return "memory is counted by asking the run's processes, twenty times a second: no control group can be made here"
    return f"memory is held to its limit by control groups, version {found.version}"
