"""What a run reports about the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import below, children

from wmrl_gym.sandbox import ExecutionResult, Limits, LocalSandbox

SCRIPTS = {
    "prints": "print('hello')",
    "exits with a number": "import sys; sys.exit(3)",
    "exits with a message": "import sys; sys.exit('no data')",
    "exits with nothing": "raise SystemExit",
    "raises in a function": "def f():\n    raise ValueError('bad')\n\nf()\n",
    "raises from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
    "has a syntax error": "x = (\n",
    "is interrupted": "raise KeyboardInterrupt",
    "ends itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "leaves a file open": "import os\nfile = open(os.environ['SUBMISSION_PATH'], 'w')\nfile.write('id,y\\n')\n",
    "has exit functions": "import atexit\natexit.register(print, 'bye')\n1 / 0\n",
    "leaves a thread": (
        "import threading\ndef late():\n    threading.main_thread().join()\n    print('late')\n"
        "threading.Thread(target=late).start()\nprint('early')\n"
    ),
    "knows its name": "import sys; print(__name__, __file__, sys.argv, sys.path[0], __doc__, __spec__)",
    "has future imports": "from __future__ import annotations\ndef f(x: Missing): pass\nprint(f.__annotations__)",
    "replaces the hook": "import sys\nsys.excepthook = lambda *_: print('hooked')\n1 / 0\n",
    "forks workers": "import multiprocessing\nwith multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
    "writes in C": "import ctypes; ctypes.CDLL(None).printf(b'from C')",
    "reads nothing": "import sys; print(repr(sys.stdin.read()))",
}


def verdict(result: ExecutionResult) -> tuple[object, ...]:
    """All of a result but what it cost."""
    return (
        result.exit_code, result.exceeded, result.stdout, result.stderr,
        result.submission, result.submission_problem, result.failed,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_reports_what_a_plain_interpreter_does(name: str, warm: LocalSandbox, limits: Limits, tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_bytes(SCRIPTS[name].encode())
    environment = {"SUBMISSION_PATH": str(tmp_path / "submission.csv"), "PYTHONDONTWRITEBYTECODE": "1"}
    plain = subprocess.run(
        [sys.executable, tmp_path / "solution.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    result = warm.run(SCRIPTS[name], data_dir=None, limits=limits)
    assert result.exit_code == plain.returncode
    assert result.stdout == plain.stdout.replace(str(tmp_path), "/workspace")
    assert result.stderr == plain.stderr.replace(str(tmp_path), "/workspace")


@pytest.mark.parametrize("name", SCRIPTS)
def test_warm_and_cold_runs_agree(name: str, warm: LocalSandbox, cold: LocalSandbox, limits: Limits) -> None:
    first, second = (kind.run(SCRIPTS[name], data_dir=None, limits=limits) for kind in (warm, cold))
    assert verdict(first) == verdict(second)
    assert first.failed is None


def test_a_traceback_names_the_users_file_and_shows_only_the_users_lines(sandbox: LocalSandbox, limits: Limits) -> None:
    result = sandbox.run("import json\n\n\njson.loads('{')\n", data_dir=None, limits=limits)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1:3] == ['  File "/workspace/solution.py", line 4, in <module>', "    json.loads('{')"]
    assert "runner" not in result.stderr


def test_wall_clock_limit_ends_a_sleeper_and_keeps_what_it_printed(sandbox: LocalSandbox) -> None:
    result = sandbox.run("import time\nprint('so far')\ntime.sleep(600)", data_dir=None, limits=Limits(wall_s=1))
    assert (result.exit_code, result.exceeded, result.stdout) == (None, "wall", "so far\n")
    assert result.wall_s >= 1


def test_cpu_limit_ends_a_spinner(sandbox: LocalSandbox) -> None:
    result = sandbox.run("while True: pass", data_dir=None, limits=Limits(wall_s=120, cpu_s=1))
    assert (result.exit_code, result.exceeded) == (None, "cpu")
    assert result.cpu_s >= 1


def test_cpu_limit_counts_all_processes_together(warm: LocalSandbox) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = warm.run(code, data_dir=None, limits=Limits(wall_s=120, cpu_s=2))
    assert (result.exit_code, result.exceeded) == (None, "cpu")


def test_memory_limit_ends_a_hoarder_and_spares_the_sandbox(sandbox: LocalSandbox, limits: Limits) -> None:
    code = "hoard = []\nwhile True: hoard.append(bytearray(10**7))"
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=60, memory_mb=200))
    assert (result.exit_code, result.exceeded, result.failed) == (None, "memory", None)
    assert 100 < result.peak_memory_mb < 400
    assert sandbox.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_a_sandbox_that_died_after_a_hoarder_does_not_end_the_next_run_as_one(task: Path, limits: Limits) -> None:
    """Nothing of the next run has begun when its data finds the sandbox gone: what the kernel killed was the run before."""
    with LocalSandbox(preimport=()) as own:
        hoard = own.run("hoard = []\nwhile True: hoard.append(bytearray(10**7))", data_dir=None, limits=Limits(memory_mb=200))
        assert hoard.exceeded == "memory"
        (worker,) = own._idle
        worker.terminate()  # its supervisor, which the next run finds gone
        result = own.run("print(open('/data/train.csv').read())", data_dir=task / "public", limits=limits)
    assert (result.exceeded, result.failed, result.stdout) == (None, None, "id,y\n1,2\n\n")


def test_a_program_that_ends_over_its_cpu_time_before_anybody_looks_has_exceeded_it(warm: LocalSandbox) -> None:
    code = "import time\nwhile time.process_time() < 0.31: pass"
    runs = [warm.run(code, data_dir=None, limits=Limits(wall_s=60, cpu_s=0.3)) for _ in range(6)]
    assert [(result.exit_code, result.exceeded) for result in runs] == [(None, "cpu")] * 6
    assert all(result.cpu_s >= 0.3 for result in runs)


def test_memory_limit_counts_all_processes_together(warm: LocalSandbox) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nhoard = b'x' * (120 << 20)\nimport time\ntime.sleep(60)"
    result = warm.run(code, data_dir=None, limits=Limits(wall_s=120, memory_mb=300))
    assert (result.exit_code, result.exceeded) == (None, "memory")


def test_files_are_bounded_and_the_code_is_told(sandbox: LocalSandbox) -> None:
    code = "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(10**6))"
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=60, file_mb=8))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr


def test_processes_are_bounded_and_the_code_is_told(sandbox: LocalSandbox) -> None:
    code = """
