"""What code in a sandbox cannot do."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from processes import NAME_ME, named

from wmrl_gym.sandbox import Limits, LocalSandbox

TRY = """
import json, os, sys, ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments):
    try:
        return repr(function(*arguments))
    except OSError as error:
        return errno.errorcode[error.errno]
def call(function, *arguments):
    ctypes.set_errno(0)
    return errno.errorcode[ctypes.get_errno()] if function(*arguments) == -1 else "done"
"""


def report(sandbox: LocalSandbox, code: str, limits: Limits, *, data_dir: Path | None = None) -> dict[str, object]:
    """Run code that leaves its findings in ``found``."""
    result = sandbox.run(f"{TRY}\n{code}\nprint(json.dumps(found))", data_dir=data_dir, limits=limits)
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_no_listener_of_the_host_can_be_reached(sandbox: LocalSandbox, limits: Limits) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0wmrl-test-{os.getpid()}")
        local.listen()
        code = f"""
import socket
found = {{
    "tcp": attempt(lambda: socket.socket().connect(("127.0.0.1", {server.getsockname()[1]}))),
    "unix": attempt(socket.socket(socket.AF_UNIX).connect, "\\0wmrl-test-{os.getpid()}"),
    "outside": attempt(lambda: socket.socket().connect(("192.0.2.1", 80))),
    "vsock": attempt(socket.socket, 40, socket.SOCK_STREAM),
    "packet": attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
}}"""
        found = report(sandbox, code, limits)
    assert found == {
        "tcp": "EAFNOSUPPORT", "unix": "ECONNREFUSED", "outside": "EAFNOSUPPORT",
        "vsock": "EAFNOSUPPORT", "packet": "EAFNOSUPPORT",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_nothing_of_the_hosts_environment_is_seen(kind: str, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMRL_TEST_TOKEN", "very-secret")
    with LocalSandbox(preimport=(), warm=kind == "warm") as sandbox:
        code = """
found = dict(os.environ)
found["others"] = [attempt(open(f"/proc/{pid}/environ").read) for pid in ("self",)]
found["first"] = attempt(lambda: open("/proc/1/environ").read())
"""
        found = report(sandbox, code, limits)
    assert "very-secret" not in str(found)
    assert found["first"] == "EACCES"
    for name, value in {"HOME": "/workspace", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "DATA_DIR": "/data"}.items():
        assert found[name] == value
    assert found["SUBMISSION_PATH"] == "/workspace/submission.csv"


def test_the_answers_beside_the_data_cannot_be_reached(sandbox: LocalSandbox, limits: Limits, task: Path) -> None:
    code = f"""
places = [os.environ["DATA_DIR"], {str(task)!r}, {str(task / "public")!r}, "/store"]
places += ["/proc/self/root", "/proc/1/root", "/proc/1/cwd"]
places += [f"/proc/self/fd/{{n}}" for n in range(100)]
found = {{"data": open("/data/train.csv").read(), "seen": []}}
for place in places:
    for tail in ("", "/..", "/../private", "/private", {str(task)!r}):
        found["seen"] += attempt(os.listdir, place + tail).split()
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if (folder, name) not in {{("/", "proc"), ("/", "usr")}} and name != "site-packages"]
    found["seen"] += [name for name in files if name.endswith(".csv")]
"""
    found = report(sandbox, code, limits, data_dir=task / "public")
    assert found["data"] == "id,y\n1,2\n"
    assert "train.csv" in str(found["seen"])
    assert "answers" not in str(found["seen"])


def test_a_data_folder_that_links_to_its_answers_is_refused(warm: LocalSandbox, limits: Limits, task: Path) -> None:
    (task / "public" / "extra.csv").symlink_to(task / "private" / "answers.csv")
    with pytest.raises(ValueError, match="links to"):
        warm.run("", data_dir=task / "public", limits=limits)


def test_a_missing_data_folder_is_refused(warm: LocalSandbox, limits: Limits, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="existing folder"):
        warm.run("", data_dir=tmp_path / "none", limits=limits)


def test_the_data_that_tasks_are_made_from_is_hidden(sandbox: LocalSandbox, limits: Limits) -> None:
    code = "import sklearn.datasets\nsklearn.datasets.load_breast_cancer()"
    result = sandbox.run(code, data_dir=None, limits=limits)
    assert result.exit_code == 1
    assert "FileNotFoundError" in result.stderr


def test_data_cannot_be_changed(sandbox: LocalSandbox, limits: Limits, task: Path) -> None:
    code = """
found = [
    attempt(open, "/data/train.csv", "a"), attempt(open, "/data/new", "w"), attempt(os.chmod, "/data/train.csv", 0o777),
    attempt(os.unlink, "/data/train.csv"), attempt(os.mkdir, "/data/folder"), attempt(os.rename, "/data", "/workspace/x"),
]"""
    found = report(sandbox, code, limits, data_dir=task / "public")
    assert set(found) <= {"EROFS", "EACCES", "EPERM", "EBUSY", "EXDEV"}
    assert (task / "public" / "train.csv").read_text() == "id,y\n1,2\n"


def test_only_the_workspace_and_temporary_folders_can_be_written(sandbox: LocalSandbox, limits: Limits) -> None:
    code = """
