"""Runs varied solutions of every task and writes their scores: ``python -m benchmarks.build_leaderboards``.

A leaderboard holds three kinds of entries, all of them really run in a sandbox and graded on the hidden test part:

- hand-made solutions, the constant guess among them;
- designs drawn uniformly from the design space;
- for each of the rest, the best on *validation* data of a few such draws, so that beating the middle of the board takes some
  care, as it does among people.

A board that is there already and too small is added to; one that is large enough is left alone, so that the command goes on where
it was stopped. ``--fresh`` builds anew; ``--again`` runs the solutions of a board on the task's rows as they are now, and
replaces those that fail. The same seed draws the same designs. Whether a design near its time limit finishes depends on the
machine. In the end the checksums of the tasks are written.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.hand_written_solutions import hand_written
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC, SLOTS, Design
from wmrl_gym.envs.autoresearch.embedded.catalogue import HASHES, LEADERBOARDS, task_hash
from wmrl_gym.envs.autoresearch.embedded.recipes import RECIPES, write_task
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.sandbox import Limits, Sandbox, make_sandbox

DESIGN_LIMITS = Limits(wall_s=30.0, cpu_s=1.0)
"""CPU time alone decides, so that a busy machine keeps the same designs."""
HAND_MADE_LIMITS = Limits(wall_s=600.0, cpu_s=60.0)
UNIFORM_SHARE = 0.8
"""The share of drawn entries that are uniform; the others are the best of :data:`DRAWS`."""
DRAWS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One solution: what it is, how it ended, its scores (NaN where it has none), and the seconds that it took."""

    solution: str
    outcome: str
    validation: float
    test: float
    seconds: float


def run(task: Task, sandbox: Sandbox, *, solution: str, code: str, limits: Limits) -> Entry:
    """Run and grade one script.

    Raises:
        RuntimeError: if the sandbox itself failed.
    """
    result = sandbox.run(code, data_dir=task.public, limits=limits)
    if result.failed is not None:
        raise RuntimeError(f"the sandbox failed on {solution!r}: {result.failed}")
    if result.exceeded is not None or result.exit_code != 0:
        return Entry(solution, result.exceeded or "error", np.nan, np.nan, result.wall_s)
    graded = grade(task, result.submission, problem=result.submission_problem)
    return Entry(solution, "valid" if graded.problem is None else "invalid", graded.validation, graded.test, result.wall_s)


def draw(task: Task, sandbox: Sandbox, *, count: int, seed: list[int], pool: ThreadPoolExecutor, known: set[str]) -> list[Entry]:
    """Run random designs that are not ``known``, in the order of the draws, until ``count`` are valid; returns all that ran."""
    rng = np.random.default_rng([*seed, *task.spec.name.encode()])
    seen = set(known)

    def another() -> NDArray[np.int64]:
        while str(Design.of(action := rng.integers(0, NVEC))) in seen:
            pass
        seen.add(str(Design.of(action)))
        return action

    def one(action: NDArray[np.int64]) -> Entry:
        code = render_design(task, action)
        return run(task, sandbox, solution=str(Design.of(action)), code=code, limits=DESIGN_LIMITS)

    entries: list[Entry] = []
    while sum(entry.outcome == "valid" for entry in entries) < count:
        entries.extend(pool.map(one, [another() for _ in range(8)]))
    return entries


def choose(drawn: list[Entry], *, size: int, larger_is_better: bool) -> list[Entry]:
    """Entries made of random designs."""
    valid = iter([entry for entry in drawn if entry.outcome == "valid"])
    sign = 1.0 if larger_is_better else -1.0
    board = [next(valid) for _ in range(_uniform(size))]
    while len(board) < size:
        board.append(max((next(valid) for _ in range(DRAWS)), key=lambda entry: sign * entry.validation))
    return board


def _uniform(size: int) -> int:
    return round(UNIFORM_SHARE * size)


def rerun(task: Task, sandbox: Sandbox, pool: ThreadPoolExecutor, board: list[Entry]) -> list[Entry]:
    """The solutions of a board, run on the task's rows as they are now; those that fail are left out."""
    made = hand_written(task)

    def one(entry: Entry) -> Entry:
        name = entry.solution.removeprefix("hand-made: ")
        if name != entry.solution:
            return run(task, sandbox, solution=entry.solution, code=made[name], limits=HAND_MADE_LIMITS)
        code = render_design(task, _action(entry.solution))
        return run(task, sandbox, solution=entry.solution, code=code, limits=DESIGN_LIMITS)

    return [entry for entry in pool.map(one, board) if entry.outcome == "valid"]


def _action(solution: str) -> NDArray[np.int64]:
    """The action of a design, from its text."""
    chosen = dict(part.split(": ") for part in solution.split(", "))
    return np.array([choices.index(chosen[slot]) for slot, choices in SLOTS.items()], dtype=np.int64)