import os, time
made = 0
while True:
    try:
        pid = os.fork()
    except BlockingIOError:
        break
    if pid == 0:
        time.sleep(600)
    made += 1
print(made)
"""
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=120, processes=16))
    assert result.exit_code == 0, result
    assert 4 <= int(result.stdout) <= 16


def test_a_flood_of_output_is_cut_in_the_middle_and_marked(sandbox: LocalSandbox) -> None:
    code = "import sys\nprint('begin')\nfor _ in range(2000): print('x' * 100_000)\nprint('end')\nprint('short', file=sys.stderr)"
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=120, cpu_s=120, output_kb=16))
    assert result.exit_code == 0
    assert len(result.stdout) <= 16 << 10
    assert result.stdout.startswith("begin\n")
    assert result.stdout.endswith("x\nend\n")
    assert "bytes cut ...]" in result.stdout
    assert result.stderr == "short\n"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", "missing"),
        ("import os; os.symlink('/etc/passwd', path)", "is a symbolic link"),
        ("import os; os.symlink('nowhere', path)", "is a symbolic link"),
        ("import os; os.mkdir(path)", "is a directory"),
        ("import os; os.mkfifo(path)", "is a fifo"),
        ("import socket; socket.socket(socket.AF_UNIX).bind(path)", "is a socket"),
        ("open(path, 'w').truncate(10**12)", "larger than 8 MB"),
    ],
)
def test_an_unusable_submission_is_named(code: str, problem: str, sandbox: LocalSandbox) -> None:
    code = f"import os\npath = os.environ['SUBMISSION_PATH']\n{code}"
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=60, file_mb=8))
    assert result.exit_code == 0, result
    assert (result.submission, result.submission_problem) == (None, problem)


@pytest.mark.parametrize("content", [b"", b"id,y\n1,2\n", bytes(range(256)) * 4096])
def test_a_submission_comes_out_byte_for_byte(content: bytes, sandbox: LocalSandbox, limits: Limits) -> None:
    times = len(content) // 256 or 1
    code = f"import os\nopen(os.environ['SUBMISSION_PATH'], 'wb').write(bytes.fromhex({content[:256].hex()!r}) * {times})"
    result = sandbox.run(code, data_dir=None, limits=limits)
    assert (result.submission, result.submission_problem) == (content, None)


@pytest.mark.parametrize("code", ["print('\ud800')", "x = 1\0"])
def test_code_that_is_no_text_is_a_syntax_error(code: str, sandbox: LocalSandbox, limits: Limits) -> None:
    result = sandbox.run(code, data_dir=None, limits=limits)
    assert result.exit_code == 1
    assert "SyntaxError" in result.stderr or "cannot contain null bytes" in result.stderr  # a ValueError up to Python 3.11.3


def test_global_random_numbers_differ_between_warm_runs(limits: Limits) -> None:
    with LocalSandbox(preimport=("numpy.random",)) as sandbox:
        code = "import random, numpy\nprint(random.random(), numpy.random.random())"
        outputs = [sandbox.run(code, data_dir=None, limits=limits).stdout.split() for _ in range(2)]
    assert set(outputs[0]).isdisjoint(outputs[1])


LEARNER = """
import warnings
import numpy as np, pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
frame = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=list("abc"))
train, test = train_test_split(frame, random_state=0)
model = LogisticRegression(max_iter=1).fit(train[["a", "b"]] * 1000, train["c"] > 0)
print(model.predict_proba(test[["a", "b"]]).round(6))
warnings.warn("mine")
LogisticRegression().fit(train, train["c"])
"""


def test_a_worker_with_all_imports_neither_changes_results_nor_hides_warnings(cold: LocalSandbox, limits: Limits) -> None:
    with LocalSandbox() as sandbox:
        warm, again = (sandbox.run(LEARNER, data_dir=None, limits=limits) for _ in range(2))
    plain = cold.run(LEARNER, data_dir=None, limits=limits)
    assert verdict(warm) == verdict(again) == verdict(plain)
    assert "ConvergenceWarning" in warm.stderr
    assert "UserWarning: mine" in warm.stderr
    assert "ValueError: Unknown label type" in warm.stderr


def test_a_warm_worker_has_started_no_thread(limits: Limits) -> None:
    before = below(os.getpid(), "bwrap")
    with LocalSandbox() as sandbox:
        sandbox.run("", data_dir=None, limits=limits)
        (worker,) = below(os.getpid(), "bwrap") - before
        (first,) = children(worker)
        assert len(os.listdir(f"/proc/{first}/task")) == 1
