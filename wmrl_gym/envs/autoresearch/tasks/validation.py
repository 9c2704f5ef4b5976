"""What is wrong with a task, beyond what keeps it from loading: leaks, a sample that is none, an impossible leaderboard."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from wmrl_gym.envs.autoresearch.tasks.format import Task, read_rows
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.peers import find_layout

_BOUNDED = ("accuracy", "macro-f1", "auc")
_FEW = 20
_BYTES = 64 * 2**20


def validate(task: Task) -> list[str]:
    """Everything that is wrong with a loaded task, a sentence each; empty if nothing was found."""
    found = [*_sample(task), *_leaderboard(task), *_description(task), *_leaks(task)]
    return found if task.grader is not None else [*found, *_columns(task)]


def _sample(task: Task) -> list[str]:
    path = _sample_path(task)
    graded = grade(task, path.read_bytes())
    if graded.problem is not None:
        return [f"{path.name} is not a valid submission: {graded.problem}"]
    percentile = float(task.leaderboard.percentile(graded.test))
    if percentile > 0.5:
        return [f"{path.name} beats {percentile:.0%} of the leaderboard: is it made of the answers, or is the leaderboard wrong?"]
    return []


def _sample_path(task: Task) -> Path:
    return task.public / "sample_submission.csv" if task.grader is None else task.grader.sample


def _leaderboard(task: Task) -> list[str]:
    scores, measure = task.leaderboard.goodness, task.spec.metric
    found = []
    if len(scores) < _FEW:
        found.append(f"the leaderboard has {len(scores)} scores, too few to tell solutions apart: expected {_FEW} or more")
    if len(np.unique(scores)) < 2:
        found.append("all scores of the leaderboard are the same")
    if task.grader is None:
        raw = scores if measure.larger_is_better else -scores
        low, high = 0.0, 1.0 if measure.name in _BOUNDED else np.inf
        if raw.min() < low or raw.max() > high:
            found.append(
                f"the leaderboard goes from {raw.min():g} to {raw.max():g}, but {measure.name} lies between {low:g} and {high:g}"
            )
    return found


def _description(task: Task) -> list[str]:
    def plain(text: str) -> str:
        return re.sub("[^a-z0-9]", "", text.lower())

    if plain(task.spec.metric.name) in plain(task.description) or task.spec.metric.name == "score":
        return []
    return [f"the description does not mention the metric, {task.spec.metric.name}"]


def _leaks(task: Task) -> list[str]:
    """Public files in which the answers can be read off."""
    truth = _answers(task)
    found = []
    for path in sorted(task.public.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(task.public.resolve()):
            found.append(f"{path.relative_to(task.public)} links to what is outside of the public folder")
        if not path.is_file() or path.stat().st_size > _BYTES or path.suffix.lower() not in (".csv", ".tsv", ".txt"):
            continue
        for column, share in _agreement(path, truth).items():
            if share > 0.99:
                found.append(f"{path.relative_to(task.public)}: its column {column!r} holds the answers")
    return found


def _agreement(path: Path, truth: dict[str, str]) -> dict[str, float]:
    """For each column of a file that has rows for the ids of the answers, the share of answers that it holds."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            header, *rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    except (csv.Error, ValueError):
        return {}
    for place in range(len(header)):
        known = [row for row in rows if len(row) == len(header) and row[place] in truth]
        if len(known) >= 0.9 * len(truth) and len({row[place] for row in known}) == len(known):
            return {
                name: sum(_same(row[column], truth[row[place]]) for row in known) / len(known)
                for column, name in enumerate(header)
                if column != place
            }
    return {}


def _same(cell: str, answer: str) -> bool:
    if cell == answer:
        return True
    try:
        return float(cell) == float(answer)
    except ValueError:
        return False


def _answers(task: Task) -> dict[str, str]:
    layout = find_layout(task.directory) if task.grader is not None else None
    header, rows = read_rows(task.directory / "private/answers.csv" if layout is None else layout.answers)
    row_id = header.index(task.spec.id_column)
    target = next((place for place, name in enumerate(header) if name == task.spec.target), None)
    if target is None or len({row[target] for row in rows}) < 2:
        return {}
    return {row[row_id]: row[target] for row in rows}


def _columns(task: Task) -> list[str]:
    """Features of the training data that are the target under another name."""
    header, rows = read_rows(task.public / "train.csv")
    target = header.index(task.spec.target)
    found = []
    for place, name in enumerate(header):
        if name not in (task.spec.target, task.spec.id_column) and all(_same(row[place], row[target]) for row in rows):
            found.append(f"train.csv: the column {name!r} is the target under another name")
    ids = {row[header.index(task.spec.id_column)] for row in rows}
    if ids & set(task.answers.ids):
        found.append(f"train.csv has {len(ids & set(task.answers.ids))} rows with ids of test.csv, with their targets")
    return found
