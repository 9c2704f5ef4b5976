"""Results of runs on disk: the same code on the same data within the same limits is run once."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .base import ExecutionResult, Limits
from .data import DataFolder

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
        folder: where the files are; made when it is first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, cache: bool | str | Path) -> RunCache | None:
        """The cache that an argument stands for: a folder, True for one in the user's cache folder, False for none."""
        if cache is False:
            return None
        if cache is not True:
            return cls(Path(cache))
        if "WMRL_HOME" in os.environ:
            return cls(Path(os.environ["WMRL_HOME"], "runs"))
        import platformdirs

        return cls(Path(platformdirs.user_cache_dir("wmrl-gym"), "runs"))

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
        """Keep a result, if it is one that would come again."""
        if result.failed is not None or result.exceeded is not None or result.exit_code is None or result.exit_code < 0:
            return
        document = asdict(result)
        document["submission"] = None if result.submission is None else base64.b64encode(result.submission).decode()
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
                json.dump(document, file)
            os.replace(name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
