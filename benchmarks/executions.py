"""What was executed once and for all: how recorded executions are stored, and how they are read.

A file for each task, ``benchmarks/data/executions/NAME.jsonl.gz``, holds one line for each script that was run: what it is, how
it ended, its scores, and what it printed. Scores are raw. What they are worth follows from the task's leaderboard when a file is
read, so that leaderboards may change. Scripts of designs are not stored but rendered; a hash tells whether they still are what
was run. ``python -m benchmarks.record_executions`` writes the files.

>>> grid = load_grid("diabetes")
>>> grid.rewards.shape, grid.status.shape
((9, 5, 5), (9, 5, 5))
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS as HELD_OUT_TASKS
from wmrl_gym.envs.autoresearch import TRAIN_TASKS as TRAIN_TASKS
from wmrl_gym.envs.autoresearch import load_task
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC, SLOTS
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.verdict import Verdict
from wmrl_gym.files import write_whole

FOLDER = Path(__file__).parent / "data" / "executions"
Kind = Literal["grid", "random", "agent"]
"""A design of the grid, a design of the whole space, or a script that an agent wrote."""


GRID_SLOTS = ("family", "size", "strength")
GRID_BASE = np.array([2, 1, 1, 0, 0, 0, 0, 0, 0], dtype=np.int64)
"""The other slots of the grid: medians for what is missing, standard scaling, one-hot encoding, all features, the first rate, the
plain target."""
_GRID_COLUMNS = [list(SLOTS).index(name) for name in GRID_SLOTS]
GRID_SHAPE: tuple[int, int, int] = (int(NVEC[_GRID_COLUMNS[0]]), int(NVEC[_GRID_COLUMNS[1]]), int(NVEC[_GRID_COLUMNS[2]]))


@dataclass(frozen=True, slots=True)
class Execution:
    """One script, and what came of it.

    Args:
        kind: what it is.
        design: nine choices; () for a script that an agent wrote.
        code: the script; "" for a design, which :func:`script` renders.
        digest: of the script.
        episode: which of the agent's episodes it is of; -1 for a design.
        turn: which turn of it, from 0; -1 for a design.
        cpu_s: CPU seconds that it took.
        verdict: how it ended.
    """

    kind: Kind
    design: tuple[int, ...]
    code: str
    digest: str
    episode: int
    turn: int
    cpu_s: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Grid:
    """What every design of the grid (family x size x strength) brought on one task: arrays of shape (9, 5, 5).

    Args:
        rewards: float64. What an episode of one turn pays, by the leaderboard of today.
        shown: float64. The value on the validation part.
        status: int64. Index into the environments' statuses.
        validation: float64. The raw score; NaN where there is none.
        test: float64. Likewise.
        cpu_s: float64. CPU seconds of the execution.
    """

    rewards: NDArray[np.float64]
    shown: NDArray[np.float64]
    status: NDArray[np.int64]
    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    cpu_s: NDArray[np.float64]


def grid_designs() -> NDArray[np.int64]:
    """The designs of the grid, int64, shape (225, 9), in the order of a flattened :class:`Grid`."""
    designs = np.tile(GRID_BASE, (int(np.prod(GRID_SHAPE)), 1))
    designs[:, _GRID_COLUMNS] = np.stack(np.unravel_index(np.arange(len(designs)), GRID_SHAPE), axis=1)
    return designs


def load_grid(task: str) -> Grid:
    """The grid of a task.

    Raises:
        KeyError: a design has not been executed yet.
        FileNotFoundError: nothing was recorded of the task.
        ValueError: what was recorded is of other rows than the task has now.
    """
    loaded, found = load_task(task), grid_executions(task)

    def shaped(values: Iterable[float]) -> NDArray[np.float64]:
        return np.array(list(values), dtype=np.float64).reshape(GRID_SHAPE)

    return Grid(
        rewards=shaped(each.verdict.value(loaded) for each in found),
        shown=shaped(each.verdict.shown(loaded) for each in found),
        status=np.array([each.verdict.status for each in found], dtype=np.int64).reshape(GRID_SHAPE),
        validation=shaped(each.verdict.validation for each in found),
        test=shaped(each.verdict.test for each in found),
        cpu_s=shaped(each.cpu_s for each in found),
    )


def grid_executions(task: str, *, folder: Path = FOLDER) -> list[Execution]:
    """The execution of each design of the grid, in their order; designs that are the same script share it.

    Raises:
        KeyError: a design has not been executed yet.
        FileNotFoundError: nothing was recorded of the task.
        ValueError: what was recorded is of other rows than the task has now.
    """
    loaded, known = load_task(task), {each.digest: each for each in read(task, folder=folder)}
    digests = [digest_of(render_design(loaded, design)) for design in grid_designs()]
    missing = sum(digest not in known for digest in digests)
    if missing:
        raise KeyError(
            f"{missing} of {len(digests)} designs of {task} were not executed: run python -m benchmarks.record_executions"
        )
    pairs = zip(digests, grid_designs(), strict=True)
    return [replace(known[digest], design=tuple(design.tolist())) for digest, design in pairs]


def read(task: str, *, folder: Path = FOLDER) -> list[Execution]:
    """Everything that was recorded of a task.

    Raises:
        FileNotFoundError: nothing was.
        ValueError: it is of other rows than the task has now.
    """
    path = folder / f"{task}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    if json.loads(header)["rows"] != rows_digest(load_task(task)):
        raise ValueError(
            f"{path} was recorded on other rows than {task} has now: run python -m benchmarks.record_executions --fresh"
        )
    return [from_line(json.loads(line)) for line in lines]


def write(task: str, executions: Iterable[Execution], *, folder: Path = FOLDER) -> None:
    """Write everything that was recorded of a task, whole, so that others may read while it grows."""
    lines = [json.dumps({"task": task, "rows": rows_digest(load_task(task))}), *map(to_line, executions)]
    content = gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=9, mtime=0)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{task}.jsonl.gz", lambda part: part.write_bytes(content))


def script(task: Task, execution: Execution) -> str:
    """The script that was run.

    Raises:
        ValueError: its design is rendered to another one now.
    """
    code = execution.code or render_design(task, execution.design)
    if digest_of(code) != execution.digest:
        raise ValueError(f"the design {execution.design} of {task.spec.name} was another script when it was executed")
    return code


def digest_of(code: str) -> str:
    """What names a script: 16 hexadecimal digits of its sha256."""
    return hashlib.sha256(code.encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def _rows_digest(directory: Path) -> str:
    names = ("public/train.csv", "public/test.csv", "private/answers.csv")
    return hashlib.sha256(b"\0".join((directory / name).read_bytes() for name in names)).hexdigest()[:16]


def rows_digest(task: Task) -> str:
    """What names the rows and the answers of a task, whatever its leaderboard."""
    return _rows_digest(task.directory)


_ABSENT: dict[str, Any] = {"design": (), "code": "", "episode": -1, "turn": -1, "validation": None, "test": None}
_ABSENT |= {"ended": "exit code: 0", "problem": "", "stdout": "", "stderr": ""}
"""What a line leaves out."""


def to_line(execution: Execution) -> str:
    """An execution as a line of JSON, without what it has in common with most."""
    fields = asdict(execution)
    verdict = fields.pop("verdict")
    scores = {part: None if np.isnan(verdict[part]) else verdict[part] for part in ("validation", "test")}
    whole = fields | verdict | scores | {"status": STATUSES[execution.verdict.status], "cpu_s": round(execution.cpu_s, 3)}
    return json.dumps({name: value for name, value in whole.items() if name not in _ABSENT or value != _ABSENT[name]})


def from_line(line: dict[str, Any]) -> Execution:
    """The execution that a line of JSON stands for."""
    whole = _ABSENT | line
    scores = [np.nan if whole[part] is None else whole[part] for part in ("validation", "test")]
    texts = (whole[name] for name in ("ended", "problem", "stdout", "stderr"))
    verdict = Verdict(STATUSES.index(whole["status"]), scores[0], scores[1], *texts)
    own = {name: whole[name] for name in ("kind", "code", "digest", "episode", "turn", "cpu_s")}
    return Execution(design=tuple(whole["design"]), verdict=verdict, **own)


def all_of(tasks: Iterable[str], *, folder: Path = FOLDER) -> Iterator[tuple[Task, Execution]]:
    """Everything recorded of some tasks, with the task of each."""
    for name in tasks:
        task = load_task(name)
        for execution in read(name, folder=folder):
            yield task, execution
