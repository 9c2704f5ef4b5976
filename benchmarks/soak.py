"""Thousands of runs in a row, and what is left of them: ``python -m benchmarks.soak --runs 10000``.

Every few hundred runs the resident memory of this process and of all that the sandbox has started is taken, with the number of
open file descriptors, mounts, control groups and temporary folders. Memory is flat if a straight line through it has no slope;
the first tenth is left out, as caches fill then. Runs do a little of everything: they read data, write a submission, print, fail,
run out of time, and leave processes behind. Exits with 1 when a run is lost, anything is left, or memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from rich.progress import track

from benchmarks.warm_execution import RESULTS, machine, write_data
from wmrl_gym.sandbox import Limits, LocalSandbox

SCRIPTS = (
    "import os\nopen(os.environ['SUBMISSION_PATH'], 'w').write(open(os.environ['DATA_DIR'] + '/test.csv').read())",
    "import numpy as np\nprint(np.linalg.svd(np.random.default_rng(0).normal(size=(60, 60)))[1][0])",
    "import pandas as pd, os\nprint(pd.read_csv(os.environ['DATA_DIR'] + '/train.csv').mean().sum())",
    "raise ValueError('on purpose')",
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n",
    "open('/tmp/file', 'wb').write(bytes(1 << 20))",
)
SLOW = "while True: pass"
FLAT = 512.0
"""KiB that memory may grow in a thousand runs: a leak of half a kilobyte a run is seen, an allocator's single step is none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What is in use after ``runs`` runs: resident MiB of this process and of the sandbox's, and counts of things."""

    runs: int
    host_mb: float
    sandbox_mb: float
    descriptors: int
    mounts: int
    groups: int
    folders: int
    processes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print what grew, and write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    started = perf_counter()
    samples, failed = soak(arguments.runs, arguments.samples)
    report = {
        "machine": machine(),
        "runs": arguments.runs,
        "seconds": perf_counter() - started,
        "lost": failed,
        "slope_kb_per_1000_runs": {name: slope(samples, name) for name in ("host_mb", "sandbox_mb")},
        "grew": {name: grew(samples, name) for name in ("descriptors", "mounts", "groups", "folders", "processes")},
        "samples": [asdict(sample) for sample in samples],
    }
    report["passed"] = passed(samples, failed)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "soak.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draw(samples, arguments.results / "soak.png")
    print({name: report[name] for name in ("runs", "seconds", "lost", "slope_kb_per_1000_runs", "grew", "passed")})
    return 0 if report["passed"] else 1


def passed(samples: list[Sample], lost: int) -> bool:
    """Nothing was lost or left, and memory is flat: it grows less than :data:`FLAT` in a thousand runs."""
    memory = max(slope(samples, name) for name in ("host_mb", "sandbox_mb"))
    left = max(grew(samples, name) for name in ("descriptors", "mounts", "groups", "folders", "processes"))
    return lost == 0 and left <= 0 and memory < FLAT


def soak(runs: int, samples: int) -> tuple[list[Sample], int]:
    """Run scripts one after the other; samples along the way, and the number of runs of which nothing is known."""
    taken: list[Sample] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder, LocalSandbox() as sandbox:
        data = Path(folder, "data")
        write_data(data)
        every = max(runs // samples, 1)
        for number in track(range(runs), "runs"):
            slow = number % 500 == 499
            limits = Limits(wall_s=60, cpu_s=0.2 if slow else 60)
            code = SLOW if slow else SCRIPTS[number % len(SCRIPTS)]
            failed += sandbox.run(code, data_dir=data, limits=limits).failed is not None
            if number % every == every - 1:
                taken.append(sample(number + 1))
    return taken, failed


def sample(runs: int) -> Sample:
    """What is in use now, once the last run's processes have gone and the next one's wait: five looks in a row agree."""
    looks = [look(runs)]
    for _ in range(100):
        sleep(0.1)
        looks.append(look(runs))
        if len(looks) >= 5 and len({each.processes for each in looks[-5:]}) == 1:
            break
    return looks[-1]


def look(runs: int) -> Sample:
    """What is in use at this moment."""
    below = descendants(os.getpid())
    return Sample(
        runs=runs,
        host_mb=resident_mb(os.getpid()),
        sandbox_mb=sum(map(resident_mb, below)),
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=len(Path("/proc/self/mounts").read_text().splitlines()),
        groups=len(list(Path("/sys/fs/cgroup").glob(f"**/wmrl-{os.getpid()}-*"))),
        folders=len(list(Path(tempfile.gettempdir()).glob("wmrl-*"))),
        processes=len(below),
    )


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def resident_mb(pid: int) -> float:
    """MiB of memory that a process has; what several share counts for each."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def slope(samples: list[Sample], name: str) -> float:
    """KiB that memory grows in a thousand runs, by least squares, after the first tenth."""
    kept = samples[len(samples) // 10 :]
    line = np.polyfit([each.runs for each in kept], [getattr(each, name) for each in kept], 1)
    return float(line[0] * 1000 * 1024)


def grew(samples: list[Sample], name: str) -> int:
    """How many more there are at the end than after the first tenth."""
    return int(getattr(samples[-1], name) - getattr(samples[len(samples) // 10], name))


def draw(samples: list[Sample], path: Path) -> None:
    """Draw memory and counts over runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (memory, counts) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    runs = [each.runs for each in samples]
    for name, label in (("host_mb", "this process"), ("sandbox_mb", "the sandbox's processes")):
        memory.plot(runs, [getattr(each, name) for each in samples], label=label)
    for name in ("descriptors", "mounts", "processes"):
        counts.plot(runs, [getattr(each, name) for each in samples], label=name)
    memory.set(xlabel="runs", ylabel="resident MiB", ylim=(0, None))
    counts.set(xlabel="runs", ylabel="number", ylim=(0, None))
    for axis in (memory, counts):
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
