"""What runs cost, added up, and a line for each in a file."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .base import ExecutionResult


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
        self._lock = threading.Lock()
        self._total = Costs()

    @property
    def total(self) -> Costs:
        """All runs so far."""
        with self._lock:
            return self._total

    def add(self, result: ExecutionResult, *, cached: bool, priority: int = 0, waited_s: float = 0.0) -> None:
        """Book one run."""
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
