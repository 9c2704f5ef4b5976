"""What a run costs, by where it runs, and what a second worker brings: ``python -m benchmarks.sandbox``.

The scripts of :mod:`benchmarks.warm_execution` are run, taking turns:

- *in process*: by an interpreter that has imported everything, without isolation: the baseline;
- *warm sandbox*: by :class:`wmrl_gym.sandbox.LocalSandbox`;
- *python script.py*: by a fresh interpreter for each run, without isolation, as MLE-Dojo does it;
- *docker, fresh*: in a container that is started for the run, with an interpreter that imports for the run;
- *docker, ready*: by :class:`wmrl_gym.sandbox.DockerSandbox`, whose containers wait with everything imported.

The overhead is what a way takes beyond the baseline. A ready container's is short, but starting the next one takes processor time
in the background, between the timed runs; the CPU seconds of the engine are not counted anywhere.

The same designs, one for each task of the catalogue, must have the same verdict everywhere, byte for byte: those that do not are
counted.

Then a fixed mix of designs over the catalogue's tasks is run by a pool of one worker and of two, in turns. On a machine with
other work, or fewer than two free cores, two workers cannot show what they can do: the load is written down with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time, sleep

import numpy as np

from benchmarks.warm_execution import (
    RESULTS,
    SCRIPTS,
    THREADS,
    Case,
    Cost,
    draw,
    in_interpreter,
    in_process,
    in_sandbox,
    machine,
    write_data,
)
from wmrl_gym.envs.autoresearch import list_tasks, load_task, render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.sandbox import DockerSandbox, Limits, LocalSandbox, SandboxPool
from wmrl_gym.sandbox.docker import IMAGE, connect

MIX_LIMITS = Limits(wall_s=20.0, cpu_s=2.0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each script each way")
    parser.add_argument("--mix", type=int, default=120, help="runs of the mix for each pool")
    parser.add_argument("--rounds", type=int, default=2, help="times that each pool does the mix")
    parser.add_argument("--no-docker", action="store_true", help="leave out the ways that need an engine")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    if any(os.environ.get(name) != "1" for name in THREADS):  # libraries read these when they are loaded
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, **dict.fromkeys(THREADS, "1")})
    ways = measure(arguments.repeats, docker=not arguments.no_docker)
    differing = compare_verdicts(docker=not arguments.no_docker)
    pool = measure_pool(arguments.mix, arguments.rounds)
    report = {"machine": machine(), "repeats": arguments.repeats, "scripts": ways, "differing": differing, "pool": pool}
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "sandbox.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(ways, pool)
    print(f"verdicts that differ from a cold run's: {differing}")
    draw(ways, arguments.results / "sandbox.png")
    return 0


def measure(repeats: int, *, docker: bool) -> dict[str, dict[str, dict[str, float]]]:
    """Medians by script and way: seconds, their ratio to the baseline's, and the overhead beyond the baseline."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, LocalSandbox() as warm:
        data = Path(folder, "data")
        write_data(data)
        ways: dict[str, Callable[[Case], Cost]] = {
            "in process": in_process,
            "warm sandbox": lambda case: in_sandbox(warm, case),
            "python script.py": in_interpreter,
        }
        ready = DockerSandbox(spares=1) if docker else None
        if ready is not None:
            ways["docker, fresh"] = in_fresh_container
            ways["docker, ready"] = lambda case: in_sandbox(ready, case)
        try:
            for name, script in SCRIPTS.items():
                found[name] = _by_way(ways, Case(script, data, Path(folder)), repeats, before_each=lambda: settle(ready))
        finally:
            if ready is not None:
                ready.close()
    return found


def _by_way(
    ways: dict[str, Callable[[Case], Cost]], case: Case, repeats: int, *, before_each: Callable[[], None]
) -> dict[str, dict[str, float]]:
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for round_ in range(repeats + 1):  # the first one is not counted
        for way, run in ways.items():
            before_each()
            cost = run(case)
            if round_ > 0:
                costs[way].append(cost)
    wall = {way: statistics.median(cost.wall_s for cost in each) for way, each in costs.items()}
    cpu = {way: statistics.median(cost.cpu_s for cost in each) for way, each in costs.items()}
    base = wall["in process"]
    return {
        way: {"seconds": wall[way], "ratio": wall[way] / base, "overhead_s": wall[way] - base, "cpu_s": cpu[way]} for way in ways
    }


