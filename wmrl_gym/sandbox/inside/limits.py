"""The one list of a run's limits: what each bounds, how a result names it, and what the kernel is told of it.

A limit is added by a field of :class:`Limits` here. It travels to every back end by itself; what is not among the kernel's own
limits of :func:`kernel_limits` is measured by :class:`~.watch.Watch`.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field, fields
from typing import Any

# A script may reserve far more address space than it uses; what it uses is bounded by a control group or by the watch.
_ADDRESS_SPACE_MB = 16384
_DESCRIPTORS = 1024


def _limit(default: float, *, ends: str = "", text: str = "") -> Any:
    """A field: its default, what :attr:`ExecutionResult.exceeded` says where it ended a run, and how people read it."""
    return field(default=default, metadata={"ends": ends, "text": text})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one run may use; every field is checked at construction.

    Where the machine itself allows less (a hard limit of the shell, a batch system or a service), the smaller of the two holds.

    Args:
        wall_s: seconds of wall-clock time.
        cpu_s: seconds of CPU time, summed over all processes of the run, those that have ended included.
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

    wall_s: float = _limit(30.0, ends="wall", text="{:g} s of wall-clock time")
    cpu_s: float = _limit(30.0, ends="cpu", text="{:g} s of CPU time")
    memory_mb: int = _limit(2048, ends="memory", text="{} MiB of memory")
    processes: int = _limit(64, ends="processes", text="{} processes")
    file_mb: int = _limit(64)
    output_kb: int = _limit(64)

    def __post_init__(self) -> None:
        """Check each limit against the type of its default."""
        for each in fields(self):
            value, kind = getattr(self, each.name), type(each.default)
            wanted = f"{each.name} must be a positive {kind.__name__}, got {value!r}"
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
                raise TypeError(wanted)
            if not 0 < value < 2**31:
                raise ValueError(wanted)

    def describe(self, exceeded: str) -> str:
        """The limit that a result names, for people.

        Raises:
            KeyError: no limit ends runs by that name.

        >>> Limits(wall_s=3).describe("wall")
        '3 s of wall-clock time'
        """
        named = {each.metadata["ends"]: each for each in fields(self) if each.metadata["ends"]}
        return str(named[exceeded].metadata["text"].format(getattr(self, named[exceeded].name)))


def kernel_limits(limits: Limits, *, isolated: bool) -> dict[int, int]:
    """What the kernel holds each process of a run to, by the numbers of ``setrlimit``.

    Args:
        limits: of the run.
        isolated: whether the run's user has no other processes than the run's.
    """
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
        resource.RLIMIT_CPU: int(limits.cpu_s) + 2,  # the watch is exact; this ends what the watch would not see in time
        resource.RLIMIT_AS: (limits.memory_mb + _ADDRESS_SPACE_MB) << 20,
        resource.RLIMIT_MSGQUEUE: 0,  # memory of the kernel's that outlives the processes
    }
    if isolated:
        bounds[resource.RLIMIT_NPROC] = limits.processes + 1  # the supervisor counts as well
    else:
        bounds[resource.RLIMIT_FSIZE] = limits.file_mb << 20
    return bounds


def lower_limit(kind: int, value: int) -> None:
    """Hold this process to ``value``, or to what it is held to already where that is less.

    Raises:
        OSError: the kernel refuses.
    """
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError as error:
        raise OSError(f"limit {kind} cannot be set to {value}: {error}") from error


def own_cpu_limit() -> float:
    """Seconds of CPU time that the machine grants each process; infinity for any."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)
