"""Where an untrusted program lives: how its supervisor prepares the place, sees who is there, and ends everything."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from typing import Any, Protocol

from . import kernel

WORKSPACE, DATA, STORE = "/workspace", "/data", "/store"
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV
_INODES = 65536


class Enclosure(Protocol):
    """A place for one run."""

    workspace: str
    isolated: bool

    def seal(self) -> None:
        """Take away what the program needed only until it had started."""
        ...

    def prepare(self, header: dict[str, Any]) -> None:
        """Make the place fit one request: its size and its data."""
        ...

    def members(self) -> list[int]:
        """The processes that live here, without the supervisor."""
        ...

    def kill(self) -> None:
        """Kill every process that lives here; they remain to be waited for."""
        ...


class OwnNamespace:
    """A PID namespace whose first process is the supervisor; the mounts are as bubblewrap left them."""

    workspace = WORKSPACE
    isolated = True

    def seal(self) -> None:
        """Nothing: there is no privilege left to do anything with."""

    def prepare(self, header: dict[str, Any]) -> None:
        """Nothing: bubblewrap has mounted what this one run needs."""

    def members(self) -> list[int]:
        """Everyone in the namespace but its first process."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]

    def kill(self) -> None:
        """Kill them all at once: nobody can fork out of it, and no new session escapes it."""
        if os.getpid() != 1:
            raise RuntimeError(f"only the first process of a namespace may kill all others, and this is process {os.getpid()}")
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return


class NestedNamespace(OwnNamespace):
    """A fresh user, PID, mount and IPC namespace inside bubblewrap's, made by :func:`clone_into_namespaces`.

    Args:
        keep: folders under ``/tmp`` that must stay visible although the run gets a ``/tmp`` of its own, such as an interpreter's.
    """

    def __init__(self, keep: list[str]) -> None:
        kernel.mount("proc", "/proc", "proc", flags=_PLAIN | kernel.MS_NOEXEC)
        kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in keep}
        kernel.mount("tmpfs", "/tmp", "tmpfs", flags=_PLAIN, options=f"size=1m,nr_inodes={_INODES},mode=0755")
        for name, target in (("workspace", WORKSPACE), ("shm", "/dev/shm"), ("tmp", "/tmp")):
            os.mkdir(f"/tmp/{name}")
            os.chmod(f"/tmp/{name}", 0o1777 if name != "workspace" else 0o755)
            kernel.mount(f"/tmp/{name}", target, flags=kernel.MS_BIND)
        for path, fd in kept.items():
            os.makedirs(path, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{fd}", path, flags=kernel.MS_BIND | kernel.MS_REC)
            os.close(fd)

    def seal(self) -> None:
        """Make /proc read-only, so that the program cannot undo that it is the first to be killed when memory runs out."""
        kernel.mount("none", "/proc", flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | _PLAIN | kernel.MS_NOEXEC)

    def prepare(self, header: dict[str, Any]) -> None:
        """Size the writable file system, show this run's data and hide all other runs'."""
        size = f"size={header['file_mb']}m,nr_inodes={_INODES}"
        kernel.mount("tmpfs", WORKSPACE, "tmpfs", flags=_PLAIN | kernel.MS_REMOUNT, options=size)
        if header["slot"] is not None:
            kernel.mount(f"{STORE}/{header['slot']}", DATA, flags=kernel.MS_BIND)
            read_only = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
            kernel.mount("none", DATA, flags=read_only | _PLAIN)
        kernel.mount("tmpfs", STORE, "tmpfs", flags=_PLAIN | kernel.MS_RDONLY, options="size=4k,nr_inodes=2")


class Descendants:
    """No isolation: a folder on the host, and the supervisor's descendants."""

    isolated = False

    def __init__(self, workspace: str) -> None:
        kernel.set_child_subreaper()
        self.workspace = workspace

    def seal(self) -> None:
        """Nothing: it is not isolated."""

    def prepare(self, header: dict[str, Any]) -> None:
        """Nothing: the host has made the folder."""

    def members(self) -> list[int]:
        """Every descendant, orphans included, whatever session or process group it is in."""
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            children = _children(waiting.pop())
            found += children
            waiting += children
        return found

    def kill(self) -> None:
        """Kill them one by one, until there is none that is not dead already."""
        while True:
            alive = [pid for pid in self.members() if _is_alive(pid)]
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not alive:
                return
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def clone_into_namespaces() -> int:
    """Fork into fresh user, PID, mount and IPC namespaces, with this user mapped to itself; 0 in the child.

    The network namespace is bubblewrap's, which holds nothing but a loopback device of its own: a new one costs milliseconds, and
    only one run lives in it at a time.
    """
    user, group = os.getuid(), os.getgid()
    pid = kernel.clone(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    if pid == 0:
        kernel.set_dumpable(True)  # the maps of a process that is not belong to root; nobody else is here yet
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        kernel.set_dumpable(False)
    return pid


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def put_file(slot: str, name: str, content: bytes) -> None:
    """Store one file of a data folder; ``name`` is relative to it. A name ending in a slash is an empty folder."""
    path = os.path.join(STORE, slot, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not path.endswith("/"):
        with open(path, "wb") as file:
            file.write(content)


def drop_slot(slot: str) -> None:
    """Forget a data folder."""
    shutil.rmtree(os.path.join(STORE, slot), ignore_errors=True)