def settle(ready: DockerSandbox | None) -> None:
    """Wait until the next container is ready: its start, in the background, must slow no run that is timed."""
    while ready is not None and not all(future.done() for _, future in list(ready._ready)):
        sleep(0.05)


def in_fresh_container(case: Case) -> Cost:
    """What `docker run` with a script does: start a container, import, run, remove the container."""
    client = connect(IMAGE)
    script = case.scratch / "solution.py"
    script.write_text(case.script)
    output = case.scratch / "output"
    output.mkdir(exist_ok=True)
    output.chmod(0o777)
    case.scratch.chmod(0o755)
    start, cpu = perf_counter(), process_time()
    client.containers.run(
        IMAGE,
        ["python3", "-B", "/solution.py"],
        remove=True,
        network_mode="none",
        environment={"DATA_DIR": "/data", "SUBMISSION_PATH": "/output/submission.csv", **dict.fromkeys(THREADS, "1")},
        volumes={
            str(script): {"bind": "/solution.py", "mode": "ro"},
            str(case.data): {"bind": "/data", "mode": "ro"},
            str(output): {"bind": "/output", "mode": "rw"},
        },
    )
    cost = Cost(perf_counter() - start, process_time() - cpu)
    client.close()
    return cost


def compare_verdicts(*, docker: bool) -> dict[str, list[str]]:
    """For each way but the cold sandbox, the tasks on which its verdict on one design differs from the cold one's."""
    rng = np.random.default_rng(11)
    limits = Limits(wall_s=60.0, cpu_s=60.0)
    ways: dict[str, LocalSandbox | DockerSandbox] = {"cold": LocalSandbox(warm=False), "warm": LocalSandbox()}
    if docker:
        ways["docker"] = DockerSandbox(spares=1)
    differing: dict[str, list[str]] = {way: [] for way in ways if way != "cold"}
    try:
        for name in list_tasks():
            task = load_task(name)
            code = render_design(task, rng.integers(0, NVEC))
            verdicts = {}
            for way, sandbox in ways.items():
                result = sandbox.run(code, data_dir=task.public, limits=limits)
                verdicts[way] = (result.exit_code, result.exceeded, result.stdout, _anywhere(result.stderr), result.submission)
            for way, names in differing.items():
                names += [name] if verdicts[way] != verdicts["cold"] else []
    finally:
        for sandbox in ways.values():
            sandbox.close()
    return differing


def _anywhere(text: str) -> str:
    """Without the folder in which packages are installed, which a container's image chooses for itself."""
    return re.sub(r"/\S*-packages/", "", text)


def measure_pool(runs: int, rounds: int) -> dict[str, float]:
    """Seconds that a mix of designs takes with one worker and with two, the best of some rounds each, and their ratio."""
    rng = np.random.default_rng(7)
    tasks = [load_task(name) for name in list_tasks() if load_task(name).spec.modality != "language"]
    mix = []
    for number in range(runs):
        task = tasks[number % len(tasks)]
        mix.append((render_design(task, rng.integers(0, NVEC)), task.public))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with SandboxPool("local", 1, cache=False) as one, SandboxPool("local", 2, cache=False) as two:
        for round_ in range(rounds + 1):  # the first one starts the workers and is not counted
            for workers, pool in ((1, one), (2, two)):
                took = _time(pool, mix if round_ else mix[:4], workers)
                if round_:
                    seconds[workers].append(took)
    best = {workers: min(each) for workers, each in seconds.items()}
    return {"runs": runs, "one_worker_s": best[1], "two_workers_s": best[2], "speedup": best[1] / best[2]}


def _time(pool: SandboxPool, mix: list[tuple[str, Path]], workers: int) -> float:
    start = perf_counter()
    with ThreadPoolExecutor(2 * workers) as threads:
        list(threads.map(lambda item: pool.run(item[0], data_dir=item[1], limits=MIX_LIMITS), mix))
    return perf_counter() - start


def show(ways: dict[str, dict[str, dict[str, float]]], pool: dict[str, float]) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    table = Table("script", "way", "wall s", "ratio", "overhead s", "CPU s")
    for script, each in ways.items():
        for way, values in each.items():
            numbers = (values["seconds"], values["ratio"], values["overhead_s"], values["cpu_s"])
            table.add_row(script, way, *(f"{number:.3f}" for number in numbers))
    Console().print(table)
    print(
        f"a mix of {pool['runs']} runs: one worker {pool['one_worker_s']:.1f} s, two workers {pool['two_workers_s']:.1f} s, "
        f"{pool['speedup']:.2f} times as fast; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    raise SystemExit(main())
