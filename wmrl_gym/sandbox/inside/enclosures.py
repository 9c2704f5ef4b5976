"""Where an untrusted program lives: how its supervisor prepares the place, sees who is there, and ends everything."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from contextlib import suppress
from typing import Any, Protocol

from . import kernel

WORKSPACE, DATA, STORE = "/workspace", "/data", "/store"
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV
_INODES = 65536


class Enclosure(Protocol):
    """A place for one run.

    ``lent`` is how many processes outside of it have the memory that its program starts with (see :func:`usage.memory_bytes`).
    """

    workspace: str
    writable: tuple[str, ...]
    isolated: bool
    in_container: bool
    lent: int

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
    writable: tuple[str, ...] = (WORKSPACE, "/tmp", "/dev/shm")
    isolated = True
    in_container = False
    lent = 1

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


class ContainerNamespace(OwnNamespace):
    """A container with one run in it."""

    in_container = True


class NestedNamespace(OwnNamespace):
    """A fresh user, PID, mount and IPC namespace inside bubblewrap's, made by :func:`clone_into_namespaces`.

    Args:
        keep: what is under ``/tmp`` and must stay visible although the run gets a ``/tmp`` of its own, such as an interpreter.
    """

    lent = 2

    def __init__(self, keep: list[str]) -> None:
        kernel.mount("proc", "/proc", "proc", flags=_PLAIN | kernel.MS_NOEXEC)
        kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW) for path in keep}
        kernel.mount("tmpfs", "/tmp", "tmpfs", flags=_PLAIN, options=f"size=1m,nr_inodes={_INODES},mode=0755")
        for name, target in (("workspace", WORKSPACE), ("shm", "/dev/shm"), ("tmp", "/tmp")):
            os.mkdir(f"/tmp/{name}")
            os.chmod(f"/tmp/{name}", 0o1777 if name != "workspace" else 0o755)
            kernel.mount(f"/tmp/{name}", target, flags=kernel.MS_BIND)
        for path, fd in kept.items():
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink(os.readlink("", dir_fd=fd), path)
            else:
                _mount_point(path, is_folder=stat.S_ISDIR(os.fstat(fd).st_mode))
                kernel.mount(f"/proc/self/fd/{fd}", path, flags=kernel.MS_BIND | kernel.MS_REC)
            os.close(fd)

    def seal(self) -> None:
        """Make /proc read-only, so that the program cannot undo that it is the first to be killed when memory runs out."""
        kernel.mount("none", "/proc", flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | _PLAIN | kernel.MS_NOEXEC)

    def prepare(self, header: dict[str, Any]) -> None:
        """Size the writable file system, show this run's data and hide all other runs'."""
        size = f"size={header['limits']['file_mb']}m,nr_inodes={_INODES}"
        kernel.mount("tmpfs", WORKSPACE, "tmpfs", flags=_PLAIN | kernel.MS_REMOUNT, options=size)
        if header["slot"] is not None:
            kernel.mount(f"{STORE}/{header['slot']}", DATA, flags=kernel.MS_BIND)
            read_only = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
            kernel.mount("none", DATA, flags=read_only | _PLAIN)
        for path in (STORE, *header["cover"]):
            kernel.mount("tmpfs", path, "tmpfs", flags=_PLAIN | kernel.MS_RDONLY, options="size=4k,nr_inodes=2")


def _mount_point(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


class Descendants:
    """No isolation: a folder on the host, and the supervisor's descendants."""

    isolated = in_container = False
    lent = 1

    def __init__(self, workspace: str) -> None:
        kernel.set_child_subreaper()
        self.workspace = workspace
        self.writable: tuple[str, ...] = (workspace,)

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

    The network namespace is bubblewrap's, and several runs live in it one after the other: no run can make a socket that leaves
    anything behind in it (see :mod:`.seccomp`).
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
