"""What a set of processes uses, read from /proc, from the container's control group, and from the kernel's list of sockets."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

_TICK = os.sysconf("SC_CLK_TCK")
_PIPE_BYTES, _SMALL_PIPE_BYTES, _PIPES = 1 << 16, 2 << 12, 1024
"""What a pipe holds, what it holds once a user has very many, and how many that is."""
_FEW = 32
"""Descriptors of a process that are not looked at one by one."""
_SOCKET_BYTES = 212_992
"""What a Unix socket holds; nobody may raise it in a run."""


def reaped_cpu_s() -> float:
    """CPU seconds of this process's children that have ended and been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_times(pids: Iterable[int]) -> dict[int, tuple[float, float]]:
    """CPU seconds of each of the processes ``pids``: its own, and those of its children that it has waited for."""
    found = {}
    for pid in pids:
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 14:
            user, system, of_children, by_children = map(int, fields[11:15])
            found[pid] = ((user + system) / _TICK, (of_children + by_children) / _TICK)
    return found


class LostTime:
    """CPU seconds of processes that have ended and were added to nobody's: the kernel let go of them with nobody waiting.

    What a process had used when it was last seen must have come to whoever waited for it. What did not is counted here, so that
    no more is lost of a process than what it used after it was last seen.
    """

    def __init__(self) -> None:
        self._lost = self._reaped = 0.0
        self._seen: dict[int, tuple[float, float]] = {}

    def after(self, used: dict[int, tuple[float, float]], reaped: float) -> float:
        """All that was lost so far.

        Args:
            used: what :func:`cpu_times` says now.
            reaped: seconds of those that this process has waited for.
        """
        gone = sum(sum(times) for pid, times in self._seen.items() if pid not in used)
        come = reaped - self._reaped + sum(times[1] - self._seen.get(pid, (0.0, 0.0))[1] for pid, times in used.items())
        rounded = (len(self._seen) + len(used)) / _TICK
        if self._seen and gone - come > rounded:
            self._lost += gone - come
        self._seen, self._reaped = used, reaped
        return self._lost


def exact_cpu_s(pid: int) -> float:
    """CPU seconds of process ``pid`` alone, not rounded to clock ticks."""
    return time.clock_gettime((~pid << 3) | 2)  # the number of a process's CPU clock, as clock_getcpuclockid() makes it


def memory_bytes(pids: Sequence[int], *, lent: int) -> int:
    """Bytes of memory that the processes ``pids`` use and that this process and the one it was forked from do not.

    Pages that several of ``pids`` share, such as forked copies of one array, count once. Files are not counted (see
    :func:`file_bytes`), nor what the kernel holds for a process (see :func:`kernel_bytes`).

    Args:
        pids: processes forked from this one, and their descendants.
        lent: how many processes outside of ``pids`` have the memory that these started with: 2 for this one and the one it was
            forked from, 1 where there is no other.
    """
    if len(pids) == 1:
        return _private_bytes(_detailed(pids[0]), pids[0])
    total = 0
    for pid in pids:
        each = _detailed(pid)
        total += each["Pss_Anon"] + each["SwapPss"] if "Pss_Anon" in each else _private_bytes(each, pid)
    # Each page that was there before counts 1 in all over everyone who has it. Some of them may not be looked into from here, but
    # have the same pages as this process, with the same share of each.
    ours = _detailed(os.getpid())
    private = ours.get("Private_Dirty", 0)
    shared, whole = ours.get("Pss_Anon", 0) - private, ours.get("Anonymous", 0) - private
    return max(total + lent * shared - whole, 0)


def _private_bytes(detailed: dict[str, int], pid: int) -> int:
    if detailed:
        return min(detailed["Private_Dirty"], detailed["Anonymous"]) + detailed["Swap"]
    plain = _read(pid, "statm").split()  # it refuses to be read in detail: count what it may share as its own
    return (int(plain[1]) - int(plain[2])) * os.sysconf("SC_PAGE_SIZE") if len(plain) > 2 else 0


def _detailed(pid: int) -> dict[str, int]:
    """The bytes of each kind of memory of a process; empty if it has ended, or refuses."""
    lines = (line.split() for line in _read(pid, "smaps_rollup").splitlines()[1:])
    return {words[0].rstrip(b":").decode(): int(words[1]) << 10 for words in lines}


