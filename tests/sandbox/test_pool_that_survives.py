"""What keeps a queue of runs from ever standing still: threads that cannot be had, runs that nobody wants any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from wmrl_gym.sandbox import ExecutionResult, Limits, SandboxPool


class Echo:
    """Runs nothing: it prints the code, once the gate is open."""

    def __init__(self) -> None:
        self.gate, self.entered, self.most = threading.Event(), threading.Semaphore(0), 0

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        self.entered.release()
        assert self.gate.wait(60)
        return ExecutionResult(0, None, code, "", None, "none", None, 0.0, 0.0, 0.0)

    def close(self) -> None:
        self.gate.set()


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_had_submitting_says_so_and_later_runs_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    echo.gate.set()
    pool = SandboxPool(echo, cache=False, max_in_flight=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit("a")
    assert pool.submit("a").result(60).stdout == "a"
    pool.close()


def test_where_no_second_thread_can_be_had_the_first_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    pool = SandboxPool(echo, workers=2, cache=False)
    first = pool.submit("a")
    assert echo.entered.acquire(timeout=60)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = pool.submit("b")
    echo.gate.set()
    assert [run.result(60).stdout for run in (first, second)] == ["a", "b"]
    pool.close()


def test_a_run_that_was_cancelled_is_not_joined_by_whoever_wants_it_later(tmp_path: Path) -> None:
    echo = Echo()
    pool = SandboxPool(echo, cache=tmp_path / "cache", max_in_flight=8)
    pool.submit("first")
    assert echo.entered.acquire(timeout=60)
    assert pool.submit("wanted").cancel()
    again = pool.submit("wanted")
    echo.gate.set()
    assert again.result(60).stdout == "wanted"
    pool.close()


def test_every_worker_is_woken_by_runs_that_come_at_once() -> None:
    echo = Echo()
    echo.gate.set()
    pool = SandboxPool(echo, workers=2, cache=False)
    pool.submit("alone").result(60)
    while not pool._idle:
        pass
    echo.gate.clear()
    echo.entered = threading.Semaphore(0)
    with pool._changed:  # neither thread of two can have begun when the second run comes
        runs = [pool._enter(str(n), str(n), data_dir=None, limits=Limits(), priority=0) for n in range(2)]
    assert all(echo.entered.acquire(timeout=60) for _ in range(2))  # both are under way, side by side
    echo.gate.set()
    assert [run.result(60).stdout for run in runs] == ["0", "1"]
    pool.close()
