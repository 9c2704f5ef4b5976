"""Threads that do work for others, which cannot wait for ever: not in a forked process, and not once they are closed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Forked(Protocol):
    """What has threads, locks or work under way, which a forked child has not."""

    def forked(self) -> None:
        """In a child that was just forked: let go of what is the parent's. Only memory may be changed here."""


_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()


def tell_when_forked(thing: Forked) -> None:
    """Have ``thing.forked()`` called in every child that is forked from now on."""
    _TOLD.add(thing)


def _tell() -> None:
    for thing in list(_TOLD):
        thing.forked()


os.register_at_fork(after_in_child=_tell)


class Threads(Executor):
    """Threads of one process, started when they are first needed; a copy, and a forked child, start their own.

    Args:
        most: at once.
        name: of the threads, to which numbers are added.

    >>> threads = Threads(2, "count")
    >>> threads.submit(sum, [1, 2]).result()
    3
    >>> threads.shutdown()
    >>> threads.submit(sum, [1, 2])
    Traceback (most recent call last):
        ...
    RuntimeError: count is closed
    """

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._closed = False
        self._fresh()

    def _fresh(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        tell_when_forked(self)

    def forked(self) -> None:
        """The threads are the parent's, and what they do."""
        self._pool, self._lock = None, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"most": self.most, "name": self.name, "_closed": self._closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._fresh()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` called on a thread.

        Raises:
            RuntimeError: the threads were shut down.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self.name} is closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.most, thread_name_prefix=self.name)
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and wait for what goes on. In a forked child there is nothing to wait for."""
        with self._lock:
            self._closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)