def kernel_bytes(pids: Iterable[int]) -> int:
    """Bytes that the kernel holds for the processes ``pids``: page tables, and what is written to pipes and not yet read.

    What is in a pipe cannot be seen from outside, so that each counts as full.
    """
    tables, pipes = 0, set()
    for pid in pids:
        for line in _read(pid, "status").splitlines():
            if line.startswith(b"VmPTE:"):
                tables += int(line.split()[1]) << 10
        with suppress(OSError):
            names = os.listdir(f"/proc/{pid}/fd")
            if len(names) <= _FEW:
                continue
            for name in names:
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("pipe:"):
                        pipes.add(target)
    large = min(len(pipes), _PIPES)
    return tables + large * _PIPE_BYTES + (len(pipes) - large) * _SMALL_PIPE_BYTES


class SocketMemory:
    """Bytes that wait in the Unix sockets of this network namespace, bound, paired or in flight, as the kernel lists them."""

    _REQUEST = struct.pack(
        "=IHHIIBBHIIIII", 40, 20, 0x301, 1, 0, socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x10, 0xFFFFFFFF, 0xFFFFFFFF
    )
    _QUEUES, _DONE, _ERROR = 4, 3, 2
    _DATAGRAM_BYTES = 10 * _SOCKET_BYTES  # what waits at one is listed in part only: count it as full

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        with suppress(OSError):
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4)
            self._netlink.settimeout(1.0)
            if self._listed() is None:
                self.close()

    def close(self) -> None:
        """Let go of the socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def held(self, pids: Iterable[int]) -> int:
        """Bytes at this moment; where the kernel does not list sockets, as many as those of ``pids`` could hold."""
        listed = self._listed()
        return _socket_bound(pids) if listed is None else listed

    def _listed(self) -> int | None:
        """The sum over all sockets, or None where the kernel does not tell."""
        if self._netlink is None:
            return None
        total = 0
        try:
            self._netlink.send(self._REQUEST)
            while True:
                data = self._netlink.recv(1 << 16)
                while len(data) >= 16:
                    length, kind = struct.unpack_from("=IH", data)
                    if kind == self._DONE:
                        return total
                    if kind == self._ERROR or length < 16:
                        return None
                    datagrams = data[17] == socket.SOCK_DGRAM
                    total += self._waiting(data[32:length]) + (self._DATAGRAM_BYTES if datagrams else 0)
                    data = data[(length + 3) & ~3 :]
        except OSError:
            return None

    def _waiting(self, attributes: bytes) -> int:
        """What waits to be read here, whose sender may be gone, and what was sent from here."""
        while len(attributes) >= 4:
            length, kind = struct.unpack_from("=HH", attributes)
            if kind == self._QUEUES and length >= 12:
                return sum(struct.unpack_from("=II", attributes, 4))
            if length < 4:
                break
            attributes = attributes[(length + 3) & ~3 :]
        return 0


def _socket_bound(pids: Iterable[int]) -> int:
    found = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sum(target.startswith("socket:") for target in found) * _SOCKET_BYTES


class ContainerGroup:
    """What the control group of this container says, where the container shows it: all memory, whoever holds it.

    Args:
        root: where control groups are mounted.
    """

    _KINDS: tuple[tuple[bytes, ...], ...] = ((b"total_rss", b"total_shmem"), (b"anon", b"shmem", b"kernel"))

    def __init__(self, root: str = "/sys/fs/cgroup") -> None:
        self._folder, self._kinds = (f"{root}/memory", self._KINDS[0])
        if os.path.exists(f"{root}/memory.stat"):
            self._folder, self._kinds = root, self._KINDS[1]
        self.known = bool(self._statistics())

    def _statistics(self) -> dict[bytes, bytes]:
        lines = (line.split() for line in _content(f"{self._folder}/memory.stat").splitlines())
        return {words[0]: words[1] for words in lines}

    def used(self) -> int:
        """Bytes of memory that cannot be reclaimed."""
        found = self._statistics()
        kernel = _content(f"{self._folder}/memory.kmem.usage_in_bytes")
        return sum(int(found.get(name, 0)) for name in self._kinds) + int(kernel or 0)

    def kills(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            for line in _content(f"{self._folder}/{name}").splitlines():
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
        return 0


def resident_bytes(pid: int) -> int:
    """Bytes of memory that process ``pid`` has, shared or not."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def file_bytes(folders: Iterable[str]) -> int:
    """Bytes in use on the file systems of ``folders``, each counted once."""
    found = {}
    for folder in folders:
        with suppress(OSError):
            found[os.stat(folder).st_dev] = os.statvfs(folder)
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found.values())


def _read(pid: int, name: str) -> bytes:
    return _content(f"/proc/{pid}/{name}")  # empty if it has just ended


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
