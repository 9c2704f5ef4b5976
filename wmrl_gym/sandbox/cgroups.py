"""Bound the memory and the number of a run's processes by control groups, where this machine lets us make one."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
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
            return Homes(1, memory, pids and _usable(pids, "pids.max")) if memory else None
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
    """``folder`` if a group can be made in it that has the file ``control``; sweeps up what killed processes left there."""
    for group in folder.glob("wmrl-*"):
        owner = group.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            with suppress(OSError):  # not empty, or swept up by someone else
                group.rmdir()
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


class WorkerGroup:
    """The control groups of one worker, which is born in them: moving a process between groups costs milliseconds.

    What a run may use is set on top of what the idle worker uses already.

    Args:
        version: 1 or 2.
        folders: the groups' folders, the one with the memory limit first.
    """

    def __init__(self, version: int, folders: list[Path]) -> None:
        self._version = version
        self._folders = folders
        self._memory = folders[0]
        self._base_bytes = self._kills_before = 0

    @classmethod
    def create(cls) -> WorkerGroup | None:
        """New groups, or None where none can be made."""
        home = homes(os.geteuid())
        if home is None:
            return None
        name = f"wmrl-{os.getpid()}-{next(_serial)}"
        made: list[Path] = []
        group = cls(home.version, [home.memory / name])
        try:
            for folder in dict.fromkeys(folder for folder in (home.memory, home.pids) if folder is not None):
                (folder / name).mkdir()
                made.append(folder / name)
        except OSError:
            for folder in made:
                folder.rmdir()
            return None
        group._folders = made
        group._forbid_swap()
        return group

    @property
    def members(self) -> list[str]:
        """The files to which a process writes 0 to join."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def _forbid_swap(self) -> None:
        name = "memory.swap.max" if self._version == 2 else "memory.swappiness"
        with suppress(OSError):  # not there on a kernel without swap
            (self._memory / name).write_text("0")

    def begin(self, limits: Limits) -> None:
        """Hold what starts from now on to ``limits``."""
        self._kills_before = self._oom_kills()
        self._base_bytes = self._unreclaimable()
        size = self._base_bytes + (limits.memory_mb << 20)
        (self._memory / ("memory.max" if self._version == 2 else "memory.limit_in_bytes")).write_text(str(size))
        with suppress(OSError):  # a peak that cannot be reset is an old kernel's; see peak_bytes
            (self._memory / ("memory.peak" if self._version == 2 else "memory.max_usage_in_bytes")).write_text("0")
        pids = self._folders[-1] / "pids.max"
        if pids.exists():
            alive = int(_read(pids.with_name("pids.current")))
            pids.write_text(str(alive - 1 + limits.processes))  # the process that will be the program is alive already

    def _unreclaimable(self) -> int:
        names = ("anon", "shmem", "kernel") if self._version == 2 else ("total_rss", "total_shmem")
        values = dict(line.split() for line in _read(self._memory / "memory.stat").splitlines())
        return sum(int(values.get(name, 0)) for name in names)

    def _oom_kills(self) -> int:
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        found = re.search(r"^oom_kill (\d+)", _read(self._memory / name), re.MULTILINE)
        return int(found[1]) if found else 0

    def ran_out(self) -> bool:
        """Whether the kernel has killed a process for want of memory since :meth:`begin`."""
        return self._oom_kills() > self._kills_before

    def peak_bytes(self) -> int | None:
        """The most memory used since :meth:`begin`, above what was used then; None where the kernel does not tell."""
        if self._version == 2:
            return None  # its peak is reset per open file only, and not before Linux 6.12
        return max(int(_read(self._memory / "memory.max_usage_in_bytes") or 0) - self._base_bytes, 0)

    def close(self) -> None:
        """Remove the groups. Every process in them must have ended."""
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()
