"""Code that tries to use more than its limits without being counted, or to make its verdict void: on every back end."""

from __future__ import annotations

from pathlib import Path

import pytest

from wmrl_gym.sandbox import DockerSandbox, ExecutionResult, Limits, Sandbox

BEGIN = """
import ctypes, mmap, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_void_p
MIB = 1 << 20
BLOCK = bytes(range(256)) * (MIB // 256)
def checked(result):
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""
HOLD = "\ntime.sleep(1)\nprint('held it all')\n"
HOARDS = {
    "a file in memory": """
fd = os.memfd_create("hoard")
for _ in range(1500): os.write(fd, BLOCK)
""",
    "a secret file in memory": "fd = checked(libc.syscall(447, 0))\nos.truncate(fd, 1500 * MIB)",
    "shared memory of System V": """
for _ in range(15):
    place = checked(libc.shmat(checked(libc.shmget(0, 100 * MIB, 0o1600)), None, 0))
    ctypes.memset(place, 1, 100 * MIB)
""",
    "queues of System V": """
held = [checked(libc.msgget(0, 0o1600)) for _ in range(10000)]
for queue in held: [libc.msgsnd(queue, ctypes.create_string_buffer(b"x" * 8192), 8000, 0o4000) for _ in range(2)]
""",
    "semaphores of System V": "held = [checked(libc.semget(0, 32000, 0o1600)) for _ in range(1000)]",
    "a shared mapping": """
held = mmap.mmap(-1, 1500 * MIB)
for _ in range(1500): held.write(BLOCK)
""",
    "a shared mapping that is let go of": """
held = mmap.mmap(-1, 1500 * MIB)
for at in range(1500):
    held.write(BLOCK)
    held.madvise(mmap.MADV_DONTNEED, at * MIB, MIB)
""",
    "the zero device": """
with open("/dev/zero", "r+b", buffering=0) as zero: held = mmap.mmap(zero.fileno(), 1500 * MIB)
for _ in range(1500): held.write(BLOCK)
""",
    "forked copies": """
held = []
for _ in range(6):
    held.append(bytearray(BLOCK * 250))
    if os.fork() == 0: time.sleep(600)
""",
    "copies that hide": """
libc.prctl(4, 0, 0, 0, 0)
held = []
for _ in range(6):
    held.append(bytearray(BLOCK * 250))
    if os.fork() == 0: time.sleep(600)
""",
    "socket buffers": """
for _ in range(8):
    if os.fork() == 0:
        held = [socket.socketpair() for _ in range(480)]
        for pair in held:
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                end.setblocking(False)
                try:
                    while True: end.send(BLOCK[:65536])
                except BlockingIOError: pass
        time.sleep(600)
time.sleep(10)
""",
    "socket buffers of closed senders": """
for _ in range(16):
    if os.fork() == 0:
        held = []
        for _ in range(900):
            kept, sender = socket.socketpair()
            sender.setblocking(False)
            try:
                while True: sender.send(BLOCK[:65536])
            except BlockingIOError: pass
            sender.close()
            held.append(kept)
        time.sleep(600)
time.sleep(10)
""",
    "large pages": """
held = checked(libc.mmap(None, ctypes.c_size_t(1500 * MIB), 3, 0x40022, -1, ctypes.c_long(0)))
ctypes.memset(held, 1, 1500 * MIB)
""",
    "page tables": """
for _ in range(40):
    if os.fork() == 0:
        held = mmap.mmap(-1, 16000 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 16000 * MIB, 2 * MIB): held[at]
        time.sleep(600)
time.sleep(5)
""",
}


def ends(sandbox: Sandbox, code: str, limits: Limits, data_dir: Path | None = None) -> ExecutionResult:
    result = sandbox.run(f"{BEGIN}\n{code}", data_dir=data_dir, limits=limits)
    assert result.failed is None, result.failed
    return result


@pytest.mark.parametrize("hoard", HOARDS)
def test_no_memory_goes_uncounted(sandbox: Sandbox, hoard: str) -> None:
    limits = Limits(wall_s=60, cpu_s=60, memory_mb=300, file_mb=64)
    result = ends(sandbox, HOARDS[hoard] + HOLD, limits)
    refused = result.exit_code == 1 and "held it all" not in result.stdout
    assert refused or result.exceeded == "memory", result
    if not isinstance(sandbox, DockerSandbox):  # whose next run is in another container
        assert sandbox.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_what_many_processes_share_counts_once(sandbox: Sandbox) -> None:
    code = """
