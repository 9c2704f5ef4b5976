"""The host's side of one container: start it, give it its one run, remove it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from .base import ExecutionResult, Limits, SandboxUnavailable
from .bubblewrap import VARIABLES
from .data_folders import DataFolder, LeasedFolder
from .inside.enclosures import DATA, WORKSPACE
from .inside.protocol import receive, send
from .worker import GRACE_S, WorkerLost, WorkerStuck, out_of_memory, request_of, result_of

LABEL = "wmrl-sandbox"
OWNER = secrets.token_hex(8)
"""What this process's containers are labelled with: no process id, as several hosts and containers may use one engine."""
_START_S = 120.0
_INODES = 65536
_SERVER_MB = 384
"""What the interpreter with its imports may take beside the run."""
_SERVER_PROCESSES = 2
_SETTLED_S = 30.0
_BOOTSTRAP = "import sys, json; sys.path.insert(0, '/runner'); from inside.server import serve_in_container; \
sys.path.pop(0); serve_in_container(json.loads(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a container is started with and cannot be given later.

    Args:
        memory_mb: MiB of memory of its run.
        processes: of its run.
        file_mb: MiB of each writable folder.
        data: a folder to show as it is; None for one that is filled when the run is known.
    """

    memory_mb: int
    processes: int
    file_mb: int
    data: str | None = None

    @classmethod
    def of(cls, limits: Limits, data: str | None = None) -> Shape:
        """The shape that a run within ``limits`` needs."""
        return cls(limits.memory_mb, limits.processes, limits.file_mb, data)


class Container:
    """One container that waits for its one run with everything imported.

    Args:
        client: a ``docker.DockerClient``.
        image: the image's name.
        shape: its bounds.
        preimport: modules to import ahead.

    Raises:
        SandboxUnavailable: the engine does not start it.
    """

    def __init__(self, client: Any, image: str, *, shape: Shape, preimport: tuple[str, ...]) -> None:
        self._leased = LeasedFolder(LABEL)
        self._folder = self._leased.path
        self._lock = threading.Lock()
        self._channel = -1
        self._container: Any = None
        try:
            with _listen(self._folder) as listener:
                self._container = _start(client, image, shape=shape, folder=self._folder, preimport=preimport)
                self._channel = self._accept(listener)
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def _accept(self, listener: socket.socket) -> int:
        """One connection and no other: what the run connects to later is closed."""
        listener.settimeout(1.0)
        deadline = monotonic() + _START_S
        while True:
            try:
                return listener.accept()[0].detach()
            except TimeoutError:
                if monotonic() > deadline or not self._runs():
                    raise SandboxUnavailable(f"the container did not start: {self._complaints()}") from None

    def _await_ready(self) -> None:
        try:
            receive(self._channel, deadline=monotonic() + _START_S)
        except (EOFError, OSError) as error:
            raise SandboxUnavailable(f"the container did not start: {self._complaints() or error}") from error

    def run(self, code: bytes, *, data: DataFolder | None, limits: Limits) -> ExecutionResult:
        """Run ``code`` and wait for it.

        Raises:
            WorkerLost, WorkerStuck: nothing is known about the run.
        """
        if data is not None:
            _fill(self._folder / "data", data)
        deadline = monotonic() + limits.wall_s + GRACE_S
        try:
            send(self._channel, request_of(limits, watch_memory=True), code, deadline=deadline)
            return result_of(receive(self._channel, deadline=deadline), None)
        except TimeoutError as error:
            raise WorkerStuck(f"the container did not answer within {limits.wall_s + GRACE_S:.0f} s") from error
        except (EOFError, OSError) as error:
            if self._ran_out():
                return out_of_memory(limits)
            raise WorkerLost(f"the container was lost: {self._complaints() or error}") from error

    def _ran_out(self) -> bool:
        """Whether the container, which is ending, ended because its memory was full: known once the engine has seen it end."""
        with suppress(Exception):
            self._container.wait(timeout=_SETTLED_S)
            self._container.reload()
            return bool(self._container.attrs["State"]["OOMKilled"])
        return False

    def _runs(self) -> bool:
        with suppress(Exception):
            self._container.reload()
            return self._container.status in ("created", "running")
        return False

    def _complaints(self) -> str:
        with suppress(Exception):
            return str(self._container.logs(tail=20).decode(errors="replace").strip()[-2000:])
        return "it left no message"

    def forked(self) -> None:
        """In a forked child: it lives as long as the parent's connection, and not as ours."""
        channel, self._channel = self._channel, -1
        if channel >= 0:
            os.close(channel)

    def kill(self) -> None:
        """End every process in it and remove what it left. May be called twice."""
        with self._lock:
            container, self._container = self._container, None
            channel, self._channel = self._channel, -1
        if channel >= 0:
            os.close(channel)
        if container is not None:
            with suppress(Exception):  # it may have ended and be gone already
                container.remove(force=True, v=True)
        self._leased.remove()


def _listen(folder: Path) -> socket.socket:
    channel = folder / "channel"
    for made in (channel, folder / "data"):
        made.mkdir()
        made.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(channel / "socket"))
        (channel / "socket").chmod(0o666)  # the folder above is closed to all other users of this machine
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


def _start(client: Any, image: str, *, shape: Shape, folder: Path, preimport: tuple[str, ...]) -> Any:
    """A running container: no network, nothing writable but three bounded folders, no capability, a user of its own."""
    uid = 200_000 + secrets.randbelow(1_000_000_000)  # its own, as some limits count all processes of a user
    (folder / "passwd").write_text(f"solution:x:{uid}:{uid}::{WORKSPACE}:/bin/sh\n", encoding="ascii")
    (folder / "passwd").chmod(0o644)
    memory = (shape.memory_mb + _SERVER_MB) << 20
    small = f"rw,exec,nosuid,nodev,size={shape.file_mb}m,nr_inodes={_INODES}"
    binds = {
        str(Path(__file__).parent / "inside"): {"bind": "/runner/inside", "mode": "ro"},
        str(folder / "channel"): {"bind": "/runner/channel", "mode": "ro"},
        str(folder / "passwd"): {"bind": "/etc/passwd", "mode": "ro"},
        (shape.data or str(folder / "data")): {"bind": DATA, "mode": "ro"},
    }
    try:
        return client.containers.run(
            image,
            ["python3", "-B", "-c", _BOOTSTRAP, json.dumps({"preimport": list(preimport)})],
            detach=True,
            auto_remove=False,
            labels={LABEL: OWNER},
            environment=VARIABLES,
            user=f"{uid}:{uid}",
            working_dir=WORKSPACE,
            hostname="sandbox",
            network_mode="none",
            ipc_mode="private",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=shape.processes + _SERVER_PROCESSES,
            shm_size=shape.file_mb << 20,
            tmpfs={WORKSPACE: f"{small},mode=0755,uid={uid},gid={uid}", "/tmp": f"{small},mode=1777"},
            volumes=binds,
            log_config={"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
            stdin_open=False,
        )
    except Exception as error:
        raise SandboxUnavailable(f"docker could not start a container of {image!r}: {error}") from error


def _fill(folder: Path, data: DataFolder) -> None:
    """Copy a data folder to where the container sees it."""
    for name, content in data.contents():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content)
            path.chmod(0o644)
    for made in [folder, *folder.rglob("*")]:
        if made.is_dir():
            made.chmod(0o755)
