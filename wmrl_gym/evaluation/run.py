"""Runs an evaluation in a folder, episode by episode; what is there already is not done again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from wmrl_gym.envs.autoresearch import Task
from wmrl_gym.evaluation.agents import make_agent, make_environment
from wmrl_gym.evaluation.config import Caps, EvaluationConfig
from wmrl_gym.evaluation.medals import awards_medals, medal
from wmrl_gym.evaluation.summary import Graded, summarize
from wmrl_gym.evaluation.transcript import Key, Told, Transcript, read
from wmrl_gym.files import is_begun, write_json
from wmrl_gym.rollouts import Budget, Rollout, Rollouts, Start, Turn, groups
from wmrl_gym.rollouts.contract import KNOWN
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.sandbox.pool import SandboxPool
from wmrl_gym.study.machine import machine

MARKER = "wmrl-evaluation.json"
"""File that holds an evaluation's settings, and says that a folder is one's."""
RESULTS = "results.json"
_LEAST_LOST = 4
"""Episodes in a row that must be lost, as many as are under way at least, before the rest is not begun."""


class EvaluationMismatch(ValueError):
    """The folder holds another evaluation."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How an evaluation is carried out, which changes nothing of what it finds.

    Args:
        slots: episodes at once.
        workers: executions at once.
        sandbox: where code runs.
        caps: what it may cost.
    """

    slots: int = 8
    workers: int = 2
    sandbox: str | Sandbox = "local"
    caps: Caps = field(default_factory=Caps)


class Evaluation:
    """One agent's evaluation, in a folder.

    Args:
        config: what is evaluated.
        folder: where everything is written; an evaluation that was interrupted there goes on.
        manner: how it is carried out.
        console: where progress is shown.

    Raises:
        EvaluationMismatch: the folder holds another evaluation, or files that are not an evaluation's.
    """

    def __init__(self, config: EvaluationConfig, folder: Path, *, manner: Manner | None = None, console: Console) -> None:
        self.config, self.folder, self.console = config, folder, console
        self.manner = Manner() if manner is None else manner
        self.tasks = {task.spec.name: task for task in config.load_tasks()}
        wanted = config.identity(list(self.tasks.values()))

        def differing(found: Any) -> list[str]:
            return _differing(wanted, found["settings"])

        if not is_begun(folder, MARKER, what="an evaluation", differing=differing, error=EvaluationMismatch):
            write_json(folder / MARKER, {"settings": wanted, "label": config.agent.label, "machine": machine()})
        seeds = range(config.first_seed, config.first_seed + config.seeds)
        self.starts = groups(self.tasks, seeds)

    def run(self) -> dict[str, Any]:
        """Run what is missing, then write and return the results.

        Raises:
            DamagedTranscript: what was written before cannot be read.
            AgentFailed: the agent cannot be loaded.
            ValueError: a senseless setting.
        """
        transcript = Transcript(self.folder)
        try:
            missing = [start for start in self.starts if not _is_known(transcript.told, start)]
            stopped = self._play(missing, transcript) if missing else ""
        finally:
            transcript.close()
        results = results_of(self.folder, self.tasks) | {"stopped": stopped}
        write_json(self.folder / RESULTS, results)
        return results

    def _play(self, missing: list[Start], transcript: Transcript) -> str:
        """Play; why the rest was not begun, "" where all was."""
        manner, told = self.manner, transcript.told
        pool = SandboxPool(manner.sandbox, manner.workers, cache=False)
        environment = make_environment(self.config, list(self.tasks.values()), pool, manner.slots)
        try:
            agent = make_agent(self.config.agent, environment, reply_timeout_s=self.config.reply_timeout_s)
            caps = manner.caps
            budget = Budget(
                tokens=caps.tokens,
                executions=caps.executions,
                seconds=caps.seconds,
                spent_tokens=told.tokens,
                spent_executions=told.executions,
                spent_seconds=told.seconds,
            )
            book = _Book(transcript, self.tasks, budget)
            rollouts = Rollouts(
                environment,
                agent,
                slots=min(manner.slots, len(missing)),
                timeout_s=self.config.timeout_s,
                budget=budget,
                watch=book.turn,
            )
            with self._bars() as bars:
                bar = bars.add_task("evaluate", total=len(self.starts), completed=len(self.starts) - len(missing), said="")
                return self._until_done(rollouts, missing, book, bars, bar)
        finally:
            environment.close()
            pool.close()

    def _until_done(self, rollouts: Rollouts, missing: list[Start], book: _Book, bars: Progress, bar: TaskID) -> str:
        lost, enough, stopped = 0, max(_LEAST_LOST, rollouts.slots), ""
        for rollout in rollouts.collect(missing):
            book.end(rollout)
            lost = lost + 1 if rollout.ended == "lost" else 0 if rollout.known else lost
            if lost >= enough and not stopped:
                stopped = f"{lost} episodes in a row were lost, the last one: {rollout.problem}"
                rollouts.cancel()
            bars.update(bar, advance=int(rollout.known), said=book.said())
        return stopped

    def _bars(self) -> Progress:
        said = TextColumn("{task.fields[said]}", markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn())
        return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), said, console=self.console)


class _Book:
    """Writes down what happens."""

    def __init__(self, transcript: Transcript, tasks: Mapping[str, Task], budget: Budget) -> None:
        self._transcript, self._tasks, self._budget = transcript, tasks, budget
        self._tries = {key: tries + 1 for key, tries in transcript.told.tries.items()}
        self._began = time.monotonic()

    def said(self) -> str:
        spent = self._budget.spent
        tokens = f"{spent['tokens']:,} tokens, " if spent["tokens"] else ""
        return f"{tokens}{spent['executions']:,} executed"

    def turn(self, start: Start, number: int, turn: Turn) -> None:
        said = turn.said
        line = {
            **self._head("turn", start),
            "turn": number,
            "reply": said.text if said.text or isinstance(said.action, str) else [int(each) for each in said.action],
            "code": turn.code,
            "status": turn.status,
            "feedback": turn.feedback,
            "validation_score": turn.info.get("validation_score"),
            "executed": turn.executed,
            "thought_s": round(turn.thought_s, 3),
            "ran_s": round(turn.ran_s, 3),
            "cpu_s": round(turn.cpu_s, 3),
            "prompt_tokens": said.prompt_tokens,
            "completion_tokens": said.completion_tokens,
            "spent_tokens": turn.spent_tokens,
        }
        self._transcript.add(line | ({"tokens": said.tokens} if said.tokens else {}))

    def end(self, rollout: Rollout) -> None:
        start, task = rollout.start, self._tasks[rollout.start.task]
        score = rollout.standing.get("test_score")
        won = None if not awards_medals(task) else "" if score is None else medal(score, task.leaderboard) or ""
        line = {
            **self._head("end", start),
            "ended": rollout.ended,
            "problem": rollout.problem[:1000],
            "kind": rollout.kind,
            "reward": rollout.reward,
            "score": score,
            "percentile": rollout.standing.get("percentile"),
            "medal": won if rollout.known else None,
            "seconds": round(rollout.seconds, 3),
            "spent_tokens": rollout.spent_tokens - sum(turn.spent_tokens for turn in rollout.turns),
        }
        if rollout.turns or rollout.ended not in ("capped", "cancelled"):
            self._transcript.add(line, safe=True)

    def _head(self, event: str, start: Start) -> dict[str, Any]:
        tries = self._tries.get((start.task, start.seed), 1)
        at = round(time.monotonic() - self._began, 3)
        return {"event": event, "task": start.task, "seed": start.seed, "try": tries, "at": at}


def _is_known(told: Told, start: Start) -> bool:
    end = told.ends.get((start.task, start.seed))
    return end is not None and end["ended"] in KNOWN


def graded(told: Told) -> list[Graded]:
    """The episodes of which something is known."""
    found = []
    for (task, seed), end in told.ends.items():
        if end["ended"] not in KNOWN:
            continue
        turns = told.turns.get((task, seed), [])
        counts = [None if turn["prompt_tokens"] is None else turn["prompt_tokens"] + turn["completion_tokens"] for turn in turns]
        found.append(
            Graded(
                task,
                seed,
                end["score"],
                percentile=end["percentile"],
                medal=end["medal"],
                reward=end["reward"],
                turns=len(turns),
                valid_turns=sum(turn["status"] == "valid" for turn in turns),
                executions=sum(turn["executed"] for turn in turns),
                tokens=None if None in counts or not counts else sum(each for each in counts if each is not None),
                seconds=end["seconds"],
                cpu_s=round(sum(turn["cpu_s"] for turn in turns), 3),
                ended=end["ended"],
                problem=end["problem"],
            )
        )
    return found


def results_of(folder: Path, tasks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is known of an evaluation, also of one that is still going, as JSON.

    Args:
        folder: of the evaluation.
        tasks: by name; None for those of its settings.

    Raises:
        EvaluationMismatch: the folder holds none.
        DamagedTranscript: what was written cannot be read.
    """
    marker = read_marker(folder)
    settings = marker["settings"]
    told = read(folder / "transcript.jsonl")
    names = settings["tasks"] if tasks is None else tasks
    seeds = range(settings["first_seed"], settings["first_seed"] + settings["seeds"])
    wanted: list[Key] = [(name, seed) for name in names for seed in seeds]
    episodes = sorted(graded(told), key=lambda each: (each.task, each.seed))
    ends = {key: told.ends[key]["ended"] if key in told.ends else "not run" for key in wanted}
    missing = Counter(ended for ended in ends.values() if ended not in KNOWN)
    reasons = {end["problem"] for end in told.ends.values() if end["ended"] == "lost"}
    return {
        "agent": {"label": marker["label"], **settings["agent"]},
        "settings": settings,
        "machine": marker["machine"],
        "episodes": [asdict(each) for each in episodes],
        "summary": summarize(episodes),
        "wanted": len(wanted),
        "missing": dict(missing),
        "lost_because": sorted(reasons)[:5],
        "spent": {"tokens": told.tokens, "executions": told.executions, "seconds": round(told.seconds, 1)},
    }


def read_marker(folder: Path) -> dict[str, Any]:
    """What says that a folder is an evaluation's.

    Raises:
        EvaluationMismatch: it is none.
    """
    path = folder / MARKER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for name in ("agent", "tasks", "seeds", "first_seed"):
            found["settings"][name]
        found["label"], found["machine"]
    except FileNotFoundError:
        raise EvaluationMismatch(f"{folder} holds no evaluation: it has no {MARKER}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise EvaluationMismatch(f"{path} is damaged: {error}") from error
    return dict(found)


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names of the settings that differ, parts of a setting with a dot."""
    names: list[str] = []
    for name in sorted({*wanted, *found}):
        ours, theirs = wanted.get(name), found.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and name != "tasks":
            names += _differing(ours, theirs, f"{prefix}{name}.")
        elif ours != theirs:
            names.append(f"{prefix}{name}")
    return names
