"""Runs on the machines of a Ray cluster."""

from __future__ import annotations

import os
import shutil
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from wmrl_gym.threads import tell_when_forked

from .base import ExecutionResult, Limits, SandboxUnavailable, make_sandbox
from .data_folders import DataFolder, LeasedFolder
from .visible import hidden_by_name, hide

_START_S = 180.0
_POLL_S = 1.0
_FOLDERS = 16
"""Data folders that the cluster keeps for later runs."""


class RemoteWorker:
    """What lives on a machine of the cluster: a sandbox with one worker, and copies of the data folders that its runs used.

    Args:
        sandbox: the name of the sandbox to use there.
    """

    def __init__(self, sandbox: str) -> None:
        self._sandbox = make_sandbox(sandbox, workers=1)
        LeasedFolder.sweep("wmrl-ray")  # those of actors that were killed
        self._leased = LeasedFolder("wmrl-ray")
        self._folders: OrderedDict[str, Path] = OrderedDict()

    def ready(self) -> bool:
        """Answer, which shows that the worker has started."""
        return True

    def holds(self, key: str) -> bool:
        """Whether a data folder is here already."""
        return key in self._folders

    def keep(self, key: str, files: dict[str, bytes]) -> None:
        """Write a data folder."""
        while len(self._folders) >= _FOLDERS:
            _, old = self._folders.popitem(last=False)
            shutil.rmtree(old, ignore_errors=True)
        folder = self._leased.path / key
        folder.mkdir()
        for name, content in files.items():
            path = folder / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(content)
        self._folders[key] = folder

    def run(self, code: str, key: str | None, limits: Limits, hidden: tuple[str, ...]) -> ExecutionResult:
        """Run code on a data folder that is here; ``hidden`` are folders that it may not see, should they be here too."""
        for path in hidden:
            hide(path)
        if key is not None:
            self._folders.move_to_end(key)
        return self._sandbox.run(code, data_dir=None if key is None else self._folders[key], limits=limits)

    def close(self) -> None:
        """Leave nothing behind."""
        self._sandbox.close()
        self._leased.remove()


