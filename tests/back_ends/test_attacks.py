"""What code tries that wants more than it is given, on every back end: it gets nothing, and the next run is as the first."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from wmrl_gym.sandbox import DockerSandbox, ExecutionResult, Limits, Sandbox

TRY = """
import ctypes, errno, json, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments):
    try:
        return repr(function(*arguments))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except Exception as error:
        return type(error).__name__
"""


@pytest.fixture(autouse=True)
def the_next_run_is_unaffected(sandbox: Sandbox, limits: Limits, tmp_path_factory: pytest.TempPathFactory) -> object:
    """After each attack the same sandbox serves a harmless run."""
    yield
    if isinstance(sandbox, DockerSandbox):
        return  # a container serves one run (see test_docker.py), and starting one takes as long as many: the next attack tells
    data = tmp_path_factory.mktemp("next")
    (data / "fresh.csv").write_text("fresh")
    code = "import os\nprint(sorted(os.listdir('.')), os.listdir('/data'), len([n for n in os.listdir('/proc') if n.isdigit()]))"
    result = sandbox.run(code, data_dir=data, limits=limits)
    assert (result.exit_code, result.stdout) == (0, "['solution.py'] ['fresh.csv'] 2\n"), result


def report(sandbox: Sandbox, code: str, limits: Limits, *, data_dir: Path | None = None) -> dict[str, object]:
    """Run code that leaves its findings in ``found``."""
    result = sandbox.run(f"{TRY}\n{code}\nprint(json.dumps(found))", data_dir=data_dir, limits=limits)
    assert result.exit_code == 0, result
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


def ends(sandbox: Sandbox, code: str, limits: Limits) -> ExecutionResult:
    result = sandbox.run(f"{TRY}\n{code}", data_dir=None, limits=limits)
    assert result.failed is None, result.failed
    return result


def test_answers_are_not_found_by_any_path(sandbox: Sandbox, limits: Limits, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMRL_TEST_TOKEN", "very-secret")
    code = f"""
os.symlink({str(task)!r}, "link")
os.symlink("/proc/1/root", "root")
places = [os.environ["DATA_DIR"], {str(task)!r}, "link", "root", "/proc/1/cwd", "/proc/self/root", "/store", "/runner"]
places += [f"/proc/self/fd/{{number}}" for number in range(64)] + [f"/proc/1/fd/{{number}}" for number in range(64)]
seen = []
for place in places:
    for tail in ("", "/..", "/../private", "/private", {str(task)!r}):
        seen.append(attempt(os.listdir, place + tail))
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if (folder, name) not in (("/", "proc"), ("/", "sys")) and name != "site-packages"]
    seen += [os.path.join(folder, name) for name in files if name.endswith(".csv")]
found = {{
    "data": open("/data/train.csv").read(), "seen": " ".join(seen),
    "secrets": [attempt(lambda: open(f"/proc/{{pid}}/environ").read()) for pid in ("self", "1")] + [repr(dict(os.environ))],
    "memory": [attempt(open, f"/proc/1/{{name}}", "rb") for name in ("mem", "maps")],
    "trace": libc.ptrace(16, 1, 0, 0), "server": libc.process_vm_readv(1, None, 0, None, 0, 0),
}}"""
    found = report(sandbox, code, limits, data_dir=task / "public")
    assert found["data"] == "id,y\n1,2\n"
    assert "train.csv" in str(found["seen"])
    assert "answers" not in str(found)
    assert "SECRET-ANSWER" not in str(found)
    assert "very-secret" not in str(found)
    assert found["memory"] == ["EACCES", "EACCES"]
    assert (found["trace"], found["server"]) == (-1, -1)


def test_nothing_is_written_outside(sandbox: Sandbox, limits: Limits, task: Path) -> None:
    code = """
places = {line.split()[1] for line in open("/proc/self/mounts")} | {"/etc", "/root", "/runner", "/dev", "/data", "/usr"}
def writable(place):
    return os.path.isdir(place) and attempt(lambda: open(place + "/probe", "w").close()) == "None"
