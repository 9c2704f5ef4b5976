"""What the suite promises of itself: what is left out is said, CI leaves nothing out, and no test leaves a process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDY = """
import pytest
def test_plain(): pass
@pytest.mark.needs_docker
def test_needy(): pass
"""
ON_BACK_ENDS = """
import os
import pathlib
import pytest
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("back_end", ["docker", "ray_sandbox"])
def test_it(back_end, number):
    with open(pathlib.Path(__file__).parents[2] / back_end, "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""
BROKEN = """
import pathlib, sys
sys.path.insert(1, str(pathlib.Path(__file__).parent))
raise ImportError("libGL.so.1: cannot open shared object file")
"""
AFTER_BROKEN = """
import multiprocessing
import pytest
def test_it():
    with pytest.raises(ImportError):
        import cv2
    process = multiprocessing.get_context("spawn").Process(target=__import__, args=("typing",))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
LITTERING = """
import sys
def test_that_fails(start):
    sleeper = "import os, time; print(os.getpid(), flush=True); os.fork(); time.sleep(600)"
    process = start([sys.executable, "-c", sleeper], stdout=-1)
    raise AssertionError(f"started {process.stdout.readline()}")
"""


def suite(code: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test module by the rules of this suite, where no engine answers."""
    path = folder / "test_module.py"
    path.write_text(code)
    plugins = ("-p", "conftest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    surroundings = {**kept, "PYTHONPATH": f"{ROOT}", "DOCKER_HOST": f"unix://{folder}/nobody.sock", **environment}
    command = [sys.executable, "-m", "pytest", "-q", *plugins, f"--rootdir={folder}", *arguments, str(path)]
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)


def alive(group: str) -> list[str]:
    """The processes of a process group, but for those that only wait to be reaped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            state, _, of, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if of == group and state != "Z":
                found.append(process.name)
    return found


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_left_out_is_said_in_the_last_lines_with_what_brings_it(tmp_path: Path, workers: str) -> None:
    done = suite(NEEDY, tmp_path, "-n", workers)
    assert done.returncode == 0, done.stdout
    *_, headline, why, what_to_do = done.stdout.splitlines()
    assert headline.startswith("Not covered on this machine: 1 test")
    assert why.startswith("  1 test needs a Docker engine: no docker engine answers")
    assert "apt-get install docker.io" in what_to_do
    assert "-m needs_docker" in what_to_do
    assert "1 passed" in done.stdout


def test_ci_leaves_nothing_out(tmp_path: Path) -> None:
    done = suite(NEEDY, tmp_path, CI="true")
    assert done.returncode == 1
    assert "CI is set and this machine lacks a Docker engine: no docker engine answers" in done.stdout
    assert "Not covered" not in done.stdout


def test_processes_start_where_opencv_lacks_its_libraries(tmp_path: Path) -> None:
    (tmp_path / "cv2" / "typing").mkdir(parents=True)
    (tmp_path / "cv2" / "__init__.py").write_text(BROKEN)
    (tmp_path / "cv2" / "typing" / "__init__.py").write_text("from nowhere import this")
    done = suite(AFTER_BROKEN, tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "1 passed" in done.stdout, done.stdout


def test_the_tests_of_one_back_end_go_to_one_process_whatever_their_module(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "back_ends"
    folder.mkdir(parents=True)
    (folder / "test_attacks.py").write_text(ON_BACK_ENDS)
    (folder / "test_limits_hold.py").write_text(ON_BACK_ENDS)
    done = suite("", tmp_path, "-n", "2", "--dist", "loadfile", str(folder))
    assert "12 passed" in done.stdout, done.stdout
    docker, ray = ((tmp_path / name).read_text().split() for name in ("docker", "ray_sandbox"))
    assert (len(docker), len(set(docker))) == (len(ray), len(set(ray))) == (6, 1)
    assert docker[0] != ray[0]


def test_what_takes_long_is_begun_first(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "back_ends"
    folder.mkdir(parents=True)
    (folder / "test_attacks.py").write_text("def test_long(): pass")
    (tmp_path / "test_before.py").write_text("def test_short(): pass")
    done = suite("", tmp_path, "--collect-only", str(tmp_path))
    long, short, *_ = (line for line in done.stdout.splitlines() if "::" in line)
    assert (long, short) == ("tests/back_ends/test_attacks.py::test_long", "test_before.py::test_short")


def test_a_test_that_fails_leaves_no_process_behind(tmp_path: Path) -> None:
    done = suite(LITTERING, tmp_path)
    assert done.returncode == 1
    group = done.stdout.partition("AssertionError: started ")[2].split()[0]
    assert group.isdigit()
    assert alive(group) == []
