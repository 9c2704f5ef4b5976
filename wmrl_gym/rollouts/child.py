"""The far side of a :class:`~wmrl_gym.rollouts.processes.ProcessAgent`: loads an agent and answers line by line.

It is run as a program: ``python child.py SPEC``. It imports nothing of this package, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def load(spec: str) -> Any:
    """What ``path.py:name`` or ``module:name`` names.

    Raises:
        ValueError: the spec is none, or nothing has that name.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"an agent is path.py:name or module:name, got {spec!r}")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ValueError(f"there is no file {place}")
        described = importlib.util.spec_from_file_location(path.stem, path)
        assert described is not None
        assert described.loader is not None
        module = importlib.util.module_from_spec(described)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.resolve().parent))
        described.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{place} has no {name}")
        found = getattr(found, part)
    return found


def begin(agent: Any, seed: int) -> Any:
    """``act`` for one episode: a class is made anew for it, and told the seed if it takes one."""
    if inspect.isclass(agent):
        takes = inspect.signature(agent).parameters
        make: Any = agent
        agent = make(seed=seed) if "seed" in takes else make()
    act = getattr(agent, "act", agent)
    if not callable(act):
        raise TypeError(f"an agent is a function of an observation, or has a method act; got {type(agent).__name__}")
    return act


def end_with_parent() -> None:
    """Have the system end this process when the one that started it ends, however it does; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Answer until there is nothing more to read."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what the agent prints is no answer
    agent = act = None

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if agent is None:
                agent = load(sys.argv[1])
            if asked["observation"] is None:  # only whether it can be loaded
                answer(reply="")
                continue
            if asked["seed"] is not None or act is None:
                act = begin(agent, asked["seed"] or 0)
            reply = act(asked["observation"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            answer(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-4000:])
            act = None
            continue
        if reply is None or isinstance(reply, str):
            answer(reply=reply)
        else:
            answer(error=f"a reply must be a str, got {type(reply).__name__}")


if __name__ == "__main__":
    main()