def read_board(path: Path) -> list[Entry]:
    """The entries of a leaderboard file; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [Entry(row["solution"], "valid", np.nan, float(row["score"]), float(row["seconds"])) for row in rows]


def build(
    name: str, sandbox: Sandbox, *, size: int, seed: int, pool: ThreadPoolExecutor, begun: list[Entry], again: bool
) -> tuple[bytes, str]:
    """One leaderboard: its csv file, and a line of statistics. The entries ``begun`` are kept, or run again."""
    with tempfile.TemporaryDirectory() as folder:
        # A task cannot be loaded without a leaderboard: this one is read by nobody.
        write_task(name, Path(folder) / name, leaderboard=b"score\n0\n")
        task = Task.load(Path(folder) / name)
        if again:
            begun = rerun(task, sandbox, pool, begun)
        kept = begun if begun else try_hand_written(task, sandbox, pool)
        missing = size - len(kept)
        count = _uniform(missing) + DRAWS * (missing - _uniform(missing))
        drawn = draw(task, sandbox, count=count, seed=[seed, len(begun)], pool=pool, known={entry.solution for entry in kept})
    larger = task.spec.metric.larger_is_better
    board = sorted(kept + choose(drawn, size=missing, larger_is_better=larger), key=lambda entry: entry.test, reverse=larger)
    return to_csv(board), statistics(name, board, drawn)


def try_hand_written(task: Task, sandbox: Sandbox, pool: ThreadPoolExecutor) -> list[Entry]:
    """The hand-made solutions.

    Raises:
        RuntimeError: if one of them failed.
    """

    def one(item: tuple[str, str]) -> Entry:
        return run(task, sandbox, solution=f"hand-made: {item[0]}", code=item[1], limits=HAND_MADE_LIMITS)

    made = list(pool.map(one, hand_written(task).items()))
    broken = [entry for entry in made if entry.outcome != "valid"]
    if broken:
        raise RuntimeError(f"hand-made solutions of {task.spec.name} failed: {broken}")
    return made


def to_csv(board: list[Entry]) -> bytes:
    """The leaderboard file."""
    with tempfile.TemporaryFile("w+", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("score", "solution", "seconds"))
        writer.writerows((f"{entry.test:.6g}", entry.solution, f"{entry.seconds:.2f}") for entry in board)
        file.seek(0)
        return file.read().encode("utf-8")


def statistics(name: str, board: list[Entry], drawn: list[Entry]) -> str:
    """One line about a leaderboard and the random designs behind it."""
    scores = [entry.test for entry in board]
    seconds = [entry.seconds for entry in drawn] or [0.0]
    ends = {end: sum(entry.outcome == end for entry in drawn) / max(len(drawn), 1) for end in ("error", "wall", "cpu", "invalid")}
    best = next((entry.test for entry in board if not entry.solution.startswith("hand-made")), np.nan)
    return (
        f"{name:16} n={len(board)} best={scores[0]:.4f} best design={best:.4f} "
        f"median={np.median(scores):.4f} worst={scores[-1]:.4f} | "
        f"{len(drawn)} designs: errors {ends['error']:.0%}, time-outs {ends['wall'] + ends['cpu']:.0%}, "
        f"invalid {ends['invalid']:.0%}, median {np.median(seconds):.2f} s, mean {np.mean(seconds):.2f} s"
    )


def write_hashes() -> None:
    """Write the hash of every embedded task as it is with the leaderboards on disk."""
    lines = []
    for name in sorted(RECIPES):
        board = LEADERBOARDS / f"{name}.csv"
        if board.is_file():
            with tempfile.TemporaryDirectory() as folder:
                write_task(name, Path(folder) / name, leaderboard=board.read_bytes())
                lines.append(f"{task_hash(Path(folder) / name)}  {name}")
    HASHES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Build the leaderboards that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = sorted(RECIPES)
    parser.add_argument("--tasks", nargs="*", choices=names, default=names, help="which tasks (default: all)")
    parser.add_argument("--solutions", type=int, default=100, help="entries of each leaderboard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="executions at the same time")
    parser.add_argument("--fresh", action="store_true", help="build anew what is there already")
    parser.add_argument("--again", action="store_true", help="run the solutions of the boards again on the rows of today")
    parser.add_argument("--hashes-only", action="store_true", help="only write the tasks' hashes again")
    chosen = parser.parse_args(arguments)
    if not chosen.hashes_only:
        sandbox = make_sandbox("local", workers=chosen.workers)
        try:
            with ThreadPoolExecutor(chosen.workers) as pool:
                for name in chosen.tasks:
                    path = LEADERBOARDS / f"{name}.csv"
                    begun = [] if chosen.fresh else read_board(path)
                    if len(begun) >= chosen.solutions and not chosen.again:
                        continue
                    content, line = build(
                        name, sandbox, size=chosen.solutions, seed=chosen.seed, pool=pool, begun=begun, again=chosen.again
                    )
                    path.write_bytes(content)
                    print(line, flush=True)
        finally:
            sandbox.close()
    write_hashes()
    return 0


if __name__ == "__main__":
    sys.exit(main())
