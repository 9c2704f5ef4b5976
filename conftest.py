"""What every test shares, doctests included: settings, a cache of tasks, and what not every machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

# One thread a process, as there are as many processes as cores. Before numpy and torch are imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# There is no Tianshou 2 for Python 3.10.
collect_ignore = (
    ["tests/integrations/test_tianshou.py", "wmrl_gym/integrations/tianshou.py"] if sys.version_info < (3, 11) else []
)

# No deadline: a test must not fail because the machine is busy. Where CI is set, the same examples each time.
settings.register_profile("wmrl", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("wmrl")


def _do_without_a_broken_opencv() -> None:
    """Take away what an OpenCV that lacks its libraries leaves behind: Gymnasium and Stable-Baselines3 try it, and do without.

    Its own folder stays on the path, where its ``typing`` hides Python's from every process that is started later, and whoever
    imports it a second time prints the path.
    """
    path = list(sys.path)
    try:
        import cv2  # noqa: F401
    except ImportError:
        sys.path[:] = path
        sys.modules["cv2"] = None  # type: ignore[assignment]


_do_without_a_broken_opencv()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests write tasks to a cache of their own, never to the user's; all workers of a run share it."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wmrl-home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WMRL_HOME", str(home))
        yield home


LONG = ("tests/back_ends/",)
"""What is begun first, so that no process is left with it when the others have nothing more to do."""
BACK_END = re.compile(r"tests/back_ends/test_(?:\w+\.py::\w+\[)?(local[a-z_]*|docker|ray)")
"""The back end that a test tries, in whichever module."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores, as much is waiting: for sandboxes and servers, and for limits to be reached."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With ``--dist loadfile`` the tests of one module go to one process; in ``tests/back_ends`` those of one back end do."""
    from xdist.scheduler import LoadFileScheduling

    class LoadBackEnds(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            tried = BACK_END.match(nodeid)
            return nodeid.partition("::")[0] if tried is None else tried[1]

    return LoadBackEnds(config, log) if config.getvalue("dist") == "loadfile" else None


@dataclass(frozen=True, slots=True)
class Need:
    """Something that some tests need and that not every machine has; a marker of its own name says which tests.

    Args:
        what: it, for people.
        missing: why this machine has it not; "" where it has.
        bring: the command that brings it.
    """

    what: str
    missing: Callable[[], str]
    bring: str


def _no_docker() -> str:
    from wmrl_gym.sandbox import SandboxUnavailable
    from wmrl_gym.sandbox.docker import connect

    try:
        connect(None).close()
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _no_gl() -> str:
    from wmrl_gym.doctor import drawing

    found = drawing()
    return _import_fails("cv2") if found.ok else found.advice  # which LIBERO's simulator loads


def _no_root() -> str:
    if os.geteuid() != 0:
        return "this is an ordinary user"
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return "" if mapped > 1 else "this namespace has no user but root"


def _no_chromium() -> str:
    return "" if shutil.which("chromium") else "no program is called chromium"


def _import_fails(module: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


GL_PACKAGES = "apt-get install libegl1 libgl1 libgl1-mesa-dri libglib2.0-0 libosmesa6"
NEEDS = {
    "needs_docker": Need("a Docker engine", _no_docker, "sudo apt-get install docker.io && sudo systemctl start docker"),
    "needs_gl": Need("OpenGL", _no_gl, f"sudo {GL_PACKAGES}"),
    "needs_root": Need("root", _no_root, "sudo make test"),
    "needs_chromium": Need("Chromium", _no_chromium, "sudo apt-get install chromium"),
    "needs_llama_cpp": Need("llama.cpp", partial(_import_fails, "xllamacpp"), "sudo apt-get install libgomp1"),
}
DRAWING_DOCTESTS = ("wmrl_gym.envs.manipulation.vla.VLAManipulationEnv",)
"""Examples in docstrings that need OpenGL, as they cannot say it themselves."""

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_REASONS: dict[str, str] = {}  # those that workers gave


@cache
def _missing(name: str) -> str:
    return NEEDS[name].missing()


def _needs(item: pytest.Item) -> list[str]:
    return [marker.name for marker in item.iter_markers() if marker.name in NEEDS]


def _ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT] = Counter()
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: leave this test out on machines without {need.what}, unless CI is set")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.name in DRAWING_DOCTESTS:
        item.add_marker("needs_gl")


@pytest.hookimpl(trylast=True)  # what -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if _ci():
        return
    lacking = {item: [name for name in _needs(item) if _missing(name)] for item in items}
    left_out = config.stash[_LEFT_OUT]
    left_out.update(names[0] for names in lacking.values() if names)
    config.hook.pytest_deselected(items=[item for item, names in lacking.items() if names])
    items[:] = [item for item, names in lacking.items() if not names]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in _needs(item):
        if _missing(name):  # only where CI is set
            need = NEEDS[name]
            pytest.fail(
                f"CI is set and this machine lacks {need.what}: {_missing(name)}\nTo bring it: {need.bring}", pytrace=False
            )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """A worker of pytest-xdist has ended. All of them left out the same."""
    for name, (count, why) in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        node.config.stash[_LEFT_OUT][name] = count  # type: ignore[attr-defined]
        _REASONS[name] = why


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """The last lines of a run: what it did not cover, why, and what to do about it."""
    left_out = session.config.stash[_LEFT_OUT]
    worker = hasattr(session.config, "workeroutput")
    if worker:
        session.config.workeroutput["left_out"] = {name: (count, _missing(name)) for name, count in left_out.items()}
    yield
    if left_out and not worker:
        print(*not_covered(left_out), sep="\n")


def not_covered(left_out: Counter[str]) -> Iterator[str]:
    """Lines that say what was left out."""
    yield f"\nNot covered on this machine: {left_out.total()} tests (with CI=true they fail instead)"
    for name, count in left_out.items():
        need = NEEDS[name]
        yield f"  {count} {'test needs' if count == 1 else 'tests need'} {need.what}: {_REASONS.get(name) or _missing(name)}"
        yield f"    to cover: {need.bring}; then make test TEST_ARGS='-m {name}'"
