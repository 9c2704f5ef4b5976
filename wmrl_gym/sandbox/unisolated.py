"""Limits without isolation, for code that is trusted, where there is nothing better."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from time import monotonic

from wmrl_gym.threads import tell_when_forked

from .base import ExecutionResult, Limits
from .bubblewrap import environment
from .data_folders import DataFolder
from .inside.protocol import receive, send
from .visible import Interpreter
from .worker import GRACE_S, WorkerLost, request_of, result_of

_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from inside.server import serve_unisolated; sys.path.pop(0); \
serve_unisolated(int(sys.argv[2]), int(sys.argv[3]))"


class RlimitSandbox:
    """Runs code as a plain child process with resource limits: it can read and write whatever this user can.

    Time, memory and output are bounded and no process outlives its run, but nothing is hidden: not the network, not the answers
    beside a data folder. Its name is "unsafe-rlimits".

    Args:
        workers: runs that may go on at once; more threads than that wait.

    Raises:
        ValueError: ``workers`` is less than 1.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        warnings.warn('the sandbox "unsafe-rlimits" isolates nothing: run only code that you trust', UserWarning, stacklevel=2)
        self.workers = workers
        self._open()

    def _open(self) -> None:
        self._closed = False
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: what runs is the parent's."""
        self._free = threading.Semaphore(self.workers)

    def __getstate__(self) -> dict[str, int]:
        """Only the arguments: nothing of what runs."""
        return {"workers": self.workers}

    def __setstate__(self, state: dict[str, int]) -> None:
        """Restore the arguments."""
        self.workers = state["workers"]
        self._open()

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`.

        Raises:
            ValueError: ``data_dir`` is no folder.
            RuntimeError: the sandbox is closed.
        """
        data = None if data_dir is None else DataFolder.scan(data_dir)
        with self._free:
            if self._closed:
                raise RuntimeError("this sandbox is closed")
            return _run(code.encode(errors="surrogatepass"), data, limits)

    def close(self) -> None:
        """Take no more runs; those that are going on end by themselves."""
        self._closed = True


def _run(code: bytes, data: DataFolder | None, limits: Limits) -> ExecutionResult:
    ours, theirs = socket.socketpair()
    host = os.pidfd_open(os.getpid())
    variables = {
        name: value
        for name, value in environment(Interpreter.of(None)).items()
        if name not in ("DATA_DIR", "HOME", "SUBMISSION_PATH")
    }
    variables |= {"DATA_DIR": str(data.path)} if data else {}
    arguments = [str(Path(__file__).parent), str(theirs.fileno()), str(host)]
    with ours:
        process = subprocess.Popen(
            [sys.executable, "-B", "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables, cwd="/",
            pass_fds=(theirs.fileno(), host), start_new_session=True,
        )  # fmt: skip
        theirs.close()
        os.close(host)
        try:
            deadline = monotonic() + limits.wall_s + GRACE_S
            send(ours.fileno(), request_of(limits, watch_memory=True), code, deadline=deadline)
            return result_of(receive(ours.fileno(), deadline=deadline), None)
        except WorkerLost as error:
            return ExecutionResult.lost(str(error))
        except (EOFError, OSError) as error:
            ours.close()
            return ExecutionResult.lost(f"the supervisor was lost: {_end(process) or error}")
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> str:
    """Wait for the supervisor, which ends by itself when it has answered or its channel is closed; return its complaints."""
    if process.stderr is None or process.stderr.closed:
        return ""
    try:
        _, errors = process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    return errors.decode(errors="replace").strip()[-2000:]
