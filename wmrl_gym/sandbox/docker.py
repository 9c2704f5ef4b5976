"""Runs in docker containers, each used once, with spare ones kept ready."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from wmrl_gym.threads import Threads, tell_when_forked

from .base import ExecutionResult, Limits, SandboxUnavailable
from .data_folders import COPIED_BYTES, DataFolder, LeasedFolder
from .docker_container import LABEL, Container, Shape
from .local import PREIMPORT
from .worker import WorkerLost, WorkerStuck

IMAGE = "wmrl-gym-sandbox"
"""The image that ``wmrl sandbox build`` makes."""


class DockerSandbox:
    """Runs code in containers of a docker engine on this machine.

    A container serves one run, so that no run finds anything of another. Starting one takes seconds, which is why ``spares`` of
    them wait with everything imported, and a new one is started whenever one is used. Code in them has no network, a read-only
    root, no capability, a user of its own, and bounds on memory, processes and files.

    Args:
        workers: runs that may go on at once; more threads than that wait.
        image: what the containers are made of.
        spares: containers kept ready; None for as many as workers. With 0 every run starts its own.
        preimport: modules that a container imports ahead of its run.

    Raises:
        SandboxUnavailable: the docker SDK, an engine or the image is missing.
        ValueError: ``workers`` is less than 1, or ``spares`` less than 0.
    """

    def __init__(
        self, workers: int = 1, image: str = IMAGE, *, spares: int | None = None, preimport: tuple[str, ...] = PREIMPORT
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if spares is not None and spares < 0:
            raise ValueError(f"spares must be at least 0, got {spares}")
        self.workers, self.image, self.spares, self.preimport = workers, image, spares, tuple(preimport)
        connect(image).close()
        self._open()

    def _open(self) -> None:
        tell_when_forked(self)
        self._free = threading.Semaphore(self.workers)
        self._lock = threading.RLock()  # a spare that is ready already is discarded while it is held
        self._client: Any = None
        self._ready: deque[tuple[Shape, Future[Container]]] = deque()
        self._alive: set[Container] = set()
        self._closed = False
        self._starter = Threads(max(1, min(self.workers, 4)), "docker-start")
        self._finalizer = weakref.finalize(self, _end_all, self._alive, self._starter, os.getpid())

    def forked(self) -> None:
        """In a forked child: the containers are the parent's, and those that start them."""
        self._finalizer.detach()
        for container in self._alive:
            container.forked()
        closed = self._closed
        self._open()
        self._closed = closed

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts containers of its own."""
        return {"workers": self.workers, "image": self.image, "spares": self.spares, "preimport": self.preimport}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the arguments; start nothing."""
        self.__dict__.update(state)
        self._open()

    def __enter__(self) -> DockerSandbox:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`.

        Raises:
            SandboxUnavailable: no container can be started.
            ValueError: ``data_dir`` is no folder, or links to what is outside of it; or it is larger than 256 MiB, and not every
                user may read it.
            RuntimeError: the sandbox is closed.
        """
        data = None if data_dir is None else DataFolder.scan(data_dir)
        bound = None
        if data is not None and data.size > COPIED_BYTES:
            data.check_readable_by_all()
            bound, data = str(data.path), None
        source = code.encode(errors="surrogatepass")
        reason = ""
        with self._free:
            for _ in range(2):  # a lost container says nothing about the code: once more in a fresh one
                container = self._take(Shape.of(limits, bound))
                try:
                    return container.run(source, data=data, limits=limits)
                except (WorkerLost, WorkerStuck) as error:
                    self._check_open()
                    reason = str(error)
                    if isinstance(error, WorkerStuck):
                        break
                finally:
                    self._discard(container)
        return ExecutionResult.lost(reason)

    def _take(self, shape: Shape) -> Container:
        """A ready container of that shape, or else a new one; and see to it that another one will be ready.

        A spare that could not be started, perhaps long ago, says nothing of now.
        """
        with self._lock:
            self._check_open()
            for entry in [entry for entry in self._ready if _failed(entry[1])]:
                self._ready.remove(entry)
            fitting = next((entry for entry in self._ready if entry[0] == shape), None)
            if fitting is not None:
                self._ready.remove(fitting)
            future = fitting[1] if fitting is not None else self._starter.submit(self._start, shape)
            if shape.data is None:
                self._refill(shape)
        try:
            return future.result()
        except SandboxUnavailable:
            self._check_open()
            raise

    def _refill(self, shape: Shape) -> None:
        wanted = self.workers if self.spares is None else self.spares
        while len(self._ready) >= wanted and self._ready and self._ready[0][0] != shape:
            _, stale = self._ready.popleft()
            stale.add_done_callback(self._discard_future)
        while len(self._ready) < wanted:
            self._ready.append((shape, self._starter.submit(self._start, shape)))

    def _start(self, shape: Shape) -> Container:
        with self._lock:
            self._check_open()
            if self._client is None:
                self._client = connect(self.image)
                sweep(self._client)
        container = Container(self._client, self.image, shape=shape, preimport=self.preimport)
        with self._lock:
            if not self._closed:
                self._alive.add(container)
                return container
        container.kill()
        raise RuntimeError("this sandbox is closed")

    def _discard_future(self, future: Future[Container]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._discard(future.result())

    def _discard(self, container: Container) -> None:
        with self._lock:
            self._alive.discard(container)
            if not self._closed:
                self._starter.submit(container.kill)  # removing one takes as long as many a run
                return
        container.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this sandbox is closed")

    def close(self) -> None:
        """Remove every container; a run that is going on in another thread raises RuntimeError there."""
        with self._lock:
            self._closed = True
            self._ready.clear()
        _end_all(self._alive, self._starter, os.getpid())
        client, self._client = self._client, None
        if client is not None:
            client.close()


def connect(image: str | None) -> Any:
    """A ``docker.DockerClient`` of an engine that answers and, if one is named, has the image.

    Raises:
        SandboxUnavailable: the SDK, the engine or the image is missing; the message says what to do.
    """
    try:
        import docker
    except ImportError as error:
        raise SandboxUnavailable("the docker SDK is not installed, run `pip install 'wmrl-gym[docker]'`") from error
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        _knock(address)
        client = docker.from_env()
        # No proxy leads to a socket, and looking for one at each call breaks where another thread changes the environment.
        client.api.trust_env = not address.startswith("unix://")
        client.ping()
    except Exception as error:
        raise SandboxUnavailable(
            f"no docker engine answers ({error}): install and start one (on Debian `apt-get install docker.io`, then `dockerd`), "
            f'or set DOCKER_HOST; or use sandbox="local", which needs none'
        ) from error
    if image is not None:
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound as error:
            client.close()
            raise SandboxUnavailable(f"docker has no image {image!r}: make it with `wmrl sandbox build`") from error
    return client


def _knock(address: str) -> None:
    """Raise OSError where nobody listens: the SDK would leave its socket open."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(address.removeprefix("unix://"))


def sweep(client: Any, *, after_s: float = 300.0) -> None:
    """Remove what killed processes left: their containers, of whatever host or container those were, and this machine's folders.

    A container lives as long as its connection to the process that started it, and ends by itself with it. So only those are
    removed that have ended (or were made and never started) longer ago than their owner needs to do so itself.

    Args:
        client: of the engine.
        after_s: seconds, by the engine's clock.
    """
    with suppress(Exception):  # somebody else may be sweeping as well
        now = _seconds(client.info()["SystemTime"])
        for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
            state = container.attrs["State"]
            if state["Running"] or state["Paused"] or state["Restarting"]:
                continue
            since = container.attrs["Created"] if state["Status"] == "created" else state["FinishedAt"]
            if now - _seconds(since) >= after_s:
                container.remove(force=False, v=True)
    LeasedFolder.sweep(LABEL)


def _seconds(time: str) -> float:
    """What the engine writes as ``2026-01-31T12:00:00.123456789Z``, in seconds."""
    text = re.sub(r"(\.\d{1,6})\d*", r"\1", time.replace("Z", "+00:00"))
    text = re.sub(r"\.\d*", lambda found: f"{found[0]:0<7}", text)
    return datetime.fromisoformat(text).timestamp()


def _failed(future: Future[Container]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _end_all(alive: set[Container], starter: Threads, owner: int) -> None:
    if os.getpid() != owner:
        return  # forked: they belong to the parent
    starter.shutdown(wait=True, cancel_futures=False)
    while alive:
        alive.pop().kill()
