"""What breaks on this side is told apart from what the code does: hard limits of the machine, places that cannot be written."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from wmrl_gym.sandbox import ExecutionResult, Limits, LocalSandbox, RlimitSandbox, SandboxPool, SandboxUnavailable
from wmrl_gym.sandbox.inside.limits import kernel_limits
from wmrl_gym.sandbox.records import RunCache
from wmrl_gym.sandbox.worker import request_of

CHILD = """
import os, pickle, resource, sys, warnings
warnings.simplefilter("ignore")
import wmrl_gym.sandbox as s
kinds, limit, value, code = pickle.loads(bytes.fromhex(sys.argv[1]))
resource.setrlimit(limit, (value, value))
answers = []
for kind in kinds:
    made = s.RlimitSandbox() if kind == "unsafe-rlimits" else s.LocalSandbox(preimport=(), warm=kind == "warm")
    try:
        answers.append(made.run(code, data_dir=None, limits=s.Limits(wall_s=60, cpu_s=60)))
    except s.SandboxUnavailable as error:
        answers.append(error)
    made.close()
os.write(1, pickle.dumps(answers))
"""
CORRECT = "import os\nopen(os.environ['SUBMISSION_PATH'], 'w').write('answer')"


def under_limit(kinds: Sequence[str], limit: int, value: int, code: str = CORRECT) -> list[ExecutionResult | SandboxUnavailable]:
    """The result of each kind of sandbox in a process with a hard limit."""
    told = pickle.dumps((kinds, limit, value, code)).hex()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CHILD, told], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    answers: list[ExecutionResult | SandboxUnavailable] = pickle.loads(done.stdout)
    return answers


def threads_of_this_user() -> int:
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            found += len(list((process / "task").iterdir())) if process.stat().st_uid == os.getuid() != 0 else 0
    return found


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        (resource.RLIMIT_NOFILE, 512), (resource.RLIMIT_NOFILE, 128), (resource.RLIMIT_AS, 16 << 30),
        (resource.RLIMIT_AS, 4 << 30),
        (resource.RLIMIT_NPROC, 60), (resource.RLIMIT_CPU, 100), (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, 4 << 30), (resource.RLIMIT_STACK, 8 << 20),
        (resource.RLIMIT_MEMLOCK, 0),
    ],
)  # fmt: skip
def test_a_correct_script_is_not_a_crash_under_a_low_hard_limit(limit: int, value: int) -> None:
    kinds = ("warm", "cold", "unsafe-rlimits")
    if limit == resource.RLIMIT_NPROC:
        value += threads_of_this_user()  # they count as well, those of other tests included
    for kind, result in zip(kinds, under_limit(kinds, limit, value), strict=True):
        assert isinstance(result, ExecutionResult), (kind, result)
        assert (result.exit_code, result.submission, result.failed) == (0, b"answer", None), (kind, result)


def test_the_smaller_of_two_limits_holds() -> None:
    code = "import os\nfiles = []\ntry:\n    while True: files.append(open('/dev/null'))\nexcept OSError: print(len(files))"
    for result in under_limit(("warm", "cold"), resource.RLIMIT_NOFILE, 200, code):
        assert isinstance(result, ExecutionResult), result
        assert int(result.stdout) < 200
    for spun in under_limit(("warm", "cold"), resource.RLIMIT_CPU, 3, "while True: pass"):
        assert isinstance(spun, ExecutionResult), spun
        assert (spun.exit_code, spun.exceeded) == (None, "cpu")


@pytest.mark.parametrize(("limit", "value"), [(resource.RLIMIT_FSIZE, 16), (resource.RLIMIT_NOFILE, 12)])
def test_what_cannot_be_set_up_is_no_verdict(limit: int, value: int) -> None:
    for result in under_limit(("warm", "cold"), limit, value, "x" * 10_000):
        if isinstance(result, ExecutionResult):
            assert result.failed
            assert (result.exit_code, result.exceeded, result.submission) == (None, None, None)


def test_a_failed_run_is_not_kept(tmp_path: Path) -> None:
    cache = RunCache(tmp_path)
    cache.write("a" * 64, ExecutionResult.lost("the program could not be set up"))
    assert cache.read("a" * 64) is None


def test_a_lost_run_is_explained_by_what_broke_and_not_by_older_warnings(tmp_path: Path, limits: Limits) -> None:
    site = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    (site / "noisy.py").write_text("import warnings\nwarnings.warn('nothing to do with it')")
    with LocalSandbox(packages=tmp_path, preimport=("noisy",)) as sandbox:
        assert sandbox.run("", data_dir=None, limits=limits).exit_code == 0
        worker = sandbox._idle[0]
        worker.terminate()
        sandbox._idle.clear()
        assert "nothing to do with it" not in worker.kill()


def test_packages_may_be_others_than_those_outside(tmp_path: Path, limits: Limits) -> None:
    site = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    (site / "only_inside.py").write_text("answer = 42")
    code = "import only_inside, subprocess, sys\nprint(only_inside.answer)\n"
    code += "try:\n    import numpy\nexcept ImportError: print('no numpy')"
    code += "\nprint(subprocess.run([sys.executable, '-c', 'import only_inside'], capture_output=True).returncode)"
    for warm in (True, False):
        with LocalSandbox(packages=tmp_path, warm=warm) as sandbox, pickle.loads(pickle.dumps(sandbox)) as copy:
            for each in (sandbox, copy):
                assert each.run(code, data_dir=None, limits=limits).stdout == "42\nno numpy\n0\n"
    with pytest.raises(ValueError, match=r"packages must be .*bin/python"):
        LocalSandbox(packages=tmp_path / "none")
    with LocalSandbox(packages=tmp_path) as one, LocalSandbox() as other:
        assert SandboxPool(one, cache=False)._place != SandboxPool(other, cache=False)._place


@pytest.mark.parametrize("kind", ["cache", "log"])
def test_a_pool_that_cannot_write_says_so_and_goes_on(kind: str, warm: LocalSandbox, limits: Limits, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    where = tmp_path / "file" / kind
    with SandboxPool(warm, cache=where if kind == "cache" else False, log=where if kind == "log" else None) as pool:
        for number in range(3):
            with pytest.raises(OSError, match=f"the {kind} of runs cannot be written.*{kind}="):
                pool.submit(f"print({number})", limits=limits).result(timeout=120)
        (tmp_path / "file").unlink()
        assert pool.submit("print(4)", limits=limits).result(timeout=120).stdout == "4\n"


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    from wmrl_gym.sandbox.data_folders import LeasedFolder

    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(OSError, match="TMPDIR"):
        LeasedFolder("wmrl-test")
    with LocalSandbox(preimport=()) as sandbox:  # needs none
        assert sandbox.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_every_limit_reaches_the_other_side_and_is_described() -> None:
    """One list: what it names is what is sent, and what can end a run can be told to people."""
    limits = Limits(wall_s=1, cpu_s=2, memory_mb=3, processes=4, file_mb=5, output_kb=6)
    sent = request_of(limits, watch_memory=True)["limits"]
    assert Limits(**sent) == limits
    assert set(sent) == {each.name for each in fields(Limits)}
    assert [limits.describe(name) for name in ("wall", "cpu", "memory", "processes")] == [
        "1 s of wall-clock time", "2 s of CPU time", "3 MiB of memory", "4 processes",
    ]  # fmt: skip
    assert all(f"        {each.name}: " in (Limits.__doc__ or "") for each in fields(Limits))
    assert kernel_limits(limits, isolated=True)[resource.RLIMIT_NPROC] == 5


def test_no_other_file_lists_the_limits() -> None:
    """A limit that is added is named where it is declared and where it is enforced, and nowhere else as one of a list."""
    names = [each.name for each in fields(Limits)]
    package = Path(sys.modules["wmrl_gym.sandbox"].__file__ or "").parent.parent
    listing = [
        str(path.relative_to(package)) for path in package.rglob("*.py") if all(name in path.read_text() for name in names)
    ]
    assert listing == ["sandbox/inside/limits.py"]


def test_unsafe_runs_count_what_they_can() -> None:
    with pytest.warns(UserWarning, match="isolates nothing"):
        sandbox = RlimitSandbox()
    code = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    code += "for _ in range(8):\n    if os.fork() == 0:\n        until = time.process_time() + 0.3\n"
    code += "        while time.process_time() < until: pass\n        os._exit(0)\ntime.sleep(20)"
    assert sandbox.run(code, data_dir=None, limits=Limits(wall_s=100, cpu_s=1)).exceeded == "cpu"
    sandbox.close()
