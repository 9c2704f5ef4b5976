"""The trusted process beside an untrusted program: starts it, bounds it, ends it, and reports what it did."""

from __future__ import annotations

import array
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from time import monotonic
from typing import Any, NoReturn

from . import kernel, usage
from .capture import Capture
from .enclosures import Enclosure, drop_slot, put_file
from .prefault import copy_pages
from .program import prepare_as_script, run_as_script
from .protocol import Message, borrowed, receive, send
from .seccomp import refuse_dangerous_calls
from .submission import read_submission

_TICK_MS = 50
_READ = 1 << 16
_READY = b"ready"
# A script may reserve far more address space than it uses; what it uses is bounded by a cgroup or by the watch below.
_ADDRESS_SPACE_MB = 16384


@dataclass(frozen=True, slots=True)
class Program:
    """A forked process that has given up every privilege and waits for its script.

    Args:
        pid: its process id.
        go: a socket; what is written there, up to its end, are the process's last instructions.
        outputs: the ends of its standard output and error to read from.
    """

    pid: int
    go: int
    outputs: tuple[int, int]


def start_program(enclosure: Enclosure, hot: array.array[int]) -> Program:
    """Fork the process that will become the untrusted program, ahead of the request: forking is then off the request's path.

    Args:
        enclosure: where it is to live.
        hot: what :func:`find_hot_ranges` returned.

    Raises:
        RuntimeError: it could not give up its privileges.
    """
    out, err = os.pipe(), os.pipe()
    left, right = _socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            _await_script(right, (out[1], err[1]), isolated=enclosure.isolated, hot=hot)
        except BaseException:
            traceback.print_exc()
        os._exit(127)
    for fd in (out[1], err[1], right):
        os.close(fd)
    if os.read(left, len(_READY)) != _READY:
        raise RuntimeError("the process for the program did not start; its error is above")
    enclosure.seal()
    return Program(pid, left, (out[0], err[0]))


def _socketpair() -> tuple[int, int]:
    left, right = socket.socketpair()
    return left.detach(), right.detach()


def _await_script(go: int, outputs: tuple[int, int], *, isolated: bool, hot: array.array[int]) -> NoReturn:
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    # First out of the way of the numbers that they are to have.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (null, *outputs, go, 2)]
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    sys.stderr = os.fdopen(4, "w", closefd=False)
    os.closerange(5, max(moved) + 1024)
    if isolated:
        kernel.drop_capabilities()
    kernel.set_no_new_privileges()
    if isolated:
        refuse_dangerous_calls()
    kernel.set_dumpable(True)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out the kernel is to kill this, and not the processes around it
    os.umask(0o022)
    prepare_as_script()
    copy_pages(hot)
    os.write(3, _READY)
    sys.stderr = sys.__stderr__
    os.close(4)
    with borrowed(3) as sock:
        instructions = b"".join(iter(lambda: sock.recv(_READ), b""))
    os.close(3)
    if not instructions:
        os._exit(0)  # the supervisor is gone, or has no work
    _, folder, *limits = instructions.decode().split("\n")
    for line in limits:
        kind, value = map(int, line.split())
        resource.setrlimit(kind, (value, value))
    os.chdir(folder)
    run_as_script(os.path.join(folder, "solution.py"))


def serve(channel: int, host: int, enclosure: Enclosure, program: Program) -> None:
    """Answer one run request, and any requests about data before it.

    Args:
        channel: the socket to the host.
        host: a pidfd of the host; when the host ends, so does this.
        enclosure: where the program lives.
        program: what :func:`start_program` returned.

    Raises:
        EOFError: the host is gone.
    """
    while True:
        message = _next(channel, host)
        operation = message.header["op"]
        if operation == "put":
            put_file(message.header["slot"], message.header["name"], message.payload)
        elif operation == "drop":
            drop_slot(message.header["slot"])
        else:
            _run(channel, host, enclosure, program=program, message=message)
            return


def _next(channel: int, host: int) -> Message:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(host, select.POLLIN)
    if any(fd == host for fd, _ in poll.poll()):
        raise EOFError("the host has ended")
    return receive(channel)


