"""The trusted process beside an untrusted program: starts it, bounds it, ends it, and reports what it did."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import sys
import traceback
from time import monotonic
from typing import NoReturn

from . import kernel
from .enclosures import Enclosure, drop_slot, put_file
from .limits import Limits, kernel_limits, lower_limit
from .outputs import read_submission
from .program import prepare_as_script, run_as_script
from .protocol import Message, borrowed, receive, send
from .seccomp import refuse_dangerous_calls
from .warmup import copy_pages
from .watch import Program, Watch

_READ = 1 << 16
_READY, _STARTED = b"ready", b"started"


class SetupFailed(RuntimeError):
    """A program could not be started as it should be: that is this side's fault, and no verdict on its code."""


def start_program(enclosure: Enclosure, hot: array.array[int]) -> Program:
    """Fork the process that will become the untrusted program, ahead of the request: forking is then off the request's path.

    Args:
        enclosure: where it is to live.
        hot: what :func:`find_hot_ranges` returned.

    Raises:
        SetupFailed: it could not give up its privileges.
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
    with borrowed(left) as sock:
        said, listeners, _, _ = socket.recv_fds(sock, len(_READY), 1)
    if said != _READY:
        raise SetupFailed("the process for the program did not start; its error is above")
    enclosure.seal()
    return Program(pid, left, (out[0], err[0]), listeners[0] if listeners else None)


def _socketpair() -> tuple[int, int]:
    left, right = socket.socketpair()
    return left.detach(), right.detach()


def _await_script(go: int, outputs: tuple[int, int], *, isolated: bool, hot: array.array[int]) -> NoReturn:
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    # Moved first to numbers that none of them is to have in the end.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (null, *outputs, go, 2)]
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    sys.stderr = os.fdopen(4, "w", closefd=False)
    os.closerange(5, max(moved) + 1024)
    if isolated:
        kernel.drop_capabilities()
    kernel.set_no_new_privileges()
    listener = refuse_dangerous_calls(isolated=isolated)
    kernel.set_dumpable(True)
    _die_first()
    os.umask(0o022)
    prepare_as_script()
    copy_pages(hot)
    sys.stderr = sys.__stderr__
    os.close(4)
    with borrowed(3) as sock:
        socket.send_fds(sock, [_READY], [] if listener is None else [listener])
        if listener is not None:
            os.close(listener)
        instructions = b"".join(iter(lambda: sock.recv(_READ), b""))
    if not instructions:
        os._exit(0)  # the supervisor is gone, or has no work
    _, folder, *limits = instructions.decode().split("\n")
    try:
        for line in limits:
            lower_limit(*map(int, line.split()))
        os.chdir(folder)
        os.write(3, _STARTED)
        os.close(3)
    except BaseException as error:
        os.write(3, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    run_as_script(os.path.join(folder, "solution.py"))


def _die_first() -> None:
    """When memory runs out the kernel is to kill this process, and not those around it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError as error:
        if error.errno != errno.EROFS:  # whoever made it read-only has seen to it
            raise


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
    limits = Limits(**header["limits"])
    try:
        enclosure.prepare(header)
        _write_script(enclosure.workspace, message.payload)
        watch = Watch(limits, enclosure, program, count_memory=header["watch_memory"])
        _let_go(program, limits, enclosure)
        exceeded = watch.until_end(channel, host)
        wall_s = monotonic() - watch.started
        exit_code, exceeded = watch.end_all(exceeded)
    except EOFError:
        raise
    except Exception as error:  # nothing is known about the code; the host is told why
        enclosure.kill()
        send(channel, {"op": "failed", "why": f"{type(error).__name__}: {error}"})
        raise
    submission, problem = read_submission(os.path.join(enclosure.workspace, "submission.csv"), limit_mb=limits.file_mb)
    texts = [capture.text() for capture in watch.captures]
    report = {
        "op": "done", "exit_code": None if exceeded else exit_code, "exceeded": exceeded,
        "wall_s": wall_s, "cpu_s": watch.cpu_s(), "peak_bytes": watch.peak_memory(),
        "stdout": texts[0], "stderr": texts[1], "problem": problem,
    }  # fmt: skip
    send(channel, report, submission or b"")


def _let_go(program: Program, limits: Limits, enclosure: Enclosure) -> None:
    """Let the program have its limits and its script.

    Raises:
        SetupFailed: it could not take its limits.
    """
    lines = (f"{kind} {value}" for kind, value in kernel_limits(limits, isolated=enclosure.isolated).items())
    with borrowed(program.go) as sock:
        sock.sendall("\n".join(["go", enclosure.workspace, *lines]).encode())
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(_READ), b""))
    os.close(program.go)
    if answer != _STARTED:
        raise SetupFailed(f"the program could not be set up: {answer.decode(errors='replace') or 'it was killed'}")


def _write_script(folder: str, code: bytes) -> None:
    fd = os.open(os.path.join(folder, "solution.py"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(code)
