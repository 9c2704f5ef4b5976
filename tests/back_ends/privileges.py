"""A local sandbox in a process with other privileges: an ordinary user's, or those of root in a namespace with one user."""

from __future__ import annotations

import ctypes
import os
import pickle
import pwd
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from wmrl_gym.sandbox import ExecutionResult, Limits

ROOT = Path(__file__).resolve().parents[2]
UID = 54321
ONE_USER = ["unshare", "--user", "--map-root-user"]
"""Before a command: root in a user namespace in which there is no other user, as in a rootless container."""
_SERVER = """
import pathlib, pickle, sys, tempfile
from wmrl_gym.sandbox import LocalSandbox
requests, answers = sys.stdin.buffer, open(int(sys.argv[1]), "wb")
with LocalSandbox(preimport=(), warm=sys.argv[2] == "warm") as sandbox:
    while True:
        try:
            code, files, limits = pickle.load(requests)
        except EOFError:
            break
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (files or {}).items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            try:
                answer = sandbox.run(code, data_dir=None if files is None else pathlib.Path(folder), limits=limits)
            except Exception as error:
                answer = error
        pickle.dump(answer, answers)
        answers.flush()
"""


def as_ordinary_user() -> list[str]:
    """Before a command: an ordinary user who can reach this interpreter, wherever it is."""
    return [sys.executable, __file__, str(UID)]


def environment(**variables: str) -> dict[str, str]:
    """Of a process that imports the package from here."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}


class SandboxElsewhere:
    """A sandbox in a process that ``command`` starts.

    Args:
        command: what to put before the interpreter, such as :data:`ONE_USER`.
        kind: "warm" or "cold".
    """

    def __init__(self, command: list[str], kind: str = "warm") -> None:
        read, write = os.pipe()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*command, sys.executable, "-c", _SERVER, str(write), kind],
            stdin=subprocess.PIPE,
            pass_fds=(write,),
            env=environment(),
        )
        os.close(write)
        self._answers = os.fdopen(read, "rb")

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`."""
        files = None
        if data_dir is not None:
            paths = [path for path in data_dir.rglob("*") if path.is_file()]
            files = {str(path.relative_to(data_dir)): path.read_bytes() for path in paths}
        with self._lock:
            assert self._process.stdin is not None
            pickle.dump((code, files, limits), self._process.stdin)
            self._process.stdin.flush()
            answer: Any = pickle.load(self._answers)
        if isinstance(answer, Exception):
            raise answer
        result: ExecutionResult = answer
        return result

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and said why
            self._process.stdin.close()
        self._process.wait(timeout=60)
        self._answers.close()


def _become_ordinary(user: str, command: list[str]) -> None:
    """Execute a command as a user, a name or a number, who can reach this interpreter, this checkout and this folder."""
    try:
        known = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        uid, gid, home = known.pw_uid, known.pw_gid, known.pw_dir
    except KeyError:  # a number may have no name
        uid, gid, home = int(user), int(user), "/nonexistent"
    _open_to_all({sys.prefix, sys.base_prefix, str(ROOT), os.getcwd()})
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.environ["HOME"] = home
    os.execvp(command[0], command)


def _open_to_all(paths: set[str]) -> None:
    """Have everyone reach ``paths`` through folders that are closed to others, in a mount namespace of this process's own."""
    closed: dict[Path, list[Path]] = {}
    for path in sorted(map(Path, paths)):
        first = next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
        if first is not None and not any(path.is_relative_to(other) for other in closed.get(first, ())):
            closed.setdefault(first, []).append(path)
    if closed:
        _call("unshare", 0x20000)
        _mount("none", "/", "", 16384 | 1 << 18)
    os.umask(0o022)
    for folder, inside in closed.items():
        opened = {path: os.open(path, os.O_PATH) for path in inside}
        _mount("tmpfs", str(folder), "tmpfs", 0, "mode=0755")
        for path, fd in opened.items():
            path.mkdir(parents=True)
            _mount(f"/proc/self/fd/{fd}", str(path), "", 4096 | 16384)
            os.close(fd)
    os.chdir(os.getcwd())  # by its path, where it may have been covered


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}{arguments}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    _become_ordinary(sys.argv[1], sys.argv[2:])
