"""A pool in front of a sandbox: order, bounds, what is not run twice, and what everything cost."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wmrl_gym.sandbox import ExecutionResult, Limits, LocalSandbox, SandboxPool, make_sandbox
from wmrl_gym.sandbox.data_folders import DataFolder
from wmrl_gym.sandbox.records import RunCache, run_key

STAMP = "import uuid\nprint(uuid.uuid4())"
"""Prints something else each time that it is really run."""


class Gate:
    """A sandbox whose runs wait until they are let through; it records in which order they came."""

    def __init__(self, inner: LocalSandbox) -> None:
        self.inner = inner
        self.open = threading.Event()
        self.entered = threading.Event()
        self.order: list[str] = []

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        self.order.append(code)
        self.entered.set()
        assert self.open.wait(60)
        return self.inner.run(code, data_dir=data_dir, limits=limits)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def gate(warm: LocalSandbox) -> Iterator[Gate]:
    gate = Gate(warm)
    yield gate
    gate.open.set()


def test_the_highest_priority_goes_first_and_the_oldest_among_equals(gate: Gate) -> None:
    with SandboxPool(gate, cache=False) as pool:
        first = pool.submit("print('first')")
        assert gate.entered.wait(60)
        rest = [pool.submit(f"print({number})", priority=priority) for number, priority in enumerate((0, 1, 0, 2))]
        gate.open.set()
        assert [run.result().stdout for run in (first, *rest)] == ["first\n", "0\n", "1\n", "2\n", "3\n"]
    assert gate.order == ["print('first')", "print(3)", "print(1)", "print(0)", "print(2)"]


def test_a_view_of_the_pool_has_a_priority_of_its_own(gate: Gate, limits: Limits) -> None:
    with SandboxPool(gate, cache=False) as pool:
        pool.submit("print('first')")
        assert gate.entered.wait(60)
        pool.submit("print('later')")
        anchors = pool.at(5)
        thread = threading.Thread(target=anchors.run, args=("print('anchor')",), kwargs={"data_dir": None, "limits": limits})
        thread.start()
        while not any(job.code == "print('anchor')" for job in list(pool._waiting)):
            assert thread.is_alive()
        gate.open.set()
        thread.join()
        anchors.close()
        assert pool.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
    assert gate.order[:2] == ["print('first')", "print('anchor')"]


def test_identical_runs_that_go_on_together_are_done_once(gate: Gate, tmp_path: Path) -> None:
    with SandboxPool(gate, workers=2, cache=tmp_path / "cache") as pool:
        runs = [pool.submit(STAMP) for _ in range(5)]
        gate.open.set()
        assert len({run.result().stdout for run in runs}) == 1
    assert gate.order == [STAMP]


def test_an_identical_run_that_is_more_urgent_moves_the_other_up(gate: Gate, tmp_path: Path) -> None:
    with SandboxPool(gate, cache=tmp_path / "cache") as pool:
        pool.submit("print('first')")
        assert gate.entered.wait(60)
        waiting = [pool.submit("print(1)"), pool.submit("print(2)"), pool.submit("print(2)", priority=3)]
        gate.open.set()
        assert [run.result().stdout for run in waiting] == ["1\n", "2\n", "2\n"]
    assert gate.order == ["print('first')", "print(2)", "print(1)"]


def test_a_run_that_was_done_before_costs_nothing(warm: LocalSandbox, limits: Limits, task: Path, tmp_path: Path) -> None:
    code = f"{STAMP}\nimport os\nopen(os.environ['SUBMISSION_PATH'], 'wb').write(bytes(range(256)))"
    with SandboxPool(warm, cache=tmp_path / "cache") as pool:
        first = pool.run(code, data_dir=task / "public", limits=limits)
    with SandboxPool(warm, cache=tmp_path / "cache", log=tmp_path / "log.jsonl") as again:
        second = again.run(code, data_dir=task / "public", limits=limits)
        assert (second.stdout, second.submission, second.cpu_s, second.wall_s) == (first.stdout, bytes(range(256)), 0.0, 0.0)
        (task / "public" / "train.csv").write_text("other data")
        third = again.run(code, data_dir=task / "public", limits=limits)
        assert third.stdout != first.stdout
        assert again.run(code, data_dir=task / "public", limits=Limits(wall_s=61, cpu_s=60)).stdout != third.stdout
        assert (again.log.total.runs, again.log.total.cached) == (2, 1)
    assert [json.loads(line)["cached"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [True, False, False]


def test_without_a_cache_everything_is_run(warm: LocalSandbox, limits: Limits) -> None:
    with SandboxPool(warm, workers=2, cache=False) as pool:
        runs = [pool.submit(STAMP, limits=limits) for _ in range(3)]
        assert len({run.result().stdout for run in runs}) == 3


def test_runs_that_depend_on_the_machine_are_not_kept(warm: LocalSandbox, tmp_path: Path) -> None:
    cache = RunCache(tmp_path / "cache")
    with SandboxPool(warm, cache=cache.folder) as pool:
        assert pool.run("import time; time.sleep(60)", data_dir=None, limits=Limits(wall_s=1)).exceeded == "wall"
        pool.run("import os; os.kill(os.getpid(), 9)", data_dir=None, limits=Limits())
    cache.write("ab" * 32, ExecutionResult.lost("no power"))
    assert not cache.folder.exists()


def test_a_damaged_entry_is_run_again(warm: LocalSandbox, limits: Limits, tmp_path: Path) -> None:
    with SandboxPool(warm, cache=tmp_path / "cache") as pool:
        first = pool.run(STAMP, data_dir=None, limits=limits).stdout
        (entry,) = (tmp_path / "cache").rglob("*.json")
        entry.write_text(entry.read_text()[:20])
        assert pool.run(STAMP, data_dir=None, limits=limits).stdout != first
        assert [path.name for path in (tmp_path / "cache").rglob("*.*")] == [entry.name]


def test_the_cache_is_in_the_users_folder_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WMRL_HOME", str(tmp_path))
    opened = RunCache.open(True)
    assert opened is not None
    assert opened.folder == tmp_path / "runs"
    monkeypatch.delenv("WMRL_HOME")
    users = RunCache.open(True)
    assert users is not None
    assert users.folder.parts[-2:] == ("wmrl-gym", "runs")
    assert RunCache.open(False) is None


def test_what_a_run_depends_on_is_in_its_key(task: Path) -> None:
    data = DataFolder.scan(task / "public")
    keys = [
        run_key("a", data, Limits()), run_key("b", data, Limits()), run_key("a", None, Limits()),
        run_key("a", data, Limits(wall_s=1)), run_key("a", data, Limits(), place="docker"), run_key("\ud800", data, Limits()),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert run_key("a", DataFolder.scan(task / "public"), Limits()) == keys[0]


def test_no_more_is_in_flight_than_was_allowed(gate: Gate) -> None:
    with SandboxPool(gate, cache=False, max_in_flight=2) as pool:
        for number in range(2):
            pool.submit(f"print({number})")
        third = threading.Thread(target=pool.submit, args=("print(2)",))
        third.start()
        assert gate.entered.wait(60)
        assert len(pool._pending) == 2
        gate.open.set()
        third.join()
        assert pool.submit("print(3)").result().stdout == "3\n"
    assert len(gate.order) == 4


def test_costs_are_added_up_and_written_down(warm: LocalSandbox, tmp_path: Path) -> None:
    with SandboxPool(warm, cache=False, log=tmp_path / "deep" / "log.jsonl") as pool:
        pool.run("sum(range(10**6))", data_dir=None, limits=Limits())
        pool.submit("1 / 0", priority=3).result()
        total = pool.log.total
    lines = [json.loads(line) for line in (tmp_path / "deep" / "log.jsonl").read_text().splitlines()]
    assert [(line["exit_code"], line["priority"]) for line in lines] == [(0, 0), (1, 3)]
    assert total.runs == 2
    assert total.cpu_s == pytest.approx(sum(line["cpu_s"] for line in lines))
    assert total.wall_s == pytest.approx(sum(line["wall_s"] for line in lines))
    assert total.peak_memory_mb == max(line["peak_memory_mb"] for line in lines) > 0


def test_an_error_of_the_sandbox_reaches_whoever_waits(warm: LocalSandbox, tmp_path: Path) -> None:
    broken = LocalSandbox(preimport=())
    broken.close()
    with SandboxPool(broken, cache=False) as pool:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed"):
                pool.run("", data_dir=None, limits=Limits())
        with pytest.raises(ValueError, match="existing folder"):
            pool.run("", data_dir=tmp_path / "none", limits=Limits())


def test_closing_cancels_what_waits(gate: Gate) -> None:
    pool = SandboxPool(gate, cache=False)
    pool.submit("print(0)")
    assert gate.entered.wait(60)
    waiting = pool.submit("print(1)")
    pool.close()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("print(2)")


def test_threads_end_when_there_is_nothing_to_do_and_come_back(warm: LocalSandbox, limits: Limits) -> None:
    with SandboxPool(warm, workers=2, cache=False, idle_s=0.01) as pool:
        for number in range(2):
            assert pool.run(f"print({number})", data_dir=None, limits=limits).stdout == f"{number}\n"
            while pool._threads:
                pass


def test_a_pool_is_made_again_by_pickle_and_by_name(limits: Limits) -> None:
    with SandboxPool("local", cache=False) as pool, pickle.loads(pickle.dumps(pool)) as copy:
        assert copy.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
        assert make_sandbox(pool) is pool


@pytest.mark.parametrize("name", ["workers", "max_in_flight"])
def test_senseless_arguments_are_refused(name: str, warm: LocalSandbox) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SandboxPool(warm, **{name: 0})  # type: ignore[arg-type]
