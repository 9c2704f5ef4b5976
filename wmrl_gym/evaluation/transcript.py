"""What an evaluation's agents did, as JSON lines: each is written when it happens, and a process may be killed at any moment."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

NAME = "transcript.jsonl"
"""The file, in the folder of an evaluation."""
Key = tuple[str, int]
"""An episode: its task and its seed."""


class DamagedTranscript(ValueError):
    """A line of the file is none that was written there."""


@dataclass(slots=True)
class Told:
    """What a transcript says.

    Args:
        ends: the last ``end`` of each episode.
        turns: the turns of each episode's last try, in order.
        tries: how often each episode was begun.
        tokens: spent; those of replies that nobody counted at what they could have been.
        executions: begun.
        seconds: spent by the invocations together.
    """

    ends: dict[Key, dict[str, Any]] = field(default_factory=dict)
    turns: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    tries: dict[Key, int] = field(default_factory=dict)
    tokens: int = 0
    executions: int = 0
    seconds: float = 0.0


class Transcript:
    """Appends to the file of one folder, which nobody else writes meanwhile.

    A line that a killed process has left half written is removed first.

    Args:
        folder: of the evaluation.

    Raises:
        DamagedTranscript: a line of it is none.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        _cut_torn_line(self.path)
        self.told = read(self.path)
        self._lock = threading.Lock()
        self._file: TextIO = self.path.open("a", encoding="ascii")
        self.add({"event": "session"})

    def add(self, line: Mapping[str, Any], *, safe: bool = False) -> None:
        """Write a line; ``safe`` waits until it is on disk."""
        with self._lock:  # turns are told from another thread than ends
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            if safe:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Told:
    """What a transcript says, also of an evaluation that is still going; nothing where there is no file.

    Raises:
        DamagedTranscript: a line of it is none.
    """
    told, latest = Told(), 0.0
    for line in lines(path):
        latest, told.seconds = _seconds(line, latest, told.seconds)
        if line["event"] == "session":
            continue
        key = (str(line["task"]), int(line["seed"]))
        if line["event"] == "turn":
            if line["try"] != told.tries.get(key):
                told.turns[key] = []
            told.tries[key] = line["try"]
            told.turns[key].append(line)
            told.executions += bool(line["executed"])
        else:
            if line["try"] != told.tries.get(key):
                told.turns[key] = []
            told.tries[key], told.ends[key] = line["try"], line
        told.tokens += line.get("spent_tokens", 0)
    told.seconds += latest
    return told


def _seconds(line: Mapping[str, Any], latest: float, before: float) -> tuple[float, float]:
    """Seconds of this invocation, and of those before it."""
    if line["event"] == "session":
        return 0.0, before + latest
    return max(latest, float(line["at"])), before


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a transcript.

    Raises:
        DamagedTranscript: a line of it is none.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # it is being written
            try:
                found = json.loads(line)
                if found["event"] not in ("session", "turn", "end"):
                    raise ValueError(found["event"])
                if found["event"] != "session":
                    found["task"], found["seed"] + 0, found["try"] + 0, found["at"] + 0.0
                if found["event"] == "turn":
                    found["executed"], found["turn"] + 0
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DamagedTranscript(f"{path}: line {number} is damaged ({error}): remove it, or begin anew") from error
            yield found


def _cut_torn_line(path: Path) -> None:
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
