"""Be ``python solution.py``, in a process that has already imported what it will need."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import traceback
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import NoReturn


def prepare_as_script() -> None:
    """Do ahead of time what does not depend on the script."""
    package = __name__.rpartition(".")[0]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.__stdout__):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a killed script had printed is not lost
    random.seed()  # every fork of one parent would otherwise draw the same numbers
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def run_as_script(path: str) -> NoReturn:
    """Run the file at ``path`` as the interpreter would run its script, then end the process as the interpreter would.

    Standard input, output and error must already be what the script is to see.
    """
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __builtins__=sys.modules["builtins"], __cached__=None, __annotations__={},
        __loader__=SourceFileLoader("__main__", path), __spec__=None,
    )  # fmt: skip
    sys.modules["__main__"] = module
    sys.argv[:] = [path]
    sys.orig_argv[:] = [sys.executable, path]
    sys.path.insert(0, os.path.dirname(path))
    gc.enable()
    status = _wind_down(module, _execute(path, module))
    if status < 0:  # ended by an interrupt: the parent must see the signal, as it does with the real interpreter
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _execute(path: str, module: ModuleType) -> int:
    """Compile and run; return the exit status, -1 for an interrupt."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        code = compile(source, path, "exec", dont_inherit=True)
    except BaseException as error:
        error.__traceback__ = None
        sys.excepthook(type(error), error, None)
        return 1
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        return _status_of(error)
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return _report(error)
    return 0


def _report(error: BaseException) -> int:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as stop:
        return _status_of(stop)
    except BaseException as second:
        print("Error in sys.excepthook:", file=sys.__stderr__)
        traceback.print_exception(second, file=sys.__stderr__)
        print("\nOriginal exception was:", file=sys.__stderr__)
        traceback.print_exception(error, file=sys.__stderr__)
    return -1 if isinstance(error, KeyboardInterrupt) else 1


def _status_of(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF if -(2**63) <= stop.code < 2**63 else 0xFF  # what no C long holds is -1 to the interpreter
    print(stop.code, file=sys.stderr)
    return 1


def _wind_down(module: ModuleType, status: int) -> int:
    """What the interpreter does after a script: join threads, call exit functions, let go of its names, flush."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except BaseException:
            traceback.print_exc()
    names = module.__dict__
    for name in [name for name in names if name != "__builtins__"]:
        names[name] = None  # a file that was never closed is flushed when its last name goes
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            status = 120 if stream is sys.stdout and status == 0 else status
    ctypes.PyDLL(None).fflush(None)
    return status
