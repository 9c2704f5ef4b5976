"""The names and the order of rows say nothing; where they do, somebody who looks at nothing else finds out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.autoresearch.small_tasks import write_csv
from wmrl_gym.cli import main
from wmrl_gym.envs.autoresearch import list_tasks, load_task
from wmrl_gym.envs.autoresearch.embedded.sources import source_of
from wmrl_gym.envs.autoresearch.tasks.authoring import warnings_of, write_scaffold
from wmrl_gym.envs.autoresearch.tasks.format import Task, keyed_hash
from wmrl_gym.envs.autoresearch.tasks.leaks import part_chance, target_chance

TASKS = list_tasks()


@pytest.mark.parametrize("name", TASKS)
def test_nobody_predicts_an_embedded_task_from_names_and_order(name: str) -> None:
    """Of 24 tasks with two tests each, none may be below 5% altogether."""
    task = load_task(name)
    bound = 0.05 / (2 * len(TASKS))
    assert target_chance(task, source_rows=len(source_of(name)().rows)) > bound
    assert part_chance(task) > bound


def test_names_are_words_that_no_reader_takes_for_numbers() -> None:
    for name in TASKS:
        ids = load_task(name).answers.ids
        assert all(len(each) == 10 and set(each) <= set("bcdfghjklmnpqrst") for each in ids)
        assert list(ids) == sorted(ids)


def test_a_keyed_hash_is_the_same_everywhere_and_tells_its_parts_apart() -> None:
    assert keyed_hash("a", "b").hex()[:16] == "53f7981a537624a2"
    assert len({keyed_hash("a", "b"), keyed_hash("ab"), keyed_hash("a", "b", "")}) == 3


def sorted_by_label(root: Path, order: list[int], *, ids: list[str] | None = None, parts: list[int] | None = None) -> Task:
    """A task whose source was sorted by label, its rows taken in an order."""
    write_scaffold(root, kind="binary", measure="auc")
    count = len(order)
    rng = np.random.default_rng(0)
    labels = ["no" if i < count // 2 else "yes" for i in range(count)]
    names = ids or [keyed_hash("test", str(i)).hex()[:8] for i in range(count)]
    rows = [(names[place], f"{rng.normal():.3f}", f"{rng.normal():.3f}", labels[i]) for place, i in enumerate(order)]
    half = count // 2
    write_csv(root / "public/train.csv", [("id", "x1", "x2", "target"), *rows[:half]])
    write_csv(root / "public/test.csv", [("id", "x1", "x2"), *(row[:3] for row in rows[half:])])
    write_csv(root / "public/sample_submission.csv", [("id", "target"), *((row[0], 0.5) for row in rows[half:])])
    part = parts or (rng.permutation(count - half) % 2).tolist()
    hidden = [(row[0], row[3], ("validation", "test")[part[place]]) for place, row in enumerate(rows[half:])]
    write_csv(root / "private/answers.csv", [("id", "target", "part"), *hidden])
    return Task.load(root)


COUNT = 300
GUESSED = {
    "hash of the number": sorted(range(COUNT), key=lambda i: hashlib.sha256(f"task|{i}".encode()).digest()),
    "seed 42": np.random.RandomState(42).permutation(COUNT).tolist(),
    "every second row": [*range(0, COUNT, 2), *range(1, COUNT, 2)],
}


@pytest.mark.parametrize("order", GUESSED)
def test_a_shuffle_that_can_be_guessed_is_found(order: str, tmp_path: Path) -> None:
    task = sorted_by_label(tmp_path / "task", GUESSED[order])
    assert target_chance(task) < 0.001
    assert any("predict the targets" in warning for warning in warnings_of(task))


def test_ids_that_were_given_before_the_shuffle_are_found(tmp_path: Path) -> None:
    secret = np.random.default_rng(987654321).permutation(COUNT).tolist()
    assert target_chance(sorted_by_label(tmp_path / "good", secret)) > 0.01
    assert target_chance(sorted_by_label(tmp_path / "bad", secret, ids=[f"row{i:04d}" for i in secret])) < 0.001


def test_parts_that_alternate_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = np.random.default_rng(987654321).permutation(COUNT).tolist()
    parts = [place % 2 for place in range(COUNT // 2)]
    task = sorted_by_label(tmp_path / "task", secret, parts=parts)
    assert part_chance(task) < 0.001
    main(["tasks", "validate", str(task.directory)])
    assert "warning: the ids and the order of rows alone predict which rows are scored for the reward" in capsys.readouterr().out
