"""The table of what was executed: each script of each task once, for all arms and seeds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import executions
from benchmarks.executions import Execution, digest_of
from wmrl_gym import batch
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.verdict import Verdict
from wmrl_gym.factored import Outcome

PACKED = Path(__file__).parents[2] / "data" / "whole_space"
"""Where the committed tables are."""
TURNS = 3
"""Attempts an episode."""

Execute = Callable[[Task, str], tuple[float, Verdict]]
"""CPU seconds and verdict of a task's script."""


class Table:
    """What the scripts of one task brought, kept as they come.

    Args:
        task: it.
        execute: runs a script that is not known yet.
        folder: of the file to which new executions are added.
        packed: of the files that are read besides: the committed ones, and the executions of the other studies.
    """

    def __init__(
        self, task: Task, execute: Execute, *, folder: Path, packed: tuple[Path, ...] = (executions.FOLDER, PACKED)
    ) -> None:
        self.task, self._execute, self._lock = task, execute, threading.Lock()
        self.path = folder / f"{task.spec.name}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.new = 0
        """Executions of this process."""
        self._known: dict[str, Execution] = {}
        for place in packed:
            if (place / f"{task.spec.name}.jsonl.gz").is_file():
                self._known |= {each.digest: each for each in executions.read(task.spec.name, folder=place)}
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            self._known |= {each.digest: each for each in map(executions.from_line, map(json.loads, lines))}

    def __len__(self) -> int:
        """How many scripts are known."""
        return len(self._known)

    def all(self) -> list[Execution]:
        """Everything that is known."""
        return list(self._known.values())

    def of(self, design: NDArray[np.int64]) -> Execution:
        """What the script of a design, int64 of shape (9,), brought; executed where that is not known."""
        code = render_design(self.task, design)
        digest = digest_of(code)
        with self._lock:
            if digest not in self._known:
                cpu_s, verdict = self._execute(self.task, code)
                bare = replace(verdict, stdout="", stderr="", problem="")
                self._known[digest] = Execution("random", tuple(design.tolist()), "", digest, -1, -1, cpu_s, bare)
                self.new += 1
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(executions.to_line(self._known[digest]) + "\n")
            return self._known[digest]

    def pack(self, folder: Path = PACKED) -> int:
        """Write what the other studies do not have into one compressed file, and say how many executions that is."""
        name = self.task.spec.name
        elsewhere = executions.read(name, folder=executions.FOLDER) if (executions.FOLDER / f"{name}.jsonl.gz").is_file() else []
        others = {each.digest for each in elsewhere}
        own = sorted((each for digest, each in self._known.items() if digest not in others), key=lambda each: each.digest)
        executions.write(name, own, folder=folder)
        return len(own)


class ExecutedOnce(AutoResearchDesign):
    """One task, whose designs are looked up in a table, and executed where it does not have them.

    Args:
        table: of the task.
        at_once: answer whole batches without the detour over threads that real execution takes; for arms that execute all.
        max_turns: attempts an episode.
    """

    def __init__(self, table: Table, *, at_once: bool = False, max_turns: int = TURNS) -> None:
        super().__init__(table.task.spec.name, max_turns=max_turns)
        self.table, self.at_once, self.asked = table, at_once, 0

    def execute(self, attempt: DesignAttempt) -> Outcome:
        """What these designs bring when they are executed; all count as executions, known or not."""
        self.asked += len(attempt.task)
        return batch.concatenate([self.table.of(design).verdict.outcome(self.table.task) for design in attempt.design])

    def gate(self, attempt: DesignAttempt) -> tuple[NDArray[np.bool_], Any]:
        """Nothing is certain before it runs, but where all is looked up at once."""
        if self.at_once:
            return np.ones(len(attempt.task), bool), self.execute(attempt)
        return super().gate(attempt)
