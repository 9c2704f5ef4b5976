"""Hostile submissions by the thousand, and what became of them: ``python -m benchmarks.hostile --runs 1000``.

Each run is drawn from a mix of attacks: on memory, time, processes, files, output, the submission, the verdict, the next run and
the machine. Every tenth run is a plain script, whose verdict must be the right one whatever came before it. Counted are verdicts,
runs of which nothing is known, runs that took longer than their limit and the sandbox's own grace, attacks that got what they
wanted, and what is left afterwards: processes, descriptors, mounts, control groups, folders, and memory of this process. Exits
with 1 when anything is left or went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.soak import Sample, sample
from benchmarks.warm_execution import RESULTS, machine
from wmrl_gym.sandbox import DockerSandbox, ExecutionResult, Limits, LocalSandbox, RaySandbox, Sandbox
from wmrl_gym.sandbox.worker import GRACE_S

LIMITS = Limits(wall_s=1.5, cpu_s=0.5, memory_mb=200, processes=24, file_mb=8, output_kb=16)
PATIENT = Limits(wall_s=60.0)
SECRET = "SECRET-ANSWER"
BEGIN = "import ctypes, mmap, os, signal, socket, sys, time\nlibc = ctypes.CDLL(None)\nX = b'x' * (1 << 20)\n"
PLAIN = "import os\nopen(os.environ['SUBMISSION_PATH'], 'w').write(open(os.environ['DATA_DIR'] + '/train.csv').read())"
ATTACKS = {
    "memory": "held = []\nwhile True: held.append(bytearray(X * 8))",
    "memory in a file": "fd = os.memfd_create('x')\nwhile True: os.write(fd, X)",
    "memory in copies": "held = []\nwhile True:\n    held.append(bytearray(X * 64))\n    if os.fork() == 0: time.sleep(9)",
    "memory in sockets": (
        "held = []\nfor _ in range(12):\n    if os.fork() == 0: break\nwhile True:\n    one, other = socket.socketpair()\n"
        "    held.append((one, other))\n    one.setblocking(False)\n    try:\n        while True: one.send(X)\n"
        "    except BlockingIOError: pass"
    ),
    "shared memory": "held = mmap.mmap(-1, 900 << 20)\nfor _ in range(900): held.write(X)",
    "spinning": "while True: pass",
    "spinning unseen": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    try:\n        if os.fork() == 0:\n"
        "            until = time.process_time() + .1\n            while time.process_time() < until: pass\n"
        "            os._exit(0)\n    except BlockingIOError: time.sleep(.01)\n    time.sleep(.05)"
    ),
    "sleeping": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
    "forks": "while True:\n    try: os.fork()\n    except OSError: pass",
    "an escape": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)",
    "files": "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'wb').write(X)",
    "many files": "n = 0\nwhile True:\n    n += 1\n    open(f'/workspace/{n}', 'w').close()",
    "output": "while True: os.write(1 + (os.getpid() & 1), X)",
    "a link": "os.symlink('/etc/passwd', os.environ['SUBMISSION_PATH'])",
    "a pipe": "os.mkfifo(os.environ['SUBMISSION_PATH'])",
    "a huge answer": "open(os.environ['SUBMISSION_PATH'], 'w').truncate(1 << 40)",
    "a crash": "ctypes.string_at(0)",
    "a kill": "os.kill(os.getpid(), 9)",
    "killing all": "os.kill(1, 9)\nos.kill(-1, 9)",
    "stopping": "os.kill(os.getpid(), signal.SIGSTOP)",
    "odd exits": "sys.exit(10**30)",
    "an early end": "os.write(1, X)\nos._exit(7)",
    "closed descriptors": "os.closerange(0, 4096)",
    "its standing": "open('/proc/self/oom_score_adj', 'w').write('0')\nheld = []\nwhile True: held.append(bytearray(X * 8))",
    "looking around": (
        "for place in ('/proc/1/root', '/proc/1/cwd', '{task}', '{task}/private', '/data/..', '/data/../private'):\n"
        "    for folder, folders, names in os.walk(place):\n        folders[:] = folders[:20]\n        for name in names:\n"
        "            if 'answers' in name: print('GOT', open(os.path.join(folder, name)).read())"
    ),
    "the machine's sockets": "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')\nprint('GOT')",
    "the network": "socket.create_connection(('127.0.0.1', 22), timeout=1)\nprint('GOT')",
    "left for the next": (
        "for place in ('/tmp', '/dev/shm', '/workspace'):\n    if os.path.exists(place + '/left'): print('GOT')\n"
        "    open(place + '/left', 'w').write('message')"
    ),
    "mounting": "print(*['GOT' for flags in (0x20000, 0x10000000) if libc.unshare(flags) == 0])",
    "tracing": "print(*['GOT'] * (libc.ptrace(16, 1, 0, 0) == 0))",
    "writing outside": (
        "for place in ('/usr/x', '/etc/x', '/data/x', '/runner/x', '/proc/sys/kernel/core_pattern'):\n    try:\n"
        "        open(place, 'w').write('x')\n        print('GOT')\n    except OSError: pass"
    ),
    "odd code": "print('\\ud800')\n\0",
    "deep code": "x = " + "(" * 500 + ")" * 500,
    "threads": (
        "import threading\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    except RuntimeError: pass"
    ),
}  # fmt: skip

ENDLESS = ("memory", "spinning", "spinning unseen", "sleeping", "its standing")
"""Those that only a limit can end."""


@dataclass(slots=True)
class Counts:
    """What became of the runs."""

    verdicts: Counter[str]
    unknown: int = 0
    hangs: int = 0
    wins: int = 0
    wrong: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Attack each back end, print what was counted, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--back-ends", nargs="+", default=["local"], choices=["local", "cold", "docker", "ray"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path, passed = arguments.results / "hostile.json", True
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for kind in arguments.back_ends:
        found = report[name_of(kind)] = attack(kind, arguments.runs, seed=arguments.seed)
        print(name_of(kind), json.dumps(found))
        passed &= bool(found["passed"])
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if passed else 1


def name_of(kind: str) -> str:
    """A back end, and who we are: what it enforces depends on both."""
    return f"{kind}, as {'root' if os.geteuid() == 0 else 'an ordinary user'}"


def opened(kind: str) -> Sandbox:
    """A sandbox of that kind."""
    if kind == "docker":
        return DockerSandbox(preimport=(), spares=0)  # between runs there is then none
    if kind == "ray":
        return RaySandbox(num_cpus=0)
    return LocalSandbox(preimport=(), warm=kind == "local")


def attack(kind: str, runs: int, *, seed: int) -> dict[str, object]:
    """Counts of ``runs`` hostile runs on one back end, and what was left of them."""
    counts, draw, started = Counts(Counter()), random.Random(seed), perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own  # other processes have folders of their own in the usual place
        task = Path(folder)
        for part, name in (("public", "train.csv"), ("private", "answers.csv")):
            (task / part).mkdir()
            (task / part / name).write_text(SECRET if part == "private" else "id,y\n1,2\n")
        sandbox = opened(kind)
        for _ in range(12):  # what a back end keeps is there before the first look: the docker SDK keeps 25 connections
            sandbox.run(PLAIN, data_dir=task / "public", limits=PATIENT)
        before = settled(0)
        for number in range(runs):
            name = "plain" if number % 10 == 9 else draw.choice(list(ATTACKS))
            code = PLAIN if name == "plain" else BEGIN + ATTACKS[name].replace("{task}", str(task))
            at = perf_counter()
            limits = PATIENT if name == "plain" else LIMITS  # a busy machine may take its time
            result = sandbox.run(code, data_dir=task / "public", limits=limits)
            count(counts, name, result, seconds=perf_counter() - at - limits.wall_s)
        after = settled(runs)
        sandbox.close()
        tempfile.tempdir = None
    left = differences(before, after)
    bad = (
        counts.unknown
        + counts.hangs
        + counts.wins
        + counts.wrong
        + sum(max(left[name], 0) for name in left if name != "host_kib")
    )
    return {
        "machine": machine(), "runs": runs, "seconds": round(perf_counter() - started, 1),
        "verdicts": dict(counts.verdicts.most_common()),
        "unknown": counts.unknown, "hangs": counts.hangs, "attacks_that_won": counts.wins, "plain_runs_gone_wrong": counts.wrong,
        "left": left, "passed": bad == 0,
    }  # fmt: skip


def settled(runs: int) -> Sample:
    """What is in use once nothing is being taken down in the background any more."""
    seen = [sample(runs)]
    for _ in range(30):
        seen.append(sample(runs))
        if len({(each.descriptors, each.mounts, each.processes) for each in seen[-3:]}) == 1 and len(seen) >= 3:
            break
    return seen[-1]


def count(counts: Counts, name: str, result: ExecutionResult, *, seconds: float) -> None:
    """Book one run, which took ``seconds`` longer than its limit (less than none, if all is well)."""
    verdict = "unknown" if result.failed else result.exceeded or f"exit {result.exit_code}"
    counts.verdicts[verdict] += 1
    counts.unknown += result.failed is not None
    counts.hangs += seconds > GRACE_S
    said = result.stdout + result.stderr
    counts.wins += any(line.startswith("GOT") for line in said.splitlines()) or SECRET in said
    if result.failed or (result.exceeded is None and name in ENDLESS and result.exit_code == 0):
        counts.wrong += result.failed is None
        print(f"{name}: {result}")
    if name == "plain" and (result.exit_code, result.submission) != (0, b"id,y\n1,2\n"):
        counts.wrong += 1
        print(f"{name}: {result}")


def differences(before: Sample, after: Sample) -> dict[str, int]:
    """How many more there are of everything, and KiB of this process's memory."""
    first, last = asdict(before), asdict(after)
    kinds = ("descriptors", "mounts", "groups", "folders", "processes")
    return {"host_kib": round((after.host_mb - before.host_mb) * 1024), **{kind: last[kind] - first[kind] for kind in kinds}}


if __name__ == "__main__":
    raise SystemExit(main())