held = bytearray(b"x") * (150 * MIB)
for _ in range(8):
    if os.fork() == 0: time.sleep(600)
"""
    result = ends(sandbox, code + HOLD, Limits(wall_s=60, cpu_s=60, memory_mb=300))
    assert (result.exceeded, result.stdout) == (None, "held it all\n"), result


IGNORED = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "without zombies": """
class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("end", ctypes.c_void_p)]
checked(libc.sigaction(signal.SIGCHLD, ctypes.byref(Action(flags=2)), None))
""",
    "by another signal": "fork = lambda: libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0, 0, 0, 0, 0)",
}


@pytest.mark.parametrize("how", IGNORED)
@pytest.mark.parametrize("orphaned", [False, True])
def test_cpu_time_of_children_that_nobody_waits_for_counts(sandbox: Sandbox, how: str, orphaned: bool) -> None:
    code = f"""
fork = os.fork
{IGNORED[how]}
for _ in range(20):
    if fork() == 0:
        if {orphaned} and os.fork() != 0: os._exit(0)
        until = time.process_time() + 0.15
        while time.process_time() < until: pass
        os._exit(0)
    time.sleep(0.1)
time.sleep(20)
print("burnt it all")
"""
    result = ends(sandbox, code, Limits(wall_s=60, cpu_s=0.5))
    assert result.exceeded == "cpu", result
    assert result.cpu_s >= 0.5


def test_cpu_time_that_was_used_is_what_is_reported(sandbox: Sandbox) -> None:
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        until = time.process_time() + 0.2
        while time.process_time() < until: pass
        os._exit(0)
time.sleep(0.1)
for _ in range(5):
    try: os.wait()
    except ChildProcessError: pass
"""
    result = ends(sandbox, code, Limits(wall_s=60, cpu_s=30))
    assert (result.exit_code, result.exceeded) == (0, None), result
    assert 1.0 <= result.cpu_s <= 3.0


VOIDS = {
    "by its own standing": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "by that of all": "for name in filter(str.isdigit, os.listdir('/proc')): open(f'/proc/{name}/oom_score_adj', 'w').write('0')",
    "by hiding": "libc.prctl(4, 0, 0, 0, 0)",
    "by being many": "for _ in range(4): os.fork()",
}


@pytest.mark.parametrize("how", VOIDS)
def test_a_verdict_on_memory_cannot_be_made_void(sandbox: Sandbox, how: str) -> None:
    code = f"""
try:
    {VOIDS[how]}
except OSError as error:
    print(error)
held = []
while True: held.append(bytearray(BLOCK * 16))
"""
    for _ in range(2):
        assert ends(sandbox, code, Limits(wall_s=60, cpu_s=60, memory_mb=200)).exceeded == "memory"


def test_nothing_of_a_run_is_left_for_the_next(sandbox: Sandbox, limits: Limits) -> None:
    """What one run does that another could read: sockets and their counters, locks, numbers of processes."""
    # Of sockstat only "inuse" is of the run's own network: the kernel counts orphans, memory and the rest for the whole machine.
    look = """
print(open("/proc/net/dev").read().split("\\n")[2:])
print([line.split()[:3] for line in open("/proc/net/sockstat").read().split("\\n")[1:]])
print([line.split()[7:] for line in open("/proc/net/unix")])
print(os.getpid())
"""
    first = ends(sandbox, look, limits).stdout
    leave = """
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            server = socket.create_server(("", 0), family=family)
            other = socket.create_connection(server.getsockname()[:2])
            for _ in range(100): other.send(b"message")
        except OSError:
            pass
unix = socket.socket(socket.AF_UNIX)
unix.bind(b"\\0left behind")
unix.listen()
"""
    assert ends(sandbox, leave, limits).exit_code == 0
    second = ends(sandbox, look, limits).stdout
    assert first.splitlines()[:2] == second.splitlines()[:2]
    assert "left behind" not in second


