"""What a set of processes uses, read from /proc."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def reaped_cpu_s() -> float:
    """CPU seconds of this process's children that have ended and been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of the processes ``pids``, and of their children that they have waited for."""
    total = 0
    for pid in pids:
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 14:
            total += sum(map(int, fields[11:15]))
    return total / _TICK


def exact_cpu_s(pid: int) -> float:
    """CPU seconds of process ``pid`` alone, not rounded to clock ticks."""
    return time.clock_gettime((~pid << 3) | 2)  # the number of a process's CPU clock, as clock_getcpuclockid() makes it


def private_bytes(pids: Iterable[int]) -> int:
    """Bytes of memory that the processes ``pids`` do not share with anyone, such as the process that they were forked from."""
    total = 0
    for pid in pids:
        detailed = _read(pid, "smaps_rollup").splitlines()
        if detailed:
            total += sum(int(line.split()[1]) << 10 for line in detailed if line.startswith((b"Private_", b"Swap:")))
        else:
            plain = _read(pid, "statm").split()  # it refuses to be read in detail: count what it may share as its own
            total += (int(plain[1]) - int(plain[2])) * _PAGE if len(plain) > 2 else 0
    return total


def resident_bytes(pid: int) -> int:
    """Bytes of memory that process ``pid`` has, shared or not."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def file_bytes(folder: str) -> int:
    """Bytes in use on the file system of ``folder``."""
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has just ended
