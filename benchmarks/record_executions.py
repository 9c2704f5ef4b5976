"""Executes scripts of every embedded task once and for all: ``python -m benchmarks.record_executions``.

Three kinds, in this order: the 225 designs of family, size and strength (held-out tasks first, then training tasks); designs
drawn uniformly from the whole space, of training tasks; and the scripts of a scripted agent in episodes of the text environment,
of all tasks, of which the held-out ones serve for measuring alone. Scripts that are equal are executed once.

What is there already is not executed again, so that a run that was stopped goes on; files are written as it goes. CPU time alone
ends a run, so that a busy machine records the same. :mod:`benchmarks.executions` reads the files.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.executions import (
    FOLDER,
    HELD_OUT_TASKS,
    TRAIN_TASKS,
    Execution,
    Kind,
    digest_of,
    grid_designs,
    read,
    write,
)
from wmrl_gym.agents import ScriptedProposer
from wmrl_gym.envs.autoresearch import load_task
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.text_env import AutoResearchText
from wmrl_gym.envs.autoresearch.verdict import Verdict, judge
from wmrl_gym.files import locked
from wmrl_gym.sandbox import Limits, Sandbox, make_sandbox

ItemT = TypeVar("ItemT")

DESIGN_LIMITS = Limits(wall_s=60.0, cpu_s=1.0)
"""CPU time alone decides; one second is what the design environment gives."""
AGENT_LIMITS = Limits(wall_s=60.0, cpu_s=3.0)
"""Of scripts that an agent wrote: likewise."""
KINDS: tuple[Kind, ...] = ("grid", "random", "agent")
EVERY = 25
"""Executions after which a file is written."""
KEPT = 4000
"""Characters kept of what a run printed: more than an agent reads of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Record what the command line asks for and is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*HELD_OUT_TASKS, *TRAIN_TASKS)
    parser.add_argument("--tasks", nargs="*", choices=names, default=names, metavar="TASK", help="which tasks (default: all)")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="default: all")
    parser.add_argument("--random", type=int, default=120, help="random designs of each training task (default: 120)")
    parser.add_argument("--episodes", type=int, default=40, help="of the agent, of four turns, a training task (default: 40)")
    parser.add_argument("--held-out-episodes", type=int, default=12, help="likewise, a held-out task (default: 12)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="executions at the same time")
    parser.add_argument("--fresh", action="store_true", help="execute anew what is there already")
    chosen = parser.parse_args(argv)
    jobs: list[tuple[str, Kind]] = [(name, kind) for kind in chosen.kinds for name in names if name in chosen.tasks]
    if chosen.fresh:
        for name in chosen.tasks:
            (FOLDER / f"{name}.jsonl.gz").unlink(missing_ok=True)
    sandbox = make_sandbox("local", workers=chosen.workers)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns) as progress, ThreadPoolExecutor(chosen.workers) as pool:
            for name, kind in jobs:
                if kind == "random" and name in HELD_OUT_TASKS:
                    continue
                began, bar = perf_counter(), progress.add_task(f"{kind:6} {name}", total=None)
                recorder = Recorder(name, sandbox, partial(_moved, progress, bar))
                if kind == "agent":
                    episodes = chosen.held_out_episodes if name in HELD_OUT_TASKS else chosen.episodes
                    new = recorder.episodes(episodes, seed=chosen.seed, pool=pool)
                else:
                    designs = grid_designs() if kind == "grid" else random_designs(name, chosen.random, seed=chosen.seed)
                    new = recorder.designs(kind, designs, pool)
                cpu_s = sum(each.cpu_s for each in new)
                progress.console.print(f"{kind} {name}: {len(new)} executed, {cpu_s:.0f} CPU s, {perf_counter() - began:.0f} s")
    finally:
        sandbox.close()
    return 0


def _moved(progress: Progress, bar: TaskID, done: int, total: int) -> None:
    progress.update(bar, completed=done, total=total)


def random_designs(name: str, count: int, *, seed: int) -> NDArray[np.int64]:
    """Designs of the whole space, int64, shape (count, 9): the first ones stay the same when more are asked for."""
    rng = np.random.default_rng([seed, *name.encode()])
    return np.array([rng.integers(0, NVEC) for _ in range(count)], dtype=np.int64)


