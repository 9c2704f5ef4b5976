"""A queue in front of any sandbox: priorities, a bound on what is in flight, no run done twice, and a log of what each cost."""

from __future__ import annotations

import heapq
import itertools
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from wmrl_gym.threads import tell_when_forked

from .base import ExecutionResult, Limits, Sandbox, make_sandbox
from .data_folders import DataFolder
from .records import CostLog, RunCache, run_key


@dataclass(order=True, slots=True)
class Job:
    """A run that waits. Jobs are ordered by priority, the highest first, and then by age."""

    rank: tuple[int, int]
    key: str = field(compare=False)
    code: str = field(compare=False)
    data_dir: Path | None = field(compare=False)
    limits: Limits = field(compare=False)
    future: Future[ExecutionResult] = field(compare=False)
    since: float = field(compare=False)


class SandboxPool:
    """Hands runs to a sandbox, as many at once as there are workers.

    Threads are started as runs wait and end when none has come for a while, so that runs of any length keep every worker busy.
    Identical runs that wait or go on at the same time are done once, and so are those that ended before if there is a cache. What
    a run raises, whoever waits for it is told, and the next one goes on. A forked child has a queue and threads of its own.

    Args:
        sandbox: its name, or a sandbox, which is then yours to close.
        workers: runs at once.
        cache: True to keep results in the user's cache folder, a folder to keep them there, False to run everything.
        max_in_flight: runs that wait or go on; :meth:`submit` blocks beyond that. None for no bound.
        log: a file to which a line of JSON is added for every run: what it cost, and how it ended.
        idle_s: seconds without work after which a thread ends.

    Raises:
        ValueError: an argument out of range, or an unknown sandbox.
        SandboxUnavailable: the sandbox cannot be had on this machine.

    >>> from wmrl_gym.sandbox import LocalSandbox
    >>> with LocalSandbox(preimport=()) as sandbox, SandboxPool(sandbox, cache=False) as pool:
    ...     urgent = pool.submit("print(6 * 7)", priority=1)
    ...     urgent.result().stdout
    '42\\n'
    """

    def __init__(
        self,
        sandbox: str | Sandbox = "local",
        workers: int = 1,
        *,
        cache: bool | str | Path = True,
        max_in_flight: int | None = None,
        log: str | Path | None = None,
        idle_s: float = 30.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if max_in_flight is not None and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1 or None, got {max_in_flight}")
        self._arguments = (sandbox, workers, cache, max_in_flight, log, idle_s)
        self.workers = workers
        self.cache = RunCache.open(cache)
        self.log = CostLog(None if log is None else Path(log))
        self._sandbox = make_sandbox(sandbox, workers=workers)
        places = (getattr(self._sandbox, name, None) or "" for name in ("image", "packages"))
        self._place = " ".join((type(self._sandbox).__name__, *places))
        self._owned = isinstance(sandbox, str)
        self._idle_s = idle_s
        self._serial = itertools.count()
        self._closed = False
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: what waits or goes on is the parent's."""
        most = self._arguments[3]
        self._room = None if most is None else threading.Semaphore(most)
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._pending: dict[str, Job] = {}
        self._threads = self._idle = 0

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has threads and a sandbox of its own."""
        return {"arguments": self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the same pool again."""
        sandbox, workers, cache, max_in_flight, log, idle_s = state["arguments"]
        SandboxPool.__init__(self, sandbox, workers, cache=cache, max_in_flight=max_in_flight, log=log, idle_s=idle_s)

    def __enter__(self) -> SandboxPool:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`; raises what the sandbox raises, and OSError where the cache or the log cannot be written."""
        return self.submit(code, data_dir=data_dir, limits=limits).result()

    def at(self, priority: int) -> PrioritySandbox:
        """This pool as a sandbox whose runs have that priority: anchors before what can wait, say."""
        return PrioritySandbox(self, priority)

    def submit(
        self, code: str, *, data_dir: Path | None = None, limits: Limits | None = None, priority: int = 0
    ) -> Future[ExecutionResult]:
        """Have ``code`` run, ahead of all that waits with a lower priority; blocks while too much is in flight.

        Raises:
            ValueError: ``data_dir`` is no folder.
            RuntimeError: the pool is closed, or no thread can be started.
        """
        limits = Limits() if limits is None else limits
        data = None if data_dir is None else DataFolder.scan(data_dir)
        key = run_key(code, data, limits, place=self._place)
        found = self.cache.read(key) if self.cache is not None else None
        if found is not None:
            self.log.add(found, cached=True, priority=priority)
            done: Future[ExecutionResult] = Future()
            done.set_result(found)
            return done
        return self._join(key, priority) or self._enter(key, code, data_dir=data_dir, limits=limits, priority=priority)

    def _join(self, key: str, priority: int) -> Future[ExecutionResult] | None:
        """The same run, if it waits or goes on already; if it waits with a lower priority it moves up."""
        if self.cache is None:
            return None
        with self._changed:
            job = self._pending.get(key)
            if job is not None and job.future.cancelled():
                return None  # somebody wants it no longer, and we do
            if job is not None and -priority < job.rank[0]:
                job.rank = (-priority, job.rank[1])
                heapq.heapify(self._waiting)
            return None if job is None else job.future

    def _enter(self, key: str, code: str, *, data_dir: Path | None, limits: Limits, priority: int) -> Future[ExecutionResult]:
        if self._room is not None:
            self._room.acquire()
        with self._changed:
            if self._closed:
                if self._room is not None:
                    self._room.release()
                raise RuntimeError("this sandbox is closed")
            job = Job((-priority, next(self._serial)), key, code, data_dir, limits, Future(), monotonic())
            if len(self._waiting) >= self._idle and self._threads < self.workers:
                self._start_thread()
            heapq.heappush(self._waiting, job)
            self._pending[key] = job
            self._changed.notify()
        return job.future

    def _start_thread(self) -> None:
        """One more thread; where none can be had, those that there are do the work."""
        try:
            threading.Thread(target=self._work, name="sandbox-pool", daemon=True).start()
        except RuntimeError:
            if self._threads == 0:
                if self._room is not None:
                    self._room.release()
                raise
        else:
            self._threads += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                result = self._do(job)
            except BaseException as error:  # of the sandbox, of the cache or of the log: whoever waits is told, and work goes on
                self._leave(job)
                job.future.set_exception(error)
            else:
                self._leave(job)
                job.future.set_result(result)

    def _do(self, job: Job) -> ExecutionResult:
        started = monotonic()
        result = self._sandbox.run(job.code, data_dir=job.data_dir, limits=job.limits)
        self.log.add(result, cached=False, priority=-job.rank[0], waited_s=started - job.since)
        if self.cache is not None:
            self.cache.write(job.key, result)
        return result

    def _next(self) -> Job | None:
        """The job to do next; None when this thread is to end."""
        deadline = monotonic() + self._idle_s
        with self._changed:
            while True:
                if self._waiting:
                    job = heapq.heappop(self._waiting)
                    if job.future.set_running_or_notify_cancel():
                        return job
                    self._forget(job)
                    continue
                left = deadline - monotonic()
                if self._closed or left <= 0:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._changed.wait(left)
                self._idle -= 1

    def _leave(self, job: Job) -> None:
        with self._changed:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        if self._pending.get(job.key) is job:
            del self._pending[job.key]
        if self._room is not None:
            self._room.release()

    def close(self) -> None:
        """Take no more runs; those that wait are cancelled, and those that go on end with the sandbox if it is this pool's."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                job.future.cancel()
                self._forget(job)
            self._changed.notify_all()
        if self._owned:
            self._sandbox.close()


class PrioritySandbox:
    """A pool as a sandbox whose runs all have one priority; closing it closes nothing."""

    def __init__(self, pool: SandboxPool, priority: int) -> None:
        self.pool = pool
        self.priority = priority

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`."""
        return self.pool.submit(code, data_dir=data_dir, limits=limits, priority=self.priority).result()

    def close(self) -> None:
        """Nothing: the pool belongs to whoever made it."""