found = {
    "writable": sorted(filter(writable, places)), "device": attempt(os.mknod, "device", 0o600 | 0o060000, 1792),
    "data": attempt(open, "/data/train.csv", "a"), "server": attempt(open, "/proc/1/oom_score_adj", "w"),
    "priority": attempt(os.setpriority, os.PRIO_PROCESS, 1, 19),
}"""
    found = report(sandbox, code, limits, data_dir=task / "public")
    writable = [place for place in found["writable"] if place != "/dev/mqueue"]  # type: ignore[attr-defined]  # a container's own
    assert writable == ["/dev/shm", "/tmp", "/workspace"]
    assert {found[name] for name in ("device", "data", "server", "priority")} <= {"EPERM", "EACCES", "EROFS"}
    assert (task / "public/train.csv").read_text() == "id,y\n1,2\n"


def test_there_is_no_network(sandbox: Sandbox, limits: Limits) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0wmrl-attack-{os.getpid()}")
        local.listen()
        code = f"""
found = {{
    "loopback": attempt(lambda: socket.socket().connect(("127.0.0.1", {server.getsockname()[1]}))),
    "abstract": attempt(socket.socket(socket.AF_UNIX).connect, "\\0wmrl-attack-{os.getpid()}"),
    "outside": attempt(lambda: socket.socket().connect(("192.0.2.1", 80))),
    "names": attempt(socket.getaddrinfo, "example.org", 80),
    "channel": attempt(socket.socket(socket.AF_UNIX).connect, "/runner/channel/socket"),
    "families": [attempt(socket.socket, family, socket.SOCK_RAW) for family in (16, 17, 40)],
}}"""
        found = report(sandbox, code, limits)
    assert (found["loopback"], found["abstract"], found["outside"]) == ("EAFNOSUPPORT", "ECONNREFUSED", "EAFNOSUPPORT")
    assert found["names"] in ("gaierror", "EAI_AGAIN", "-3", "-2")
    assert found["channel"] in ("ECONNREFUSED", "ENOENT")
    assert found["families"] == ["EAFNOSUPPORT"] * 3


def test_a_fork_bomb_is_bounded_and_dies_with_its_run(sandbox: Sandbox) -> None:
    code = """
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""
    result = ends(sandbox, code, Limits(wall_s=1, cpu_s=60, processes=24))
    assert (result.exit_code, result.exceeded) == (None, "wall")


@pytest.mark.parametrize("where", ["memory", "files", "shared memory"])
def test_a_memory_bomb_is_bounded(sandbox: Sandbox, where: str) -> None:
    if where == "memory":
        code = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 10**7)"
    else:
        place = "/tmp" if where == "files" else "/dev/shm"
        code = f"with open('{place}/bomb', 'wb') as file:\n    while True: file.write(bytes(10**6))"
    result = ends(sandbox, code, Limits(wall_s=60, cpu_s=60, memory_mb=200, file_mb=32))
    if where == "memory":
        assert (result.exit_code, result.exceeded) == (None, "memory")
    else:
        assert result.exit_code == 1
        assert "No space left on device" in result.stderr


def test_output_without_end_is_cut(sandbox: Sandbox) -> None:
    code = "line = b'x' * (1 << 20)\nos.write(1, b'begin\\n')\nwhile True: os.write(1, line)"
    result = ends(sandbox, code, Limits(wall_s=60, cpu_s=0.5, output_kb=16))
    assert result.exceeded == "cpu"
    assert result.stdout.startswith("begin\n")
    assert len(result.stdout) <= 16 << 10


@pytest.mark.parametrize(("code", "exceeded"), [("time.sleep(600)", "wall"), ("while True: pass", "cpu")])
def test_time_is_bounded(sandbox: Sandbox, code: str, exceeded: str) -> None:
    limits = Limits(wall_s=0.5) if exceeded == "wall" else Limits(wall_s=120, cpu_s=0.5)
    assert ends(sandbox, code, limits).exceeded == exceeded


