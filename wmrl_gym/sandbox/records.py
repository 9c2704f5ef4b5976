"""What is kept of runs: their results on disk, so that none is run twice, and what they cost."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wmrl_gym.files import cache_home
from wmrl_gym.threads import tell_when_forked

from .base import ExecutionResult, Limits
from .data_folders import DataFolder
from .visible import hide

_FORMAT = 1


def run_key(code: str, data: DataFolder | None, limits: Limits, *, place: str = "") -> str:
    """What names a run: a hash of its code, the content of its data folder, its limits, the interpreter, the libraries, and
    ``place``, the sandbox."""
    digest = hashlib.sha256()
    parts = [str(_FORMAT), sys.version, _versions(), place, json.dumps(asdict(limits)), _content_hash(data) if data else ""]
    for part in parts:
        digest.update(f"{len(part)} {part}".encode())
    digest.update(code.encode(errors="surrogatepass"))
    return digest.hexdigest()


@functools.cache
def _versions() -> str:
    """The versions of what a script computes with."""
    found = []
    for name in ("numpy", "pandas", "scipy", "scikit-learn", "torch"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


@functools.lru_cache(maxsize=64)
def _content_hash(data: DataFolder) -> str:
    digest = hashlib.sha256()
    for name, content in data.contents():
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


class RunCache:
    """A folder with a file for each run whose result depends on nothing but the run.

    Runs that reached a limit of time, and runs of which nothing is known, are not kept: they may end otherwise next time.

    Args:
        folder: where the files are; made when it is first written to. No sandbox shows it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        hide(folder)

    @classmethod
    def open(cls, cache: bool | str | Path) -> RunCache | None:
        """The cache that an argument stands for: a folder, True for one in the user's cache folder, False for none."""
        if cache is False:
            return None
        if cache is not True:
            return cls(Path(cache))
        return cls(cache_home() / "runs")

    def read(self, key: str) -> ExecutionResult | None:
        """What the run returned when it was done; it has cost nothing this time. None if it is not known."""
        try:
            document: dict[str, Any] = json.loads(self._path(key).read_text(encoding="utf-8", errors="surrogatepass"))
            submission = document.pop("submission")
            known = ExecutionResult(**document, submission=None if submission is None else base64.b64decode(submission))
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not there, or half written by a machine that went down: run it again
        return replace(known, wall_s=0.0, cpu_s=0.0)

    def write(self, key: str, result: ExecutionResult) -> None:
        """Keep a result, if it is one that would come again.

        Raises:
            OSError: the folder cannot be written; the message names it and what to set.
        """
        if result.failed is not None or result.exceeded is not None or result.exit_code is None or result.exit_code < 0:
            return
        document = asdict(result)
        document["submission"] = None if result.submission is None else base64.b64encode(result.submission).decode()
        try:
            self._write(self._path(key), document)
        except OSError as error:
            advice = "pass another folder as cache=, or cache=False, or set WMRL_HOME to a folder that can be written"
            raise OSError(
                error.errno, f"the cache of runs cannot be written ({error.strerror}): {advice}", str(self.folder)
            ) from error

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
                json.dump(document, file)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


@dataclass(frozen=True, slots=True)
class Costs:
    """What many runs took together.

    Args:
        runs: really executed.
        cached: answered without executing anything.
        lost: of which nothing is known.
        cpu_s: CPU seconds.
        wall_s: wall-clock seconds, of all runs one after the other.
        peak_memory_mb: MiB of the run that used most.
    """

    runs: int = 0
    cached: int = 0
    lost: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_mb: float = 0.0


class CostLog:
    """Adds up costs; safe to use from any number of threads.

    Args:
        path: a file to which each run's line is added; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._total = Costs()
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: a thread of the parent may hold the lock for ever."""
        self._lock = threading.Lock()

    @property
    def total(self) -> Costs:
        """All runs so far."""
        with self._lock:
            return self._total

    def add(self, result: ExecutionResult, *, cached: bool, priority: int = 0, waited_s: float = 0.0) -> None:
        """Book one run.

        Raises:
            OSError: the file cannot be written; the run is added up all the same.
        """
        with self._lock:
            before = self._total
            self._total = replace(
                before,
                runs=before.runs + (not cached),
                cached=before.cached + cached,
                lost=before.lost + (result.failed is not None),
                cpu_s=before.cpu_s + result.cpu_s,
                wall_s=before.wall_s + result.wall_s,
                peak_memory_mb=max(before.peak_memory_mb, result.peak_memory_mb),
            )
            if self.path is not None:
                self._write(result, cached=cached, priority=priority, waited_s=waited_s)

    def _write(self, result: ExecutionResult, *, cached: bool, priority: int, waited_s: float) -> None:
        assert self.path is not None
        full = asdict(result)
        names = ("exit_code", "exceeded", "submission_problem", "failed", "wall_s", "cpu_s", "peak_memory_mb")
        line = {"cached": cached, "priority": priority, "waited_s": max(waited_s, 0.0), **{name: full[name] for name in names}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            advice = "pass another file as log=, or none"
            raise OSError(
                error.errno, f"the log of runs cannot be written ({error.strerror}): {advice}", str(self.path)
            ) from error
