"""A local sandbox in a process with other privileges: an ordinary user's, or those of root in a namespace with one user."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from wmrl_gym.sandbox import ExecutionResult, Limits

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
    return [sys.executable, __file__]


def environment(**variables: str) -> dict[str, str]:
    """Of a process that imports the package from here."""
    root = str(Path(__file__).parents[2])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", **variables}


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
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._answers.close()


def _become_ordinary(command: list[str]) -> None:
    """Execute a command as an ordinary user, with this interpreter's folder opened to all in a mount namespace of its own."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None):
            raise OSError(ctypes.get_errno(), f"mount {source} on {target}")

    if libc.unshare(0x20000):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", 16384 | 1 << 18)
    home = os.path.expanduser("~root")
    for path in (os.path.realpath(sys.executable), sys.prefix):
        if path.startswith(f"{home}/"):  # closed to others
            part = os.path.join(home, path[len(home) + 1 :].split("/")[0])
            fd = os.open(part, os.O_PATH)
            mount("tmpfs", home, "tmpfs", 0, "mode=0755")
            os.mkdir(part)
            mount(f"/proc/self/fd/{fd}", part, "", 4096 | 16384)
            break
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.environ["HOME"] = "/nonexistent"
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become_ordinary(sys.argv[1:])
