"""What one step of an ensemble costs, and what learning costs: ``python -m benchmarks.world_models``.

``EnsembleDynamics.step`` against ``ModelEnv.step`` of mbrl-lib 0.2.0, a library that much model-based work in PyTorch builds on,
taking turns within one run: five members of four layers of 200, 11 numbers as observation and 3 as action (Hopper's), float32,
drawn members and noise, numpy in and numpy out. Ours predicts rewards and termination by a second network, which theirs does not
have; where the reward's standard deviation is read, as a wrapper does, all members are asked. The matrix products of the first
network alone, with nothing between them, are timed as well: nothing of these sizes that is float32 on this processor can be
quicker. mbrl-lib refuses batches that are no multiple of five: it gets 5 rows for 1, 255 for 256, and 4,095 for 4,096.

mbrl-lib pins an old Gymnasium, so that it lives in an environment of its own: ``--mbrl-python`` names one that exists, else one
is made in the user's cache. Times are medians over rounds; on a busy machine CPU time is the steadier one.

The second table is what it costs a model to learn N real steps as they arrive (:mod:`benchmarks.learning_cost`); the exit status
is 1 where that grows faster than N log N. ``--only`` measures one of the tables, and leaves the last results of the other.
Results go to ``benchmarks/results/world_models.json`` and ``world_models.png``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import learning_cost
from wmrl_gym.data import Transitions
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import EnsembleDynamics, Interface

RESULTS = Path(__file__).parent / "results"
OURS, READ, THEIRS, FLOOR = "EnsembleDynamics", "and its reward_std read", "mbrl-lib ModelEnv", "its matrix products alone"
REQUIREMENTS = ("mbrl==0.2.0", "gymnasium==0.26.3")
IMPORTED = ("numpy", "omegaconf>=2.3", "hydra-core>=1.3", "termcolor", "tqdm", "matplotlib", "cloudpickle", "imageio")
"""What stepping a model imports of what mbrl pins or needs; the Hydra that it pins does not start on Python 3.11."""
_RATIOS = {"ratio": OURS, "ratio_with_std": READ, "ratio_of_products_alone": FLOOR}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What both sides have in common."""

    members: int = 5
    layers: int = 4
    width: int = 200
    n_observation: int = 11
    n_action: int = 3
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds that a call took."""

    cpu_s: float
    wall_s: float


class Peer:
    """mbrl-lib in another process; with ``close`` it ends.

    Args:
        python: an interpreter that has it.
        sizes: of the ensemble.
    """

    def __init__(self, python: Path, sizes: Sizes) -> None:
        command = [str(python), str(Path(__file__).with_name("mbrl_worker.py")), json.dumps(asdict(sizes))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.torch = str(self._answer()["torch"])

    def measure(self, batch: int, calls: int) -> Took:
        """Time ``calls`` steps of ``batch`` rollouts."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batch": batch, "calls": calls}) + "\n")
        self._process.stdin.flush()
        return Took(**self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("mbrl-lib's process ended: what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def ensemble(sizes: Sizes) -> EnsembleDynamics:
    """An ensemble of these sizes, fitted just so that it answers: what it says costs the same as if it were true."""
    model = EnsembleDynamics(
        (sizes.width,) * sizes.layers,
        n_members=sizes.members,
        n_elites=sizes.members,
        min_transitions=200,
        max_gradient_steps=2,
    )
    rng, n = np.random.default_rng(0), 1000
    observation = gym.spaces.Box(-np.inf, np.inf, (sizes.n_observation,), np.float32)
    model.bind(Interface(observation, gym.spaces.Box(-1.0, 1.0, (sizes.n_action,), np.float32)))
    before = rng.standard_normal((n, sizes.n_observation)).astype(np.float32)
    after = before + 0.1 * rng.standard_normal((n, sizes.n_observation)).astype(np.float32)
    action = rng.uniform(-1, 1, (n, sizes.n_action)).astype(np.float32)
    no = np.zeros(n, bool)
    ends = rng.random(n) < 0.02
    model.update(Transitions(before, action, rng.random(n), after, ends, no, ~no, np.zeros(n, np.int64)), rng)
    return model


def ours(model: EnsembleDynamics, sizes: Sizes, *, read: bool) -> Callable[[int, int], Took]:
    """Times ``calls`` steps of ``batch`` rollouts; with ``read`` the standard deviations of the rewards are looked at."""
    rng = np.random.default_rng(0)

    def measure(batch: int, calls: int) -> Took:
        state = model.begin(rng.standard_normal((batch, sizes.n_observation)).astype(np.float32), {}, rng)
        action = rng.uniform(-1, 1, (batch, sizes.n_action)).astype(np.float32)
        cpu, wall = process_time(), perf_counter()
        for _ in range(calls):
            state, prediction = model.step(state, action, rng)
            if read:
                prediction.reward_std.sum()
        return Took((process_time() - cpu) / calls, (perf_counter() - wall) / calls)

    return measure


def products(sizes: Sizes) -> Callable[[int, int], Took]:
    """Times the matrix products in ``calls`` steps of ``batch`` rollouts, in blocks that stay in the cache."""
    rng = np.random.default_rng(0)
    widths = [sizes.n_observation + sizes.n_action, *[sizes.width] * sizes.layers, 2 * (sizes.n_observation + 1)]
    weights = [torch.from_numpy(rng.standard_normal(pair, dtype=np.float32) / 20) for pair in pairwise(widths)]
    block = 512

    def measure(batch: int, calls: int) -> Took:
        rows = [min(block, batch - start) for start in range(0, batch, block)]
        inputs = [torch.from_numpy(rng.standard_normal((n, widths[0]), dtype=np.float32)) for n in rows]
        outputs = [torch.empty(min(block, batch), width) for width in widths[1:]]
        cpu, wall = process_time(), perf_counter()
        for _ in range(calls):
            for h in inputs:
                n = len(h)
                for weight, out in zip(weights, outputs, strict=True):
                    h = torch.mm(h, weight, out=out[:n])
        return Took((process_time() - cpu) / calls, (perf_counter() - wall) / calls)

    return measure


def make_python(folder: Path, console: Console) -> Path:
    """An interpreter with mbrl-lib, made in ``folder`` if it is not there yet."""
    python = folder / "bin" / "python"
    if not (folder / "ready").is_file():
        console.print(f"making an environment for mbrl-lib in {folder}")
        venv.create(folder, with_pip=True, clear=True)
        version = torch.__version__.partition("+")[0]
        pip = [str(python), "-m", "pip", "install", "--quiet", "--prefer-binary"]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        subprocess.run([*pip, "setuptools<81", "wheel"], check=True)
        subprocess.run([*pip, "--no-deps", *REQUIREMENTS], check=True)
        subprocess.run([*pip, *IMPORTED], check=True)
        (folder / "ready").touch()
    return python


def measure(peer: Peer, sizes: Sizes, *, rounds: int, console: Console) -> dict[str, dict[str, Any]]:
    """Medians of seconds a step, by batch and contestant."""
    batches = {batch: max(1, batch // sizes.members) * sizes.members for batch in (1, 256, 4096)}
    model, floor = ensemble(sizes), products(sizes)
    own, read = (ours(model, sizes, read=read) for read in (False, True))
    took: dict[int, dict[str, list[Took]]] = {batch: {name: [] for name in (OURS, READ, THEIRS, FLOOR)} for batch in batches}
    for number in track(range(rounds + 1), "rounds", console=console):
        for batch, theirs in batches.items():
            calls = max(2, 400 // (1 + batch // 16))
            each_took = {OURS: own(batch, calls), THEIRS: peer.measure(theirs, calls)}
            each_took |= {READ: read(batch, calls), FLOOR: floor(theirs, calls)}
            if number > 0:  # the first round warms caches up
                for name, each in each_took.items():
                    took[batch][name].append(each)
    results: dict[str, dict[str, Any]] = {}
    for batch, theirs in batches.items():
        sizes_of = {OURS: batch, READ: batch, THEIRS: theirs, FLOOR: theirs}
        rows = {
            name: {
                "batch": sizes_of[name],
                "cpu_ms": 1e3 * median(one.cpu_s for one in each),
                "wall_ms": 1e3 * median(one.wall_s for one in each),
                "transitions_per_cpu_s": sizes_of[name] / median(one.cpu_s for one in each),
            }
            for name, each in took[batch].items()
        }
        speed = {name: row["transitions_per_cpu_s"] for name, row in rows.items()}
        ratios = {kind: speed[name] / speed[THEIRS] for kind, name in _RATIOS.items()}
        results[str(batch)] = {"contestants": rows, **ratios}
    return results


def table(results: dict[str, dict[str, Any]]) -> Table:
    """The results, for people."""
    shown = Table()
    for heading in ("batch", "contestant", "ms a step", "transitions a second", "times mbrl-lib"):
        shown.add_column(heading, justify="left" if heading == "contestant" else "right")
    for result in results.values():
        for name, row in result["contestants"].items():
            ratio = next((f"{result[kind]:.2f}" for kind, of in _RATIOS.items() if of == name), "")
            shown.add_row(f"{row['batch']:,}", name, f"{row['cpu_ms']:.2f}", f"{row['transitions_per_cpu_s']:,.0f}", ratio)
    return shown


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Transitions a second, as a share of mbrl-lib's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.barh([f"batch {int(batch):,}" for batch in results], [each["ratio"] for each in results.values()], color="#2ca02c")
    axes.axvline(1.0, color="#888888", linewidth=1)
    axes.axvline(3.0, color="#d62728", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("transitions a second, in units of mbrl-lib's")
    figure.savefig(path, dpi=130)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbrl-python", type=Path, default=None, help="an interpreter that has mbrl 0.2.0")
    parser.add_argument("--rounds", type=int, default=30, help="turns that each contestant takes (default: 30)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for both (default: 1)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=["steps", "learning"], default=None, help="one of the two tables (default: both)")
    arguments = parser.parse_args(argv)
    console = Console()
    sizes = Sizes(threads=arguments.threads)
    torch.set_num_threads(sizes.threads)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "world_models.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() and arguments.only else {}
    if arguments.only != "learning":
        document |= steps(arguments, sizes, console=console)
    missed: list[str] = []
    if arguments.only != "steps":
        document["learning"] = learning_cost.measure()
        console.print(learning_cost.table(document["learning"]))
        missed = learning_cost.misses(document["learning"])
    document = {**document, "machine": machine()}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for line in missed:
        console.print(f"missed: {line}")
    return 1 if missed else 0


def steps(arguments: argparse.Namespace, sizes: Sizes, *, console: Console) -> dict[str, Any]:
    """Measure, show and draw what a step costs; what of it goes to the results."""
    python = arguments.mbrl_python or make_python(user_cache_path("wmrl-gym") / "mbrl-venv", console)
    peer = Peer(python, sizes)
    try:
        results = measure(peer, sizes, rounds=arguments.rounds, console=console)
    finally:
        peer.close()
    console.print(table(results))
    versions = {"torch": torch.__version__, "torch_of_mbrl": peer.torch, "python": sys.version.split()[0]}
    draw(results, arguments.results / "world_models.png")
    return {"sizes": asdict(sizes), "versions": versions, "batches": results}


if __name__ == "__main__":
    raise SystemExit(main())