class RaySandbox:
    """Runs code in sandboxes on the machines of a Ray cluster, an actor for each.

    Actors are started as runs wait, wherever the cluster has room, and ended when idle. A run whose machine is lost is done again
    on another one. Data folders travel once to each actor. Every machine needs ``wmrl_gym`` and what the inner sandbox needs.

    Args:
        workers: actors at most, and so runs at once; None for as many as the cluster has room for when a run comes.
        inner: the sandbox that each actor uses: "local" or "docker".
        address: of the cluster, as ``ray.init`` takes it, unless this process is connected already; None takes the variable
            ``RAY_ADDRESS``, or else starts one here.
        num_cpus: CPUs that each actor asks for.
        resources: other resources that each actor asks for, such as ``{"sandbox": 1}``.
        retries: how often a run is done again whose machine was lost.
        idle_s: seconds without work after which an actor is ended.

    Raises:
        SandboxUnavailable: Ray is not installed, or there is no cluster at the address.
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        workers: int | None = 1,
        inner: str = "local",
        *,
        address: str | None = None,
        num_cpus: float = 1,
        resources: dict[str, float] | None = None,
        retries: int = 3,
        idle_s: float = 60.0,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1 or None, got {workers}")
        if retries < 0:
            raise ValueError(f"retries must be at least 0, got {retries}")
        if inner == "ray":
            raise ValueError('the sandbox inside of a Ray sandbox must be another one, got "ray"')
        self._arguments = (workers, inner, address, num_cpus, resources, retries, idle_s)
        self.workers, self.inner, self.retries = workers, inner, retries
        self._options = {"num_cpus": num_cpus, "resources": resources or {}, "max_restarts": 0, "max_task_retries": 0}
        self._idle_s = idle_s
        self._ray = _connected(address)
        self._changed = threading.Condition()
        self._idle: deque[tuple[Any, float]] = deque()
        self._actors = 0
        self._data: OrderedDict[DataFolder, tuple[str, Any]] = OrderedDict()
        self._serial = 0
        self._closed = self._forked = False
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: the connection to the cluster is the parent's, and Ray makes no second one."""
        self._forked, self._idle, self._changed = True, deque(), threading.Condition()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has actors of its own."""
        return {"arguments": self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the arguments; connect, but start nothing."""
        workers, inner, address, num_cpus, resources, retries, idle_s = state["arguments"]
        options = {"address": address, "num_cpus": num_cpus, "resources": resources, "retries": retries, "idle_s": idle_s}
        RaySandbox.__init__(self, workers, inner, **options)

    def __enter__(self) -> RaySandbox:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        """See :meth:`Sandbox.run`.

        Raises:
            SandboxUnavailable: no actor can be started, as the cluster has no room or its machines have no sandbox.
            ValueError: ``data_dir`` is no folder, or links to what is outside of it.
            RuntimeError: the sandbox is closed, or this process was forked after the connection was made.
        """
        self._check_open()
        data = None if data_dir is None else DataFolder.scan(data_dir)
        reason = ""
        for _ in range(self.retries + 1):
            actor = None
            try:
                actor = self._take()
                result: ExecutionResult = self._run_on(actor, code, data=data, limits=limits)
            except self._ray.exceptions.RayTaskError as error:
                self._give(actor)
                raise error.as_instanceof_cause() from error
            except self._ray.exceptions.RayError as error:
                reason = f"a machine of the cluster was lost: {type(error).__name__}"
                if actor is not None:
                    self._drop(actor)
                self._check_open()
                continue
            except BaseException:
                if actor is not None:
                    self._drop(actor)
                raise
            self._give(actor)
            return result
        return ExecutionResult.lost(reason)

    def _run_on(self, actor: Any, code: str, *, data: DataFolder | None, limits: Limits) -> Any:
        key = None
        if data is not None:
            key, files = self._shared(data)
            if not self._ray.get(actor.holds.remote(key)):
                self._ray.get(actor.keep.remote(key, files))
        hidden = (*hidden_by_name(), *([] if data is None else [str(data.path.parent)]))
        return self._ray.get(actor.run.remote(code, key, limits, hidden))

    def _shared(self, data: DataFolder) -> tuple[str, Any]:
        """A data folder's name in the cluster, and a reference to its files."""
        with self._changed:
            if data not in self._data:
                while len(self._data) >= _FOLDERS:
                    self._data.popitem(last=False)
                self._serial += 1
                self._data[data] = (f"{os.getpid()}-{self._serial}", self._ray.put(dict(data.contents())))
            self._data.move_to_end(data)
            return self._data[data]

    def _take(self) -> Any:
        """An idle actor, or a new one, or whichever becomes idle first."""
        with self._changed:
            while True:
                self._check_open()
                if self._idle:
                    return self._idle.pop()[0]
                if self._actors < self._most():
                    self._actors += 1
                    break
                self._changed.wait(_POLL_S)  # it may also be the cluster that has changed
        try:
            return self._started()
        except BaseException:
            with self._changed:
                self._actors -= 1
                self._changed.notify()
            raise

    def _most(self) -> int:
        if self.workers is not None:
            return self.workers
        share = max(float(self._options["num_cpus"]), 1e-3)  # type: ignore[arg-type]
        return max(1, int(self._ray.cluster_resources().get("CPU", 1) / share))

    def _started(self) -> Any:
        actor = self._ray.remote(RemoteWorker).options(**self._options).remote(self.inner)
        try:
            self._ray.get(actor.ready.remote(), timeout=_START_S)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.kill(actor)
            raise SandboxUnavailable(
                f"for {_START_S:.0f} s the cluster had no room for an actor with {self._options['num_cpus']} CPUs and "
                f"{self._options['resources']}: it has {self._ray.cluster_resources()}"
            ) from error
        except self._ray.exceptions.ActorDiedError as error:
            if not error.actor_init_failed:
                raise  # its machine was lost while it started
            raise SandboxUnavailable(f"no sandbox {self.inner!r} could be started on the cluster: {error}") from error
        return actor

    def _give(self, actor: Any) -> None:
        """Keep an actor for the next run, and end those that have been idle for long."""
        stale = []
        with self._changed:
            if self._closed:
                stale.append(actor)
            else:
                self._idle.append((actor, monotonic()))
            while self._idle and monotonic() - self._idle[0][1] > self._idle_s:
                stale.append(self._idle.popleft()[0])
            self._actors -= len(stale)
            self._changed.notify()
        for each in stale:
            self._end(each)

    def _drop(self, actor: Any) -> None:
        with self._changed:
            self._actors -= 1
            self._changed.notify()
        self._end(actor)

    def _end(self, actor: Any) -> None:
        with suppress(self._ray.exceptions.RayError):  # it is lost already
            self._ray.get(actor.close.remote(), timeout=10)
        self._ray.kill(actor)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this sandbox is closed")
        if self._forked:
            raise RuntimeError("a process that was forked after connecting to Ray cannot use it: start processes by spawn")

    def close(self) -> None:
        """End every idle actor; one that is in a run ends after it. May be called twice."""
        with self._changed:
            self._closed = True
            idle, self._idle = list(self._idle), deque()
            self._actors -= len(idle)
            self._data.clear()
            self._changed.notify_all()
        for actor, _ in idle:
            self._end(actor)


def _connected(address: str | None) -> Any:
    """The module ``ray``, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise SandboxUnavailable("Ray is not installed, run `pip install 'wmrl-gym[ray]'`") from error
    if not ray.is_initialized():
        # Without an address Ray would join whatever cluster was started here last, and wait for it for minutes if it has ended.
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            ray.init(address=address, include_dashboard=False if address == "local" else None, log_to_driver=False)
        except Exception as error:  # Ray raises plain ones, such as where a node does not start in time
            if address == "local":
                raise SandboxUnavailable(f"Ray could not start a cluster on this machine: {error}") from error
            raise SandboxUnavailable(
                f"no Ray cluster answers at {address!r}: start one with `ray start --head` ({error})"
            ) from error
    return ray