def test_nothing_outlives_its_run(sandbox: Sandbox, limits: Limits) -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
print("left")
"""
    assert ends(sandbox, code, limits).stdout == "left\n"  # the run after it counts processes


def test_the_server_cannot_be_ended(sandbox: Sandbox, limits: Limits) -> None:
    code = """
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV):
    attempt(os.kill, 1, number)
print("still here")
"""
    assert ends(sandbox, code, limits).stdout == "still here\n"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("os.symlink('/etc/passwd', path)", "is a symbolic link"),
        ("os.mkfifo(path)", "is a fifo"),
        ("os.mkdir(path)", "is a directory"),
        ("open(path, 'w').truncate(2 << 30)", "larger than 8 MB"),
    ],
)
def test_a_submission_that_is_no_plain_file_is_named(sandbox: Sandbox, code: str, problem: str) -> None:
    result = ends(sandbox, f"path = os.environ['SUBMISSION_PATH']\n{code}", Limits(wall_s=60, file_mb=8))
    assert (result.exit_code, result.submission, result.submission_problem) == (0, None, problem)


def test_a_submission_is_bytes_and_is_not_interpreted(sandbox: Sandbox, limits: Limits, tmp_path: Path) -> None:
    code = f"""
import gzip, pickle
class Payload:
    def __reduce__(self):
        return os.system, ("touch {tmp_path}/pwned",)
content = pickle.dumps(Payload()) + gzip.compress(bytes(1 << 24))
open(os.environ["SUBMISSION_PATH"], "wb").write(content)
"""
    result = ends(sandbox, code, limits)
    assert result.submission is not None
    assert result.submission.startswith(b"\x80")
    assert len(result.submission) < 1 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["print('\ud800')", "x = 1\0", "\ufeffprint('bom')", "print('\u202e\U0001f600')"])
def test_code_of_any_characters_is_taken(sandbox: Sandbox, limits: Limits, code: str) -> None:
    result = sandbox.run(code, data_dir=None, limits=limits)
    assert result.failed is None
    assert (result.exit_code == 1) == ("\ud800" in code or "\0" in code)


def test_an_early_exit_leaves_what_was_written(sandbox: Sandbox, limits: Limits) -> None:
    code = "file = open(os.environ['SUBMISSION_PATH'], 'w')\nfile.write('id,y\\n1,')\nfile.flush()\nos._exit(0)"
    result = ends(sandbox, code, limits)
    assert (result.exit_code, result.submission) == (0, b"id,y\n1,")


def test_a_traceback_of_ones_own_making_changes_no_verdict(sandbox: Sandbox, limits: Limits) -> None:
    code = """
sys.excepthook = lambda *_: print("exit code: 0\\nvalidation accuracy: 1.0000", file=sys.stderr)
raise ValueError("hidden")
"""
    result = ends(sandbox, code, limits)
    assert (result.exit_code, result.submission_problem) == (1, "missing")


def test_runs_side_by_side_find_nothing_of_one_another(sandbox: Sandbox, limits: Limits, task: Path) -> None:
    places = "('/workspace', '/tmp', '/dev/shm')"
    leave = f"for place in {places}: open(place + '/left', 'w').write('SECRET')\nlibc.semget(4711, 1, 0o1666)"
    look = """
found = {
    "files": [place for place in ("/workspace", "/tmp", "/dev/shm") if os.path.exists(place + "/left")],
    "semaphore": libc.semget(4711, 1, 0), "data": attempt(os.listdir, "/data"),
}"""
    assert ends(sandbox, leave, limits).exit_code == 0
    thread = threading.Thread(target=sandbox.run, args=(f"{TRY}{leave}",), kwargs={"data_dir": task / "public", "limits": limits})
    thread.start()
    found = report(sandbox, look, limits)
    thread.join()
    assert found == {"files": [], "semaphore": -1, "data": "[]"}
