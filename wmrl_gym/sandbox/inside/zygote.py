"""The process that imports once and forks a supervisor, with an untrusted program beside it, for every run."""

from __future__ import annotations

import gc
import importlib
import os
import traceback
from typing import Any

from . import kernel
from .enclosures import NestedNamespace, OwnNamespace, clone_into_namespaces
from .protocol import send
from .supervisor import serve

_OVER, _BROKEN = 3, 4


def main(config: dict[str, Any]) -> None:
    """Serve runs until the host is gone.

    Args:
        config: "channel" and "host", file descriptors; "preimport", names of modules; "nested", whether to serve any number of
            runs, each in namespaces of its own, or one run in those of this process; "keep", see :class:`NestedNamespace`.
    """
    kernel.set_dumpable(False)
    gc.disable()
    for name in config["preimport"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the script that needs it will say so
    gc.collect()
    gc.freeze()
    if config["nested"]:
        _serve_many(config)
    else:
        serve(config["channel"], config["host"], OwnNamespace(), announce=True)


def _serve_many(config: dict[str, Any]) -> None:
    announce = True
    while True:
        try:
            pid = clone_into_namespaces()
        except OSError as error:
            send(config["channel"], {"op": "not nested", "why": str(error)})
            return
        if pid == 0:
            os._exit(_serve_one(config, announce))
        _, status = os.waitpid(pid, 0)
        if status != 0:
            return
        announce = False


def _serve_one(config: dict[str, Any], announce: bool) -> int:
    try:
        enclosure = NestedNamespace(config["keep"])
        try:
            serve(config["channel"], config["host"], enclosure, announce=announce)
        except EOFError:
            return _OVER
    except BaseException as error:
        traceback.print_exc()
        if announce:
            send(config["channel"], {"op": "not nested", "why": str(error)})
        return _BROKEN
    return 0
