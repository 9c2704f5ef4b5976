"""A pool of bubblewrap workers."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from .base import ExecutionResult, Limits, SandboxUnavailable
from .bubblewrap import find_bubblewrap
from .data_folders import COPIED_BYTES, DataFolder
from .visible import Interpreter, covered_paths, hide
from .worker import Contents, NotNested, Worker, WorkerLost, WorkerStuck

PREIMPORT = (
    "numpy", "pandas", "scipy.sparse", "scipy.stats", "scipy.optimize", "sklearn.compose", "sklearn.decomposition",
    "sklearn.discriminant_analysis", "sklearn.dummy", "sklearn.ensemble", "sklearn.feature_extraction.text",
    "sklearn.feature_selection",
    "sklearn.gaussian_process", "sklearn.impute", "sklearn.kernel_ridge", "sklearn.linear_model", "sklearn.metrics",
    "sklearn.model_selection", "sklearn.naive_bayes", "sklearn.neighbors", "sklearn.neural_network", "sklearn.pipeline",
    "sklearn.preprocessing", "sklearn.svm", "sklearn.tree",
)  # fmt: skip


class LocalSandbox:
    """Runs code on this machine, isolated by bubblewrap, in ``workers`` sandboxes that stay warm.

    Nothing is started before the first :meth:`run`. Code sees the system and the interpreter's packages, read-only, its data
    folder, and an empty private workspace; no network, no other process, nothing of the host's environment.

    Args:
        workers: runs that may go on at once; more threads than that wait.
        warm: keep each worker's imports for its next run. If False every run starts an interpreter: same verdicts, slower.
        preimport: modules that a warm worker imports ahead of its runs. Modules that are not installed are passed over.
        packages: the folder of a virtual environment whose interpreter and packages the code has; None for those of this process.

    Raises:
        SandboxUnavailable: there is no bubblewrap, or answers lie where they would be shown and could not be covered.
        ValueError: ``workers`` is less than 1, or there is no interpreter in ``packages``.

    >>> with LocalSandbox(preimport=()) as sandbox:
    ...     result = sandbox.run("print(6 * 7)", data_dir=None, limits=Limits())
    >>> result.exit_code, result.stdout
    (0, '42\\n')
    """

    def __init__(
        self, workers: int = 1, warm: bool = True, preimport: tuple[str, ...] = PREIMPORT, *, packages: str | Path | None = None
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        find_bubblewrap()
        self.workers, self.warm, self.preimport = workers, warm, tuple(preimport)
        self.packages = None if packages is None else str(Path(packages).absolute())
        self._interpreter = Interpreter.of(self.packages)
        self._open()

    def _open(self) -> None:
        self._free = threading.Semaphore(self.workers)
        self._lock = threading.Lock()
        self._idle: deque[Worker] = deque()
        self._alive: set[Worker] = set()
        self._closed = self._proven = False
        self._nested = True
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._alive, self._idle, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts workers of its own."""
        return {"workers": self.workers, "warm": self.warm, "preimport": self.preimport, "packages": self.packages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the arguments; start nothing."""
        self.__dict__.update(state)
        self._interpreter = Interpreter.of(self.packages)
        self._open()

    def __enter__(self) -> LocalSandbox:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`.

        Raises:
            SandboxUnavailable: no sandbox can be started on this machine, or what lies beside ``data_dir`` would be shown and
                cannot be covered.
            ValueError: ``data_dir`` is no folder, or links to what is outside of it; or we are root, it is larger than 256 MiB,
                and not every user may read it.
            RuntimeError: the sandbox is closed.
        """
        if self._owner != os.getpid():
            self._finalizer.detach()
            self._open()  # forked: the workers belong to the parent
        data = None if data_dir is None else DataFolder.scan(data_dir)
        covered = self._covered(data)
        source = code.encode(errors="surrogatepass")
        with self._free:
            for _ in range(2):  # a lost sandbox says nothing about the code: once more in a fresh one
                try:
                    return self._run_once(source, data, limits, covered)
                except (WorkerLost, WorkerStuck, SandboxUnavailable) as error:
                    self._check_open()
                    gone = not all(map(os.path.isdir, covered))  # meanwhile, so that it could not be covered
                    covered = self._covered(data)
                    if isinstance(error, SandboxUnavailable) and not self._proven and not gone:
                        raise
                    reason = str(error)
                    if isinstance(error, WorkerStuck):
                        break  # a second time would take as long again
            return ExecutionResult.lost(reason)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this sandbox is closed")

    def _covered(self, data: DataFolder | None) -> tuple[str, ...]:
        """What this run may not see: above all what lies beside its data, a task's answers."""
        beside = None if data is None else str(data.path.parent)
        covered = covered_paths(self._interpreter, [] if beside is None else [beside])
        if beside in covered:
            hide(beside)  # from later runs on other data, too
        return tuple(covered)

    def _run_once(self, code: bytes, data: DataFolder | None, limits: Limits, covered: tuple[str, ...]) -> ExecutionResult:
        worker = self._take(data, limits, covered)
        reusable = False
        try:
            cover = tuple(path for path in covered if path not in worker.covered)
            result = worker.run(code, data=data, limits=limits, cover=cover)
            reusable = not worker.once
            return result
        finally:
            with self._lock:
                if reusable and not self._closed:
                    self._idle.append(worker)
                else:
                    self._alive.discard(worker)
                    reusable = False
            if not reusable:
                worker.kill()

    def _take(self, data: DataFolder | None, limits: Limits, covered: tuple[str, ...]) -> Worker:
        warm = self.warm and self._nested and (data is None or data.size <= COPIED_BYTES)
        with self._lock:
            self._check_open()
            if warm and self._idle:
                return self._idle.pop()  # the last one used is the one whose memory is still in the caches
        if warm:
            try:
                return self._register(Worker(Contents(self._interpreter, self.preimport, covered)))
            except NotNested as error:
                if self._nested:
                    self._nested = False
                    warnings.warn(f"no namespaces within bubblewrap's ({error}): every run starts an interpreter", stacklevel=4)
        return self._register(Worker(Contents(self._interpreter, (), covered), flat=limits, data=data))

    def _register(self, worker: Worker) -> Worker:
        with self._lock:
            self._proven = True
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.kill()
        raise RuntimeError("this sandbox is closed")

    def close(self) -> None:
        """End every worker; a run that is going on in another thread raises RuntimeError there."""
        with self._lock:
            self._closed = True
        _end_all(self._alive, self._idle, self._owner)


def _end_all(alive: set[Worker], idle: deque[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # forked: they belong to the parent
    while idle:
        worker = idle.pop()
        alive.discard(worker)
        worker.kill()
    for worker in list(alive):
        worker.terminate()  # the thread that is in its run lets go of the rest
