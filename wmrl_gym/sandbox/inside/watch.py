"""Follow a running program: its output, its time, its memory and its processes, until it ends or goes beyond a limit."""

from __future__ import annotations

import os
import resource
import select
import signal
from dataclasses import dataclass
from time import monotonic

from . import usage
from .enclosures import Enclosure
from .limits import Limits, own_cpu_limit
from .outputs import Capture
from .seccomp import answer

_TICK_MS = 50
_KILLED_FROM = 0.75
"""The share of the machine's own limit of CPU time from which on the kernel may kill: it counts whole ticks, and we do not."""
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Program:
    """A forked process that has given up every privilege and waits for its script.

    Args:
        pid: its process id.
        go: a socket; what is written there, up to its end, are its last instructions; it answers that it has started.
        outputs: the ends of its standard output and error to read from.
        listener: where its calls arrive that are to be answered here (see :func:`seccomp.answer`); None if none do.
    """

    pid: int
    go: int
    outputs: tuple[int, int]
    listener: int | None = None


class Watch:
    """Follows one running program until it ends or exceeds a limit."""

    def __init__(self, limits: Limits, enclosure: Enclosure, program: Program, *, count_memory: bool) -> None:
        self.captures = [Capture(limits.output_kb << 10) for _ in program.outputs]
        self.peak_bytes = 0
        self._resident_before = usage.resident_bytes(program.pid)
        self._limits = limits
        self._cpu_limit_s = min(limits.cpu_s, own_cpu_limit())
        self._memory = Memory(enclosure) if count_memory else None
        self._enclosure = enclosure
        self._program = program
        self._open = dict(zip(program.outputs, self.captures, strict=True))
        self._status: int | None = None
        self._next_look = 0.0
        self._cpu_before = usage.reaped_cpu_s() + usage.exact_cpu_s(program.pid)
        self._lost = usage.LostTime()
        self.started = monotonic()

    def until_end(self, channel: int, host: int) -> str | None:
        """Block until the program ends; name the limit that it exceeded, if any.

        Raises:
            EOFError: the host is gone.
        """
        poll = select.poll()
        ended = os.pidfd_open(self._program.pid)
        for fd in (*self._open, ended, host):
            poll.register(fd, select.POLLIN)
        poll.register(channel, 0)
        listener = self._program.listener
        if listener is not None:
            poll.register(listener, select.POLLIN)
        while True:
            left_ms = (self.started + self._limits.wall_s - monotonic()) * 1000
            happened = poll.poll(max(min(_TICK_MS, left_ms), 0))
            events = [fd for fd, _ in happened]
            if host in events or channel in events:
                raise EOFError("the host is gone")
            for fd in [fd for fd in events if fd in self._open]:
                if not self._take(fd):
                    poll.unregister(fd)
            for fd, event in happened:
                if fd == listener and event & select.POLLIN:
                    answer(fd)
                elif fd == listener:
                    poll.unregister(fd)  # nobody is left who could ask
            if ended in events:
                return None
            exceeded = self._exceeded()
            if exceeded is not None:
                return exceeded

    def _take(self, fd: int) -> bool:
        data = os.read(fd, _READ)
        self._open[fd].write(data)
        if not data:
            del self._open[fd]
        return bool(data)

    def _exceeded(self) -> str | None:
        if monotonic() - self.started >= self._limits.wall_s:
            return "wall"
        if monotonic() < self._next_look:
            return None
        self._next_look = monotonic() + _TICK_MS / 1000
        self._reap(os.WNOHANG)
        if self.cpu_s() >= self._cpu_limit_s:
            return "cpu"
        members = self._enclosure.members()
        if len(members) > self._limits.processes and not self._enclosure.isolated:
            return "processes"
        if self._memory is not None:
            used = self._memory.used(members)
            self.peak_bytes = max(self.peak_bytes, used)
            if used > self._limits.memory_mb << 20:
                return "memory"
        return None

    def cpu_s(self) -> float:
        """CPU seconds of everything that has lived here since the program was let go."""
        used = usage.cpu_times(self._enclosure.members())
        reaped = usage.reaped_cpu_s()
        lost = self._lost.after(used, reaped)
        return max(reaped + sum(own + children for own, children in used.values()) + lost - self._cpu_before, 0.0)

    def peak_memory(self) -> int:
        """Bytes of memory at their highest, as far as this process can know."""
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        return max(self.peak_bytes, largest - self._resident_before)

    def _reap(self, options: int) -> bool:
        """Wait for any child; False when there is none (left)."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return False
            if pid == self._program.pid:
                self._status = status
            if pid == 0:
                return True

    def end_all(self, exceeded: str | None) -> tuple[int | None, str | None]:
        """Kill whatever is left, take the rest of its output, and return the program's exit code and the limit that ended it.

        Args:
            exceeded: what :meth:`until_end` returned.
        """
        if self._status is None:
            pid, status = os.waitpid(self._program.pid, os.WNOHANG)
            self._status = status if pid else None
        self._enclosure.kill()
        self._reap(0)
        for fd in list(self._open):
            while self._take(fd):
                pass
        exit_code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        ends = min(self._limits.cpu_s, _KILLED_FROM * own_cpu_limit())
        used = self.cpu_s()
        if exit_code == -signal.SIGXCPU or (exit_code == -signal.SIGKILL and used >= ends):
            exceeded = "cpu"
        if exceeded is None and used >= self._cpu_limit_s:  # spent since the last look, or found as the children were waited for
            exceeded = "cpu"
        if self._memory is not None and self._memory.ran_out():
            exceeded = "memory"
        return exit_code, exceeded


class Memory:
    """Counts the memory of a run's processes, of its files, and what the kernel holds for it.

    In a container its control group knows; elsewhere the processes are asked.
    """

    def __init__(self, enclosure: Enclosure) -> None:
        self._enclosure = enclosure
        group = usage.ContainerGroup() if enclosure.in_container else None
        self._group = group if group is not None and group.known else None
        self._before = self._group.used() if self._group is not None else 0
        self._kills_before = self._group.kills() if self._group is not None else 0
        self._sockets = usage.SocketMemory() if self._group is None else None

    def used(self, members: list[int]) -> int:
        """Bytes in use at this moment by the processes ``members``."""
        if self._group is not None:
            return max(self._group.used() - self._before, 0)
        used = usage.memory_bytes(members, lent=self._enclosure.lent) + usage.kernel_bytes(members)
        if self._sockets is not None and self._enclosure.isolated:
            used += self._sockets.held(members)
        return used + (usage.file_bytes(self._enclosure.writable) if self._enclosure.isolated else 0)

    def ran_out(self) -> bool:
        """Whether the kernel has killed a process for want of memory, as far as can be seen from here."""
        return self._group is not None and self._group.kills() > self._kills_before