class Recorder:
    """Executes scripts of one task that were not executed yet, and writes them down.

    Args:
        name: of the task.
        sandbox: executes.
        tick: told how many of how many are done.
        folder: where files are.
    """

    def __init__(self, name: str, sandbox: Sandbox, tick: Callable[[int, int], None], *, folder: Path = FOLDER) -> None:
        self.task, self.sandbox, self.tick, self.folder = load_task(name), sandbox, tick, folder
        self.known = self._recorded()

    def designs(self, kind: Kind, designs: NDArray[np.int64], pool: ThreadPoolExecutor) -> list[Execution]:
        """Execute designs, and return those that were new."""
        code: dict[str, tuple[str, tuple[int, ...]]] = {}
        for design in designs:
            text = render_design(self.task, design)
            code.setdefault(digest_of(text), (text, tuple(design.tolist())))
        missing = [(digest, *rest) for digest, rest in code.items() if digest not in self.known]

        def one(each: tuple[str, str, tuple[int, ...]]) -> Execution:
            digest, text, design = each
            return Execution(kind, design, "", digest, -1, -1, *run(self.task, self.sandbox, text, DESIGN_LIMITS))

        new: list[Execution] = []
        for chunk in _chunks(missing, EVERY):
            for execution in pool.map(one, chunk):
                new.append(execution)
                self.tick(len(new), len(missing))
            self.keep(new[-len(chunk) :])
        return new

    def episodes(self, count: int, *, seed: int, pool: ThreadPoolExecutor) -> list[Execution]:
        """Let scripted agents of every skill play episodes of the text environment, and return the executions that were new.

        What is known already is not executed, but replayed, so that an episode goes on where it was stopped.
        """
        logic = AutoResearchText(self.task.directory, sandbox=self.sandbox)
        before = len(self.known)
        for done, chunk in enumerate(_chunks(list(range(count)), 6)):
            self.keep([each for new in pool.map(lambda number: self._episode(logic, number, seed=seed), chunk) for each in new])
            self.tick(min(6 * (done + 1), count), count)
        return list(self.known.values())[before:]

    def _episode(self, logic: AutoResearchText, number: int, *, seed: int) -> list[Execution]:
        agent = ScriptedProposer(seed=_episode_seed(seed, self.task.spec.name, number), skill=(number % 5) / 4)
        observation, info = logic.start(np.zeros(1, np.int64))
        state = logic.begin(observation, info)
        new: list[Execution] = []
        for turn in range(logic.rules.max_turns):
            attempt = logic.attempt(state, [agent.act({name: part[0] for name, part in observation.items()})])
            certain, outcome = logic.gate(attempt)
            if not certain[0]:
                digest = digest_of(attempt.code[0])
                execution = self.known.get(digest) or next((each for each in new if each.digest == digest), None)
                if execution is None:
                    cpu_s, verdict = run(self.task, self.sandbox, attempt.code[0], AGENT_LIMITS)
                    execution = Execution("agent", (), attempt.code[0], digest, number, turn, cpu_s, verdict)
                    new.append(execution)
                outcome = execution.verdict.outcome(self.task)
            state, step = logic.advance(state, attempt, outcome)
            observation = step.observation
        return new

    def keep(self, executions: list[Execution]) -> None:
        """Write executions down, with what is known already, what another process has written since included."""
        with locked(self.folder):
            self.known = self._recorded() | self.known | {each.digest: each for each in executions}
            write(self.task.spec.name, self.known.values(), folder=self.folder)

    def _recorded(self) -> dict[str, Execution]:
        name = self.task.spec.name
        if not (self.folder / f"{name}.jsonl.gz").is_file():
            return {}
        return {each.digest: each for each in read(name, folder=self.folder)}


def _chunks(items: list[ItemT], size: int) -> list[list[ItemT]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _episode_seed(seed: int, name: str, number: int) -> int:
    return int(np.random.default_rng([seed, number, *name.encode()]).integers(2**32))


def run(task: Task, sandbox: Sandbox, code: str, limits: Limits) -> tuple[float, Verdict]:
    """CPU seconds and verdict of a script.

    Raises:
        RuntimeError: the sandbox failed, or the machine was so busy that wall-clock time ended a run.
    """
    result = sandbox.run(code, data_dir=task.public, limits=limits)
    if result.failed is not None:
        raise RuntimeError(f"the sandbox failed: {result.failed}")
    if result.exceeded == "wall" and result.cpu_s > 0.1 * limits.cpu_s:
        raise RuntimeError(f"a run had only {result.cpu_s:.2f} CPU s in {result.wall_s:.0f} s: the machine is too busy")
    verdict = judge(task, result, limits)
    return result.cpu_s, replace(verdict, stdout=_kept(verdict.stdout), stderr=_kept(verdict.stderr))


def _kept(text: str) -> str:
    """What is kept of a text, with no path of this machine in it."""
    return (
        text.rstrip()[-KEPT:]
        .replace(sysconfig.get_path("purelib"), "/site-packages")
        .replace(sysconfig.get_path("stdlib"), "/lib")
    )


if __name__ == "__main__":
    raise SystemExit(main())
