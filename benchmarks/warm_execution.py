"""What a sandbox costs on top of the code that it runs: ``python -m benchmarks.warm_execution``.

The same scikit-learn scripts are timed four ways, taking turns within one run so that all see the same machine:

- *in process*: executed by an interpreter that has imported everything already, with no isolation at all (the baseline);
- *warm sandbox*: by :class:`wmrl_gym.sandbox.LocalSandbox`;
- *cold interpreter*: by ``python solution.py``, with no isolation at all;
- *cold sandbox*: by ``LocalSandbox(warm=False)``.

Everything is single-threaded. Results are medians of wall-clock seconds, from the call to the result, and of the CPU seconds that
the code itself took; and their ratios to the baseline's. On a busy machine the ratio of CPU seconds is the steadier one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, sleep

from wmrl_gym.sandbox import Limits, LocalSandbox, Sandbox

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RESULTS = Path(__file__).parent / "results"
COMMON = """
import os
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

train = pd.read_csv(os.environ["DATA_DIR"] + "/train.csv")
test = pd.read_csv(os.environ["DATA_DIR"] + "/test.csv")
features = [name for name in train if name not in ("id", "target")]
model = make_pipeline(
    ColumnTransformer([("numbers", make_pipeline(SimpleImputer(), StandardScaler()), features)]), MODEL
)
print("accuracy", cross_val_score(model, train[features], train["target"], cv=FOLDS).mean())
model.fit(train[features], train["target"])
answer = pd.DataFrame({"id": test["id"], "target": model.predict(test[features])})
answer.to_csv(os.environ["SUBMISSION_PATH"], index=False)
"""
SCRIPTS = {
    "forest": COMMON.replace("MODEL", "RandomForestClassifier(40, random_state=0)").replace("FOLDS", "3"),
    "linear": COMMON.replace("MODEL", "LogisticRegression(max_iter=500)").replace("FOLDS", "5"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One script, where its data are and where its answer goes when it is not in a sandbox."""

    script: str
    data: Path
    scratch: Path


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took, in seconds."""

    wall_s: float
    cpu_s: float


def main() -> None:
    """Measure, print a table, and write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each script each warm way; a third of it cold")
    parser.add_argument("--pause", type=float, default=0.1, help="idle seconds before each run, as an agent's thinking leaves")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in THREADS):  # libraries read these when they are loaded
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, **dict.fromkeys(THREADS, "1")})
    measured = measure(arguments.repeats, arguments.pause)
    report = {"machine": machine(), "repeats": arguments.repeats, "pause_s": arguments.pause, "scripts": measured}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "warm_execution.json").write_text(json.dumps(report, indent=2) + "\n")
    show(measured)
    draw(measured, RESULTS / "warm_execution.png")


def measure(repeats: int, pause_s: float) -> dict[str, dict[str, dict[str, float]]]:
    """Median seconds and their ratio to the baseline, by script and by way of running it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, LocalSandbox() as warm, LocalSandbox(warm=False) as cold:
        data = Path(folder, "data")
        write_data(data)
        ways: dict[str, Callable[[Case], Cost]] = {
            "in process": in_process,
            "warm sandbox": lambda case: in_sandbox(warm, case),
            "cold interpreter": in_interpreter,
            "cold sandbox": lambda case: in_sandbox(cold, case),
        }
        for name, script in SCRIPTS.items():
            case = Case(script, data, Path(folder))
            times = take_turns(ways, case, repeats=repeats, pause_s=pause_s)
            found[name] = summary(times)
    return found


def take_turns(ways: dict[str, Callable[[Case], Cost]], case: Case, *, repeats: int, pause_s: float) -> dict[str, list[Cost]]:
    """The costs of each way's runs, after one that is not counted."""
    times: dict[str, list[Cost]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, run in ways.items():
            if way.startswith("cold") and turn % 3:
                continue
            sleep(pause_s)
            cost = run(case)
            if turn > 0 or way.startswith("cold"):
                times[way].append(cost)
    return times


def summary(times: dict[str, list[Cost]]) -> dict[str, dict[str, float]]:
    """Medians by way, and their ratios to the baseline's."""
    wall = {way: statistics.median(cost.wall_s for cost in costs) for way, costs in times.items()}
    cpu = {way: statistics.median(cost.cpu_s for cost in costs) for way, costs in times.items()}
    base = "in process"
    return {
        way: {"seconds": wall[way], "ratio": wall[way] / wall[base], "cpu_s": cpu[way], "cpu_ratio": cpu[way] / cpu[base]}
        for way in times
    }


def write_data(folder: Path) -> None:
    """Breast cancer, cut into training and test rows, with some values missing."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.rename_axis("id").reset_index()
    holes = np.random.default_rng(0).random(frame.shape) < 0.01
    holes[:, [0, -1]] = False
    frame = frame.mask(holes)
    folder.mkdir()
    frame.iloc[:400].to_csv(folder / "train.csv", index=False)
    frame.iloc[400:].drop(columns="target").to_csv(folder / "test.csv", index=False)


def in_process(case: Case) -> Cost:
    """Execute the script here."""
    os.environ.update(DATA_DIR=str(case.data), SUBMISSION_PATH=str(case.scratch / "submission.csv"))
    start, cpu = perf_counter(), process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(case.script, "solution.py", "exec"), {"__name__": "__main__"})
    return Cost(perf_counter() - start, process_time() - cpu)


def in_interpreter(case: Case) -> Cost:
    """Execute the script by an interpreter of its own."""
    path = case.scratch / "solution.py"
    path.write_text(case.script)
    start, cpu = perf_counter(), children_cpu_s()
    subprocess.run([sys.executable, path], check=True, stdout=subprocess.DEVNULL)
    return Cost(perf_counter() - start, children_cpu_s() - cpu)


def children_cpu_s() -> float:
    """CPU seconds of the processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_sandbox(sandbox: Sandbox, case: Case) -> Cost:
    """Execute the script in a sandbox; CPU seconds are the code's own, without those of starting an interpreter for it."""
    start = perf_counter()
    result = sandbox.run(case.script, data_dir=case.data, limits=Limits())
    wall_s = perf_counter() - start
    if result.exit_code != 0 or result.submission is None:
        raise RuntimeError(f"the script failed in the sandbox: {result}")
    return Cost(wall_s, result.cpu_s)


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    system = {"cores": os.cpu_count(), "kernel": platform.release()}
    return {"cpu": model, **system, "python": platform.python_version(), "load": os.getloadavg()[0]}


def show(measured: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("script", "way", "wall s", "ratio", "CPU s", "ratio")
    for script, ways in measured.items():
        for way, values in ways.items():
            numbers = (values["seconds"], values["ratio"], values["cpu_s"], values["cpu_ratio"])
            table.add_row(script, way, *(f"{number:.3f}" for number in numbers))
    Console().print(table)


def draw(measured: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Draw the ratios as bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(measured), figsize=(10, 3.2), layout="constrained", squeeze=False)
    for axis, (script, ways) in zip(axes[0], measured.items(), strict=True):
        names = list(ways)
        colours = ["0.6", "tab:green", "tab:orange", "tab:red", "tab:purple"][: len(names)]
        bars = axis.barh(names, [ways[name]["seconds"] for name in names], color=colours)
        axis.bar_label(bars, [f"{ways[name]['ratio']:.2f}x" for name in names], padding=3)
        axis.set(title=f"{script} script", xlabel="seconds a run (median)")
        axis.margins(x=0.15)
        axis.invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