places = {line.split()[1] for line in open("/proc/self/mounts")} | {"/etc", "/root", "/runner", "/dev"}
def writable(place):
    return os.path.isdir(place) and attempt(lambda: open(place + "/probe", "w").close()) == "None"
found = {"writable": sorted(filter(writable, places))}
"""
    assert report(sandbox, code, limits)["writable"] == ["/dev/shm", "/tmp", "/workspace"]


def test_runs_find_nothing_of_one_another(warm: LocalSandbox, limits: Limits, task: Path) -> None:
    leave = """
for place in ("/workspace", "/tmp", "/dev/shm"):
    open(place + "/left-behind", "w").close()

found = {}
"""
    look = """
found = {
    "files": [place for place in ("/workspace", "/tmp", "/dev/shm") if os.path.exists(place + "/left-behind")],
    "semaphore": call(libc.semget, 4711, 1, 0o1666),
    "data": attempt(os.listdir, "/data"), "store": attempt(os.listdir, "/store"),
}"""
    report(warm, leave, limits, data_dir=task / "public")
    assert report(warm, look, limits) == {"files": [], "semaphore": "EPERM", "data": "[]", "store": "[]"}


def test_the_supervisor_can_be_neither_seen_into_nor_stopped(sandbox: LocalSandbox, limits: Limits) -> None:
    code = """
import signal
found = {
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()],
    "mem": attempt(open, "/proc/1/mem", "rb"), "maps": attempt(open, "/proc/1/maps"), "root": attempt(os.listdir, "/proc/1/root"),
    "fds": attempt(os.listdir, "/proc/1/fd"), "ptrace": call(libc.ptrace, 16, 1, 0, 0),
    "read": call(libc.process_vm_readv, 1, None, 0, None, 0, 0),
    "descriptors": [os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in sorted(os.listdir("/proc/self/fd"))[:3]],
    "more": [name for name in os.listdir("/proc/self/fd") if int(name) > 3],
}
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT):
    attempt(os.kill, 1, number)
"""
    found = report(sandbox, code, limits)
    assert found == {
        "processes": True, "mem": "EACCES", "maps": "EACCES", "root": "EACCES", "fds": "EACCES",
        "ptrace": "EPERM", "read": "EPERM",
        "descriptors": ["/dev/null", "pipe", "pipe"], "more": [],
    }  # fmt: skip


def test_dangerous_system_calls_are_refused(sandbox: LocalSandbox, limits: Limits) -> None:
    code = """
found = {
    "user namespace": call(libc.unshare, 0x10000000), "mount": call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None),
    "unmount": call(libc.umount2, b"/workspace", 2), "chroot": call(libc.chroot, b"/tmp"),
    "keys": call(libc.syscall, 250, 0, 0, 0, 0), "bpf": call(libc.syscall, 321, 0, 0, 0),
    "lasting memory": call(libc.shmget, 4711, 4096, 0o1666), "rings": call(libc.syscall, 425, 1, None),
    "clone into namespaces": call(libc.syscall, 56, 0x10000011, None, None, None, None),
    "other's limits": call(libc.prlimit, 1, 0, ctypes.create_string_buffer(16), None),
    "other's turn": call(libc.setpriority, 0, 1, 19),
    "other's processor": call(libc.sched_setaffinity, 1, 8, ctypes.create_string_buffer(b"\1", 8)),
    "perf": call(libc.syscall, 298, None, 0, -1, -1, 0), "open tree": call(libc.syscall, 428, -100, b"/", 1),
}"""
    assert set(report(sandbox, code, limits).values()) == {"EPERM"}


def test_code_is_nobody_and_has_no_privilege(sandbox: LocalSandbox, limits: Limits) -> None:
    code = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("Uid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
found = {name: status[name].split() for name in names}
found["map"] = open("/proc/self/uid_map").read().split()
"""
    found = report(sandbox, code, limits)
    user = found.pop("Uid")
    assert isinstance(user, list)
    assert set(user) != {"0"}
    assert len(set(user)) == 1
    assert found.pop("map") == [user[0], user[0], "1"], "nobody inside is someone else outside"
    assert {name: value for name, value in found.items() if name.startswith("Cap")} == {
        name: ["0" * 16] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    }
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])


def test_no_process_survives_its_run(sandbox: LocalSandbox, limits: Limits) -> None:
    name = f"wmrl-{os.getpid()}"
    code = f"""
import os, time
{NAME_ME.format(name=name)}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
    result = sandbox.run(code, data_dir=None, limits=limits)
    assert result.exit_code == 0
    assert named(name) == []


def test_no_process_survives_a_limit(sandbox: LocalSandbox) -> None:
    name = f"wmrl-{os.getpid()}"
    fork = "for _ in range(3):\n    if os.fork() == 0: os.setpgrp()\n"
    code = f"import os, time\n{NAME_ME.format(name=name)}\n{fork}\ntime.sleep(600)"
    assert sandbox.run(code, data_dir=None, limits=Limits(wall_s=1)).exceeded == "wall"
    assert named(name) == []