def test_files_of_the_machine_cannot_be_locked(sandbox: Sandbox, limits: Limits) -> None:
    code = """
import fcntl
for path in (os.__file__, sys.executable, "/etc/passwd"):
    with open(path) as file:
        lock = lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for ask in (lock, lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)):
            try:
                ask()
                print("locked", path)
            except OSError:
                pass
with open("/workspace/own", "w") as own: fcntl.lockf(own, fcntl.LOCK_EX)
"""
    result = ends(sandbox, code, limits)
    assert (result.exit_code, result.stdout) == (0, "")


def test_calls_that_nobody_has_looked_at_are_refused(sandbox: Sandbox, limits: Limits) -> None:
    code = """
import errno
pairs = []
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        pair = (ctypes.c_int * 2)()
        if libc.socketpair(family, kind, 0, pair) == 0: pairs.append(family)
refused = []
for number in (428, 467, 463, 500, 457, 458):
    ctypes.set_errno(0)
    refused.append(libc.syscall(number, -1, 0, 0, 0, 0) == -1 and errno.errorcode[ctypes.get_errno()] in ("ENOSYS", "EPERM"))
print(set(pairs), all(refused))
"""
    assert ends(sandbox, code, limits).stdout == "{1} True\n"


LIBRARIES = {
    "joblib": "from joblib import Parallel, delayed\nprint(Parallel(n_jobs=2)(delayed(abs)(n) for n in range(-3, 0)))",
    "joblib with arrays": """
import numpy as np
from joblib import Parallel, delayed
print([int(n) for n in Parallel(n_jobs=2, max_nbytes=1000)(delayed(np.sum)(np.full(10000, n)) for n in range(3))])
""",
    "multiprocessing": """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Manager() as manager, multiprocessing.Pool(2) as pool:
        shared = manager.list(pool.map(abs, [-3, -2, -1]))
        print(list(shared))
""",
    "spawned processes": """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(abs, [-3, -2, -1]))
""",
    "shared memory": """
from multiprocessing import Process, shared_memory
memory = shared_memory.SharedMemory(create=True, size=1000)
def fill(): memory.buf[:3] = bytes([3, 2, 1])
child = Process(target=fill)
child.start()
child.join()
print(list(memory.buf[:3]))
memory.close()
memory.unlink()
""",
    "asyncio": """
import asyncio
async def main():
    child = await asyncio.create_subprocess_exec("/bin/sh", "-c", "echo '[3, 2, 1]'", stdout=asyncio.subprocess.PIPE)
    print((await child.communicate())[0].decode().strip(), child.returncode)
asyncio.run(main())
""",
    "futures": """
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-3, -2, -1])))
""",
    "a shell": """
import subprocess
print(subprocess.run("for n in 3 2 1; do (echo $n) & wait; done", shell=True, capture_output=True).stdout)
""",
    "a data loader": """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(3.0)), num_workers=2)
print([float(batch[0]) for batch in loader])
""",
    "a database": """
import sqlite3
with sqlite3.connect("/workspace/base.db") as base:
    base.execute("create table numbers (n)")
    base.executemany("insert into numbers values (?)", [(3,), (2,), (1,)])
    print([n for n, in base.execute("select n from numbers")])
""",
}
PRINTED = {
    "joblib with arrays": "[0, 10000, 20000]\n", "asyncio": "[3, 2, 1] 0\n", "a shell": "b'3\\n2\\n1\\n'\n",
    "a data loader": "[0.0, 1.0, 2.0]\n",
}  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_scripts_use_several_processes_for_works(sandbox: Sandbox, library: str) -> None:
    result = ends(sandbox, LIBRARIES[library], Limits(wall_s=120, cpu_s=120, memory_mb=4096, file_mb=256))
    if library == "a data loader" and "No module named 'torch'" in result.stderr:
        assert isinstance(sandbox, DockerSandbox), "an image has what it was built with"
        return
    assert (result.exit_code, result.stdout) == (0, PRINTED.get(library, "[3, 2, 1]\n")), result
