"""The processes that runs start from: in bubblewrap, in a container, and with no isolation.

The one in bubblewrap imports once and forks a supervisor, with an untrusted program beside it, for every run.
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import shutil
import signal
import socket
import tempfile
import traceback
from typing import Any

from . import kernel
from .enclosures import ContainerNamespace, Descendants, NestedNamespace, OwnNamespace, clone_into_namespaces
from .protocol import send
from .supervisor import serve, start_program
from .warmup import can_rehearse, find_hot_ranges, rehearse

CHANNEL = "/runner/channel/socket"
"""Where a container finds its host."""
_OVER, _BROKEN = 3, 4


def serve_in_container(config: dict[str, Any]) -> None:
    """Serve one run in a container, whose host is reached by a socket that is shown to it.

    Args:
        config: "preimport", names of modules.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(CHANNEL)
        channel = sock.detach()
    # There is no process of the host's to be seen from here: its end shows in the channel, and nobody ever writes to this pipe.
    host, _ = os.pipe()
    _prepare(config["preimport"])
    _serve_here(channel, host, ContainerNamespace())


def serve_unisolated(channel: int, host: int) -> None:
    """Serve one run in a temporary folder, and leave nothing of it behind, even if the host is gone."""
    workspace = os.path.realpath(tempfile.mkdtemp(prefix="wmrl-"))
    os.environ.update(HOME=workspace, TMPDIR=workspace, SUBMISSION_PATH=f"{workspace}/submission.csv")
    os.environ.setdefault("DATA_DIR", workspace)
    enclosure = Descendants(workspace)
    try:
        serve(channel, host, enclosure, start_program(enclosure, array.array("Q")))
    except EOFError:
        return
    finally:
        enclosure.kill()
        shutil.rmtree(workspace, ignore_errors=True)


def serve_in_bubblewrap(config: dict[str, Any]) -> None:
    """Serve runs until the host is gone.

    Args:
        config: "channel" and "host", file descriptors; "preimport", names of modules; "nested", whether to serve any number of
            runs, each in namespaces of its own, or one run in those of this process; "keep", see :class:`NestedNamespace`.
    """
    _prepare(config["preimport"])
    if config["nested"]:
        _serve_many(config)
    else:
        _serve_here(config["channel"], config["host"], OwnNamespace())


def _prepare(modules: list[str]) -> None:
    """Import what runs will want, and have it ready to be forked."""
    kernel.set_dumpable(False)
    # The first process of a namespace ignores every signal from within that it has no handler for, and Python has one for this.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the script that needs it will say so
    if can_rehearse():
        rehearse()
    gc.collect()
    gc.freeze()


def _serve_here(channel: int, host: int, enclosure: OwnNamespace) -> None:
    """Serve one run in the namespaces of this process."""
    program = start_program(enclosure, array.array("Q"))
    send(channel, {"op": "ready"})
    serve(channel, host, enclosure, program)


def _serve_many(config: dict[str, Any]) -> None:
    announce, hot = True, find_hot_ranges()
    while True:
        try:
            pid = clone_into_namespaces()
        except OSError as error:
            send(config["channel"], {"op": "not nested", "why": str(error)})
            return
        if pid == 0:
            os._exit(_serve_one(config, hot, announce=announce))
        _, status = os.waitpid(pid, 0)
        if status != 0:
            return
        announce = False


def _serve_one(config: dict[str, Any], hot: array.array[int], *, announce: bool) -> int:
    try:
        try:
            enclosure = NestedNamespace(config["keep"])
            program = start_program(enclosure, hot)
        except (OSError, RuntimeError) as error:
            if announce:
                send(config["channel"], {"op": "not nested", "why": str(error)})
            raise
        if announce:
            send(config["channel"], {"op": "ready"})
        serve(config["channel"], config["host"], enclosure, program)
    except EOFError:
        return _OVER
    except BaseException:
        traceback.print_exc()
        return _BROKEN
    return 0