def _run(channel: int, host: int, enclosure: Enclosure, *, program: Program, message: Message) -> None:
    header = message.header
    enclosure.prepare(header)
    _write_script(enclosure.workspace, message.payload)
    watch = Watch(header, enclosure, program)
    os.write(program.go, _instructions(header, enclosure))
    os.close(program.go)
    exceeded = watch.until_end(channel, host)
    wall_s = monotonic() - watch.started
    exit_code = watch.end_all()
    if exit_code in (-signal.SIGKILL, -signal.SIGXCPU) and watch.cpu_s() >= header["cpu_s"]:
        exceeded = "cpu"
    submission, problem = read_submission(os.path.join(enclosure.workspace, "submission.csv"), limit_mb=header["file_mb"])
    texts = [capture.text() for capture in watch.captures]
    report = {
        "exit_code": None if exceeded else exit_code, "exceeded": exceeded,
        "wall_s": wall_s, "cpu_s": watch.cpu_s(), "peak_bytes": watch.peak_memory(),
        "stdout": texts[0], "stderr": texts[1], "problem": problem,
    }  # fmt: skip
    send(channel, report, submission or b"")


def _write_script(folder: str, code: bytes) -> None:
    fd = os.open(os.path.join(folder, "solution.py"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(code)


def _instructions(header: dict[str, Any], enclosure: Enclosure) -> bytes:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CPU: int(header["cpu_s"]) + 2,  # the watch is exact; this ends what the watch would not see in time
        resource.RLIMIT_AS: (header["memory_mb"] + _ADDRESS_SPACE_MB) << 20,
    }
    if enclosure.isolated:
        limits[resource.RLIMIT_NPROC] = header["processes"] + 1  # the supervisor counts as well
    else:
        limits[resource.RLIMIT_FSIZE] = header["file_mb"] << 20
    return "\n".join(["go", enclosure.workspace, *(f"{kind} {value}" for kind, value in limits.items())]).encode()


class Watch:
    """Follows one running program until it ends or exceeds a limit."""

    def __init__(self, header: dict[str, Any], enclosure: Enclosure, program: Program) -> None:
        self.captures = [Capture(header["output_kb"] << 10) for _ in program.outputs]
        self.peak_bytes = 0
        self._resident_before = usage.resident_bytes(program.pid)
        self._limits = header
        self._enclosure = enclosure
        self._program = program
        self._open = dict(zip(program.outputs, self.captures, strict=True))
        self._status: int | None = None
        self._next_look = 0.0
        self._cpu_before = usage.reaped_cpu_s() + usage.exact_cpu_s(program.pid)
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
        while True:
            left_ms = (self.started + self._limits["wall_s"] - monotonic()) * 1000
            events = [fd for fd, _ in poll.poll(max(min(_TICK_MS, left_ms), 0))]
            if host in events or channel in events:
                raise EOFError("the host is gone")
            for fd in [fd for fd in events if fd in self._open]:
                if not self._take(fd):
                    poll.unregister(fd)
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
        if monotonic() - self.started >= self._limits["wall_s"]:
            return "wall"
        if monotonic() < self._next_look:
            return None
        self._next_look = monotonic() + _TICK_MS / 1000
        self._reap(os.WNOHANG)
        if self.cpu_s() >= self._limits["cpu_s"]:
            return "cpu"
        members = self._enclosure.members()
        if len(members) > self._limits["processes"] and not self._enclosure.isolated:
            return "processes"
        if self._limits["watch_memory"]:
            used = usage.private_bytes(members)
            used += usage.file_bytes(self._enclosure.workspace) if self._enclosure.isolated else 0
            self.peak_bytes = max(self.peak_bytes, used)
            if used > self._limits["memory_mb"] << 20:
                return "memory"
        return None

    def cpu_s(self) -> float:
        """CPU seconds of everything that has lived here since the program was let go."""
        return max(self._cpu_now() - self._cpu_before, 0.0)

    def peak_memory(self) -> int:
        """Bytes of memory at their highest, as far as this process can know."""
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        return max(self.peak_bytes, largest - self._resident_before)

    def _cpu_now(self) -> float:
        return usage.reaped_cpu_s() + usage.cpu_s(self._enclosure.members())

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

    def end_all(self) -> int | None:
        """Kill whatever is left, take the rest of its output, and return the program's exit code."""
        if self._status is None:
            pid, status = os.waitpid(self._program.pid, os.WNOHANG)
            self._status = status if pid else None
        self._enclosure.kill()
        self._reap(0)
        for fd in list(self._open):
            while self._take(fd):
                pass
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)
