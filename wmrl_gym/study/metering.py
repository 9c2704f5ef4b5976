"""A sandbox that counts what it runs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wmrl_gym.sandbox import ExecutionResult, Limits, Sandbox, make_sandbox


class MeteredSandbox:
    """Passes everything on to ``inner``, and counts.

    Args:
        inner: the sandbox that runs the code.
        workers: how many runs it takes at once.
    """

    def __init__(self, inner: Sandbox, *, workers: int) -> None:
        self.inner = inner
        self.workers = workers
        self.runs = 0
        self.wall_s = 0.0
        self.timed_out = 0
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start every worker, so that the first run to be timed does not pay for it."""
        together = threading.Barrier(self.workers)

        def one(_: int) -> None:
            together.wait(timeout=60)
            self.inner.run("import time; time.sleep(0.3)", data_dir=None, limits=Limits(wall_s=30))

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(one, range(self.workers)))

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """Run ``code``, and count it."""
        result = self.inner.run(code, data_dir=data_dir, limits=limits)
        with self._lock:
            self.runs += 1
            self.wall_s += result.wall_s
            self.timed_out += result.exceeded in ("wall", "cpu")
        return result

    def close(self) -> None:
        """The inner sandbox belongs to whoever made it."""


def open_sandbox(workers: int) -> Sandbox:
    """A local sandbox with its workers started."""
    sandbox = make_sandbox("local", workers=workers)
    MeteredSandbox(sandbox, workers=workers).warm()
    return sandbox
