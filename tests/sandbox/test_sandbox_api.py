"""Names, arguments, and the sandbox that isolates nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import NAME_ME, descendants, named

from wmrl_gym.sandbox import Limits, LocalSandbox, RlimitSandbox, Sandbox, make_sandbox
from wmrl_gym.sandbox.inside.outputs import Capture
from wmrl_gym.sandbox.inside.seccomp import filter_program


@pytest.fixture
def unsafe() -> Iterator[RlimitSandbox]:
    with pytest.warns(UserWarning, match="isolates nothing"):
        sandbox = RlimitSandbox()
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("wall_s", 0, ValueError), ("cpu_s", -1.0, ValueError), ("wall_s", float("nan"), ValueError),
        ("cpu_s", float("inf"), ValueError), ("memory_mb", 1.5, TypeError), ("processes", True, TypeError),
        ("file_mb", "64", TypeError), ("output_kb", None, TypeError),
    ],
)  # fmt: skip
def test_senseless_limits_are_refused(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{name} must be a positive"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_sandboxes_are_made_by_name() -> None:
    local = make_sandbox(workers=3)
    assert isinstance(local, LocalSandbox)
    assert local.workers == 3
    assert make_sandbox(local) is local
    with pytest.warns(UserWarning, match="isolates nothing"):
        unsafe = make_sandbox("unsafe-rlimits")
    assert isinstance(unsafe, Sandbox)


def test_an_unknown_sandbox_names_the_known_and_the_closest() -> None:
    with pytest.raises(ValueError, match=r"'lcal'.*'local', 'docker', 'ray', 'unsafe-rlimits'.*closest: 'local'"):
        make_sandbox("lcal")


@pytest.mark.parametrize("kind", [LocalSandbox, RlimitSandbox])
def test_a_pool_without_workers_is_refused(kind: type[LocalSandbox] | type[RlimitSandbox]) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        kind(workers=0)


def test_unisolated_code_runs_with_its_data(unsafe: RlimitSandbox, limits: Limits, task: Path) -> None:
    code = """
import os
print(open(os.environ["DATA_DIR"] + "/train.csv").read())
open(os.environ["SUBMISSION_PATH"], "w").write("done")
"""
    result = unsafe.run(code, data_dir=task / "public", limits=limits)
    assert (result.exit_code, result.stdout, result.submission) == (0, "id,y\n1,2\n\n", b"done"), result


def test_unisolated_code_sees_nothing_of_the_hosts_environment(
    unsafe: RlimitSandbox, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMRL_TEST_TOKEN", "very-secret")
    result = unsafe.run("import os; print(dict(os.environ))", data_dir=None, limits=limits)
    assert "OMP_NUM_THREADS" in result.stdout
    assert "very-secret" not in result.stdout


@pytest.mark.parametrize(
    ("code", "limits", "exceeded"),
    [
        ("import time; time.sleep(600)", Limits(wall_s=1), "wall"),
        ("while True: pass", Limits(wall_s=120, cpu_s=1), "cpu"),
        ("hoard = []\nwhile True: hoard.append(bytearray(10**6))", Limits(wall_s=120, memory_mb=200), "memory"),
        ("import os, time\nfor _ in range(5): os.fork()\ntime.sleep(600)", Limits(wall_s=120, processes=8), "processes"),
    ],
)
def test_unisolated_code_is_bounded(code: str, limits: Limits, exceeded: str, unsafe: RlimitSandbox) -> None:
    result = unsafe.run(code, data_dir=None, limits=limits)
    assert (result.exit_code, result.exceeded, result.failed) == (None, exceeded, None)


def test_unisolated_code_leaves_no_process_and_no_file(unsafe: RlimitSandbox, limits: Limits) -> None:
    name = f"wmrl-{os.getpid()}"
    code = f"""
import os, time
{NAME_ME.format(name=name)}
print(os.getcwd())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
    before = descendants(os.getpid())
    result = unsafe.run(code, data_dir=None, limits=limits)
    assert result.exit_code == 0
    assert not Path(result.stdout.strip()).exists()
    assert named(name) == []
    assert descendants(os.getpid()) == before


def test_an_unisolated_sandbox_pickles_and_closes(unsafe: RlimitSandbox, limits: Limits) -> None:
    copy = pickle.loads(pickle.dumps(unsafe))
    assert copy.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"
    copy.close()
    with pytest.raises(RuntimeError, match="closed"):
        copy.run("print(1)", data_dir=None, limits=limits)


@given(st.lists(st.binary(max_size=300)), st.integers(64, 400))
def test_a_capture_is_bounded_and_keeps_both_ends(parts: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for part in parts:
        capture.write(part)
    whole, text = b"".join(parts), capture.text()
    if len(whole) <= limit:
        assert text == whole.decode(errors="replace")
    else:
        head, _, rest = text.partition("\n[... ")
        cut, _, tail = rest.partition(" bytes cut ...]\n")
        kept = (len(whole) - int(cut)) // 2
        assert (head, tail) == (whole[:kept].decode(errors="replace"), whole[-kept:].decode(errors="replace"))
        assert len(text) <= limit


@pytest.mark.parametrize(("architecture", "known"), [("x86_64", True), ("aarch64", True), ("riscv64", False)])
def test_the_call_filter_is_made_for_known_processors_only(architecture: str, known: bool) -> None:
    program = filter_program(architecture)
    assert (program is not None) == known
    assert program is None or len(program) % 8 == 0
