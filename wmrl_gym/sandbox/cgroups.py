"""Bound the memory and the number of a run's processes by control groups, where this machine lets us make one."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .base import Limits

_ROOT = Path("/sys/fs/cgroup")
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Homes:
    """Groups in which new ones may be made.

    Args:
        version: 1 or 2.
        memory: the folder for memory limits.
        pids: the folder for process limits; the same one in version 2, None where there is none.
    """

    version: int
    memory: Path
    pids: Path | None


@cache
def homes(uid: int) -> Homes | None:
    """Where user ``uid`` (this process's effective user) may make groups that limit memory; None if nowhere."""
    del uid  # it is what the answer depends on
    lines = [line.split(":", 2) for line in _read(Path("/proc/self/cgroup")).splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            memory = _usable(_below(_ROOT / "memory", path), "memory.limit_in_bytes")
            pids = next((_below(_ROOT / "pids", path) for _, names, path in lines if "pids" in names.split(",")), None)
            return memory and Homes(1, memory, pids and _usable(pids, "pids.max"))
    for _, controllers, path in lines:
        if controllers == "":
            own = _below(_ROOT, path)
            for folder in (own, *own.parents):
                if folder.is_relative_to(_ROOT) and (home := _usable(folder, "memory.max")) is not None:
                    return Homes(2, home, _usable(home, "pids.max"))
    return None


def _below(root: Path, path: str) -> Path:
    """The folder of group ``path``; inside a container the root of what is mounted is often the group itself."""
    folder = root / path.lstrip("/")
    return folder if folder.is_dir() else root


def _usable(folder: Path, control: str) -> Path | None:
    """``folder`` if a group can be made in it that has the file ``control``."""
    probe = folder / f"wmrl-{os.getpid()}-probe-{next(_serial)}"
    try:
        probe.mkdir()
    except OSError:
        return None
    try:
        return folder if os.access(probe / control, os.W_OK) else None
    finally:
        probe.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(slots=True)
class RunGroup:
    """The control groups of one run; empty until a process is written to each of :attr:`fds`.

    Args:
        version: 1 or 2.
        folders: the groups' folders, the one with the memory limit first.
        fds: their ``cgroup.procs``, open for writing. They are opened here because the kernel asks who opened them, not who writes.
    """

    version: int
    folders: list[Path]
    fds: list[int] = field(default_factory=list)

    @classmethod
    def create(cls, limits: Limits) -> RunGroup | None:
        """Groups that hold a run to ``limits``, or None where none can be made."""
        home = homes(os.geteuid())
        if home is None:
            return None
        name = f"wmrl-{os.getpid()}-{next(_serial)}"
        group = cls(home.version, [])
        try:
            for folder in dict.fromkeys(folder for folder in (home.memory, home.pids) if folder is not None):
                (folder / name).mkdir()
                group.folders.append(folder / name)
            group._limit(limits)
            group.fds += [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in group.folders]
        except OSError:
            group.close()
            return None
        return group

    def _limit(self, limits: Limits) -> None:
        size = str(limits.memory_mb << 20)
        names = ("memory.max", "memory.swap.max") if self.version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        (self.folders[0] / names[0]).write_text(size)
        swap = self.folders[0] / names[1]
        if swap.exists():
            swap.write_text("0" if self.version == 2 else size)
        if (self.folders[-1] / "pids.max").exists():
            (self.folders[-1] / "pids.max").write_text(str(limits.processes))

    def oom_kills(self) -> int:
        """How many of the run's processes the kernel has killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        found = re.search(r"^oom_kill (\d+)", _read(self.folders[0] / name), re.MULTILINE)
        return int(found[1]) if found else 0

    def peak_bytes(self) -> int:
        """The most memory that the run has used."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return int(_read(self.folders[0] / name).strip() or 0)

    def close(self) -> None:
        """Remove the groups. Every process in them must have ended."""
        while self.fds:
            os.close(self.fds.pop())
        for folder in self.folders:
            with suppress(FileNotFoundError):
                folder.rmdir()
        self.folders.clear()
