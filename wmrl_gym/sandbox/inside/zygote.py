"""The process that imports once and forks a supervisor, with an untrusted program beside it, for every run."""

from __future__ import annotations

import array
import gc
import importlib
import os
import signal
import traceback
from typing import Any

from . import kernel
from .enclosures import NestedNamespace, OwnNamespace, clone_into_namespaces
from .prefault import find_hot_ranges
from .protocol import send
from .rehearsal import can_rehearse, rehearse
from .supervisor import serve, start_program

_OVER, _BROKEN = 3, 4


def main(config: dict[str, Any]) -> None:
    """Serve runs until the host is gone.

    Args:
        config: "channel" and "host", file descriptors; "preimport", names of modules; "nested", whether to serve any number of
            runs, each in namespaces of its own, or one run in those of this process; "keep", see :class:`NestedNamespace`.
    """
    kernel.set_dumpable(False)
    # The first process of a namespace ignores every signal from within that it has no handler for, and Python has one for this.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    for name in config["preimport"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the script that needs it will say so
    if can_rehearse():
        rehearse()
    gc.collect()
    gc.freeze()
    if config["nested"]:
        _serve_many(config)
        return
    program = start_program(enclosure := OwnNamespace(), array.array("Q"))
    send(config["channel"], {"op": "ready"})
    serve(config["channel"], config["host"], enclosure, program)


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
