"""What every sandbox takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol, runtime_checkable


class SandboxUnavailable(RuntimeError):
    """This machine cannot isolate code as asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one run may use; every field is checked at construction.

    Args:
        wall_s: seconds of wall-clock time.
        cpu_s: seconds of CPU time, summed over all processes of the run.
        memory_mb: MiB of memory, summed over all processes of the run and the files that it writes.
        processes: processes and threads alive at once.
        file_mb: MiB of files that the run may write in all, and of the submission.
        output_kb: KiB kept of standard output, and as much of standard error; the middle of what is longer is cut out.

    Raises:
        ValueError: a limit is not positive and finite.
        TypeError: a limit is not a number, or not a whole one where it counts things.

    >>> Limits(wall_s=5).cpu_s
    30.0
    >>> Limits(memory_mb=0)
    Traceback (most recent call last):
        ...
    ValueError: memory_mb must be a positive int, got 0
    """

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_mb: int = 2048
    processes: int = 64
    file_mb: int = 64
    output_kb: int = 64

    def __post_init__(self) -> None:
        """Check each limit against the type of its default."""
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            wanted = f"{field.name} must be a positive {kind.__name__}, got {value!r}"
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
                raise TypeError(wanted)
            if not 0 < value < 2**31:
                raise ValueError(wanted)


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
        ``os.environ["SUBMISSION_PATH"]``. Whatever the code does is told in the result and never raised.
        """
        ...

    def close(self) -> None:
        """End every process and remove everything that the sandbox made. May be called twice."""
        ...
