"""What every sandbox takes and returns, and a sandbox by its name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from .inside.limits import Limits

__all__ = ["ExecutionResult", "Limits", "Sandbox", "SandboxUnavailable", "make_sandbox"]

_KNOWN = {
    "local": "local.LocalSandbox",
    "docker": "docker.DockerSandbox",
    "ray": "ray.RaySandbox",
    "unsafe-rlimits": "unisolated.RlimitSandbox",
}
"""Module and class of each; by name, as some of them make others by name."""


class SandboxUnavailable(RuntimeError):
    """This machine cannot isolate code as asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What one run did.

    Args:
        exit_code: as the shell would see ``python solution.py`` (a negative number is the signal that ended it); None if a limit
            ended the run, or if nothing is known.
        exceeded: the limit that ended the run: None, "wall", "cpu" or "memory" (and "processes", from "unsafe-rlimits" only).
            Output is cut, and files and processes are refused, which by itself ends nothing.
        stdout: what the run printed, with a marker line where its middle was cut out.
        stderr: likewise, tracebacks included.
        submission: the content of the file at ``SUBMISSION_PATH``; None if there is no usable one.
        submission_problem: why there is none, such as "missing" or "is a symbolic link"; None if there is one.
        failed: what broke on *our* side (the sandbox was lost): nothing is known about the code. None otherwise.
        wall_s: seconds of wall-clock time.
        cpu_s: seconds of CPU time, all processes together.
        peak_memory_mb: MiB of memory at its highest, all processes together.
    """

    exit_code: int | None
    exceeded: str | None
    stdout: str
    stderr: str
    submission: bytes | None
    submission_problem: str | None
    failed: str | None
    wall_s: float
    cpu_s: float
    peak_memory_mb: float

    @classmethod
    def lost(cls, failed: str) -> ExecutionResult:
        """The result of a run of which nothing is known, because of ``failed``."""
        return cls(None, None, "", "", None, "unknown", failed, 0.0, 0.0, 0.0)


@runtime_checkable
class Sandbox(Protocol):
    """Runs Python code that nobody has read."""

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """Run ``code`` as ``python solution.py``; block until it has ended. Safe to call from any number of threads.

        The code finds the files of ``data_dir`` under ``os.environ["DATA_DIR"]`` and leaves its answer at
        ``os.environ["SUBMISSION_PATH"]``. Whatever the code does is reported in the result and never raised.
        """
        ...

    def close(self) -> None:
        """End every process and remove everything that the sandbox made. May be called twice."""
        ...


def make_sandbox(sandbox: str | Sandbox = "local", *, workers: int = 1) -> Sandbox:
    """The sandbox called ``sandbox``, for ``workers`` runs at once; a sandbox object is returned as it is.

    Raises:
        ValueError: there is none of that name.
        SandboxUnavailable: it cannot be had on this machine.

    >>> make_sandbox("locale")
    Traceback (most recent call last):
        ...
    ValueError: no sandbox is called 'locale'; known: 'local', 'docker', 'ray', 'unsafe-rlimits'; closest: 'local'
    """
    if not isinstance(sandbox, str):
        return sandbox
    if sandbox not in _KNOWN:
        closest = difflib.get_close_matches(sandbox, _KNOWN, n=1, cutoff=0.0)[0]
        known = ", ".join(map(repr, _KNOWN))
        raise ValueError(f"no sandbox is called {sandbox!r}; known: {known}; closest: {closest!r}")
    module, name = _KNOWN[sandbox].split(".")
    made: Sandbox = getattr(import_module(f".{module}", __package__), name)(workers=workers)
    return made
