"""What a report says of evaluations: a leaderboard of agents, the tasks, and every trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wmrl_gym.evaluation.run import results_of
from wmrl_gym.evaluation.summary import percent
from wmrl_gym.evaluation.transcript import NAME, read
from wmrl_gym.report.charts import dots
from wmrl_gym.rollouts.contract import KNOWN

_LONGEST = 20_000
"""Characters of a text of a turn that are shown."""


def evaluation_sections(folders: Sequence[Path]) -> dict[str, Any]:
    """What the page's template takes.

    Raises:
        ValueError: a folder cannot be read.
    """
    runs = [(folder, results_of(folder)) for folder in folders]
    labels = _labels(runs)
    board = sorted(
        (_row(label, results) for label, (_, results) in zip(labels, runs, strict=True)),
        key=lambda row: -1.0 if row["percentile"]["mean"] is None else row["percentile"]["mean"],
        reverse=True,
    )
    names = sorted({name for _, results in runs for name in results["summary"]["tasks"]})
    tasks = [{"name": name, "cells": [_cell(results, name) for _, results in runs]} for name in names]
    return {
        "board": board,
        "labels": labels,
        "tasks": tasks,
        "notes": _notes(labels, [results for _, results in runs]),
        "charts": {"leaderboard": dots([(row["label"], row["percentile"]) for row in board], axis="share of the leaderboard, %")},
        "trajectories": [each for label, (folder, _) in zip(labels, runs, strict=True) for each in _trajectories(label, folder)],
    }


def _labels(runs: Sequence[tuple[Path, dict[str, Any]]]) -> list[str]:
    """Names of the agents, with the folder's where two have the same."""
    given = [str(results["agent"]["label"]) for _, results in runs]
    return [label if given.count(label) == 1 else f"{label} ({folder})" for label, (folder, _) in zip(given, runs, strict=True)]


def _row(label: str, results: dict[str, Any]) -> dict[str, Any]:
    figures = results["summary"]["all"]
    medals = figures["medals"]
    return {
        "label": label,
        "percentile": figures["percentile"],
        "beats": percent(figures["percentile"]),
        "reward": _number(figures["reward"]["mean"]),
        "valid": percent(figures["valid_rate"]),
        "medals": " / ".join(str(medals.get(each, 0)) for each in ("gold", "silver", "bronze")),
        "tokens": "-" if figures["tokens"] is None else f"{figures['tokens']:,}",
        "executions": f"{figures['executions']:,}",
        "seconds": f"{figures['seconds']:,.0f}",
        "episodes": f"{figures['episodes']} of {results['wanted']}",
    }


def _cell(results: dict[str, Any], name: str) -> dict[str, str]:
    row = results["summary"]["tasks"].get(name)
    if row is None:
        return {"score": "-", "beats": "-", "valid": "-"}
    return {"score": _number(row["score"]["mean"]), "beats": percent(row["percentile"]), "valid": percent(row["valid_rate"])}


def _notes(labels: Sequence[str], several: Sequence[dict[str, Any]]) -> list[str]:
    notes = []
    for label, results in zip(labels, several, strict=True):
        for ended, count in results["missing"].items():
            words = {"lost": "were lost", "capped": "did not end within the bounds"}.get(ended, "have not been run")
            notes.append(f"{label}: {count} of {results['wanted']} episodes {words}; they count in no figure.")
    played = {(tuple(sorted(each["settings"]["tasks"].items())), each["settings"]["seeds"]) for each in several}
    if len(played) > 1:
        notes.append("The agents were not given the same tasks and seeds: their means cannot be compared, their tasks can.")
    return notes


def _trajectories(label: str, folder: Path) -> list[dict[str, Any]]:
    told, found = read(folder / NAME), []
    for key in sorted({*told.turns, *told.ends}):
        end, turns = told.ends.get(key), told.turns.get(key, [])
        over = end is not None and end["try"] == told.tries[key]
        known = over and end is not None and end["ended"] in KNOWN
        found.append(
            {
                "agent": label,
                "task": key[0],
                "seed": key[1],
                "ended": end["ended"] if over and end is not None else "unfinished",
                "problem": end["problem"] if over and end is not None else "",
                "score": _number(end["score"]) if known and end is not None else "-",
                "beats": percent({"mean": end["percentile"]}) if known and end is not None else "-",
                "medal": (end["medal"] or "") if known and end is not None else "",
                "turns": [_turn(turn) for turn in turns],
            }
        )
    return found


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    reply, code = turn["reply"], str(turn["code"])
    text = reply if isinstance(reply, str) else f"design {reply}"
    return {
        "number": turn["turn"],
        "status": turn["status"] or "unknown",
        "score": _number(turn["validation_score"]),
        "seconds": f"{turn['thought_s']:.1f} s to reply, {turn['ran_s']:.1f} s to run",
        # What stands in the code is not said twice.
        "reply": _shortened(text.replace(code, "[the code below]\n") if code else text),
        "code": highlighted(_shortened(code)) if code else "",
        "feedback": _shortened(str(turn["feedback"])),
    }


def highlighted(code: str) -> Any:
    """Code as HTML, all of it escaped.

    >>> "</script>" in highlighted("x = '</script>'")
    False
    """
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return Markup(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)))


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n[... {len(text) - _LONGEST:,} characters ...]\n{text[-_LONGEST // 2 :]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
