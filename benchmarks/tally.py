"""Counts what came of many hostile things, and how much memory this process holds meanwhile."""

from __future__ import annotations

import ctypes
import gc
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any


def memory_mb() -> float:
    """MiB that this process holds now, once what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


class Tally:
    """Counts verdicts and exceptions, and what took longest."""

    def __init__(self, count: int) -> None:
        self.count, self.verdicts, self.exceptions = count, Counter[str](), Counter[str]()
        self.longest, self.memory, self._done = 0.0, [memory_mb()], 0

    def run(self, call: Callable[[], str]) -> None:
        """Do one thing and book what came of it."""
        started = perf_counter()
        try:
            self.verdicts[call()] += 1
        except Exception as error:
            self.exceptions[f"{type(error).__name__}: {error}"[:200]] += 1
        self.longest = max(self.longest, perf_counter() - started)
        self.more(1)

    def more(self, things: int) -> None:
        """Count so many more things."""
        before, self._done = self._done, self._done + things
        if any(before < mark <= self._done for mark in (self.count // 2, self.count)):
            self.memory.append(memory_mb())

    def report(self) -> dict[str, Any]:
        """What goes into the results."""
        return {
            "count": self._done,
            "verdicts": dict(self.verdicts.most_common()),
            "exceptions": dict(self.exceptions),
            "longest_s": round(self.longest, 2),
            "memory_mb": [round(each, 1) for each in self.memory],
        }
