"""Submissions are data: each kind of invalid one gets its verdict, and valid ones the score that scikit-learn would give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autoresearch.small_tasks import IDS, NUMBERS, truth_of, write_small_task
from wmrl_gym.envs.autoresearch.rules import ladder_value
from wmrl_gym.envs.autoresearch.tasks import grading
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.grading import Grade, grade
from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard

MEASURES = {
    "labels": ("accuracy", "multiclass", True),
    "f1": ("macro-f1", "multiclass", True),
    "numbers": ("rmse", "regression", False),
    "errors": ("mae", "regression", False),
    "ranking": ("auc", "binary", True),
    "loss": ("log-loss", "binary", False),
    "losses": ("log-loss", "multiclass", False),
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    folder = tmp_path_factory.mktemp("grading")
    return {
        name: Task.load(write_small_task(folder / name, metric=metric, kind=kind, larger_is_better=larger))
        for name, (metric, kind, larger) in MEASURES.items()
    }


def table(*rows: str, header: str = "id,y") -> bytes:
    return ("\n".join([header, *rows]) + "\n").encode()


def full(values: Sequence[object], header: str = "id,y") -> bytes:
    return table(*(f"{name},{value}" for name, value in zip(IDS, values, strict=True)), header=header)


RIGHT = list(truth_of("multiclass"))
HALVES = ["0.5"] * 8

INVALID = [
    ("labels", None, "no submission was written"),
    ("labels", b"", "the submission is empty"),
    ("labels", b" \n\n", "the submission is empty"),
    ("labels", b"\xff\xfe\x00", "not UTF-8"),
    ("labels", b"PK\x03\x04\x00\x00", "wrong columns|not valid csv"),
    ("labels", full(RIGHT, header="id,label"), r"wrong columns: expected \['id', 'y'\], got \['id', 'label'\]"),
    ("labels", full(RIGHT, header="y"), "wrong columns"),
    ("labels", full(RIGHT, header="id,id"), "wrong columns"),
    ("labels", table(*(f"{i},{name},ant" for i, name in enumerate(IDS)), header=",id,y"), "wrong columns"),
    ("labels", table("t0,ant,extra"), "line 2 has 3 fields, expected 2"),
    ("labels", table("t0,ant", "t0,ant"), "line 3: id 't0' appears more than once"),
    ("labels", table("t0,ant", "zz,ant"), "line 3: 'zz' is not an id of test.csv"),
    ("labels", table("t0,ant"), "7 of 8 ids are missing, the first is 't1'"),
    ("labels", table(), "8 of 8 ids are missing"),
    ("labels", full(["dog", *RIGHT[1:]]), "unknown label 'dog' in column 'y': expected one of"),
    ("labels", full(["", *RIGHT[1:]]), "unknown label ''"),
    ("numbers", full(["nan", *"1234567"]), "'nan' in column 'y' is not a finite number"),
    ("numbers", full(["inf", *"1234567"]), "'inf' in column 'y' is not a finite number"),
    ("numbers", full(["-1e999", *"1234567"]), "is not a finite number"),
    ("numbers", full(["", *"1234567"]), "'' in column 'y' is not a finite number"),
    ("numbers", full(["1_0", *"1234567"]), "'1_0' in column 'y' is not a finite number"),
    ("numbers", full(["__import__('os')", *"1234567"]), "is not a finite number"),
    ("numbers", full(["1e200"] * 8), "too large to be scored"),
    ("ranking", full(["1.5", *HALVES[1:]]), r"probabilities must lie in \[0, 1\], got 1.5"),
    ("ranking", full(["-0.1", *HALVES[1:]]), r"probabilities must lie in \[0, 1\], got -0.1"),
    ("loss", full(["nan", *HALVES[1:]]), "is not a finite number"),
    (
        "losses",
        full(["0.2,0.2,0.2"] * 8, header="id,prob_ant,prob_bee,prob_cow"),
        "probabilities of id 't0' sum to 0.6, expected 1",
    ),
    ("losses", full(HALVES), "wrong columns"),
    ("labels", b'id,y\nt0,"ant', "ids are missing|not valid csv|unknown label"),
    ("labels", b"id,y\nt0," + b"a" * 200_000, "7 of 8 ids are missing"),
    ("labels", full(["a" * 200_000, *RIGHT[1:]]), "unknown label 'aaa"),
    ("labels", full([*RIGHT[1:], "\0"]), "NUL"),
]


@pytest.mark.parametrize(("name", "submission", "verdict"), INVALID)
def test_an_invalid_submission_gets_a_verdict_and_no_score(
    tasks: dict[str, Task], name: str, submission: bytes | None, verdict: str
) -> None:
    graded = grade(tasks[name], submission)
    assert graded.problem is not None
    assert re.search(verdict, graded.problem), graded.problem
    assert len(graded.problem) < 400
    assert np.isnan([graded.validation, graded.test]).all()


def test_a_submission_that_is_too_large_is_not_read(tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "MAX_SUBMISSION_BYTES", 10)
    graded = grade(tasks["labels"], full(RIGHT))
    assert graded.problem is not None
    assert "at most 10 are read" in graded.problem


def test_what_the_sandbox_found_wrong_with_the_file_is_the_verdict(tasks: dict[str, Task]) -> None:
    assert grade(tasks["labels"], full(RIGHT), problem="the file is a fifo").problem == "the file is a fifo"


def test_rows_are_matched_by_id_and_not_by_order(tasks: dict[str, Task]) -> None:
    rows = [f"{name},{label}" for name, label in zip(IDS, RIGHT, strict=True)]
    assert grade(tasks["labels"], table(*rows)) == Grade(None, 1.0, 1.0)
    assert grade(tasks["labels"], table(*reversed(rows))) == Grade(None, 1.0, 1.0)


def test_columns_may_come_in_any_order_and_a_byte_order_mark_is_no_part_of_a_name(tasks: dict[str, Task]) -> None:
    rows = [f"{label},{name}" for name, label in zip(IDS, RIGHT, strict=True)]
    assert grade(tasks["labels"], b"\xef\xbb\xbf" + table(*rows, header="y,id")).test == 1.0
    assert grade(tasks["labels"], table(*rows, header="y,id").replace(b"\n", b"\r\n")).test == 1.0


def test_each_part_is_scored_on_its_own_rows(tasks: dict[str, Task]) -> None:
    wrong = ["bee" if i == 1 else label for i, label in enumerate(RIGHT)]
    assert grade(tasks["labels"], full(list(wrong))) == Grade(None, 1.0, 0.75)


@pytest.mark.parametrize(
    ("name", "values", "validation", "test"),
    [
        ("numbers", [number + 2 for number in NUMBERS], 2.0, 2.0),
        ("errors", [number + (3 if i % 2 else 1) for i, number in enumerate(NUMBERS)], 1.0, 3.0),
        ("ranking", [0.9 if label == "yes" else 0.1 for label in truth_of("binary")], 1.0, 1.0),
        ("loss", [0.5] * 8, np.log(2), np.log(2)),
        ("f1", ["ant"] * 8, 4 / 6 / 3, 4 / 6 / 3),
    ],
)
def test_scores_are_those_of_the_metric(
    tasks: dict[str, Task], name: str, values: list[object], validation: float, test: float
) -> None:
    graded = grade(tasks[name], full(values))
    assert graded.problem is None
    assert (graded.validation, graded.test) == pytest.approx((validation, test))


def test_probabilities_of_many_labels_are_matched_by_column_name(tasks: dict[str, Task]) -> None:
    columns = {label: [0.98 if label == right else 0.01 for right in RIGHT] for label in ("cow", "ant", "bee")}
    rows = [",".join([name, *(str(columns[label][i]) for label in columns)]) for i, name in enumerate(IDS)]
    graded = grade(tasks["losses"], table(*rows, header="id,prob_cow,prob_ant,prob_bee"))
    assert graded.test == pytest.approx(-np.log(0.98))


def test_whole_numbers_that_pandas_wrote_as_floats_are_still_labels(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "whole", metric="accuracy", kind="binary", larger_is_better=True)
    for path in root.rglob("*.*"):
        if path.is_file():
            path.write_text(path.read_text().replace("yes", "1").replace("no", "0"))
    values = [f"{float(label == 'yes')}" for label in truth_of("binary")]
    assert grade(Task.load(root), full(list(values))).test == 1.0


@given(st.binary(max_size=300))
def test_no_bytes_make_grading_fail(tasks: dict[str, Task], submission: bytes) -> None:
    for task in tasks.values():
        assert grade(task, submission).problem is not None


def test_percentile_is_right_where_smaller_is_better_and_drops_what_is_not_a_number() -> None:
    board = Leaderboard.of([0.1, float("nan"), 0.2, 0.4, float("inf"), 0.8], larger_is_better=False)
    np.testing.assert_array_equal(board.percentile([0.05, 0.1, 0.3, 0.8, 5.0]), [1.0, 0.875, 0.5, 0.125, 0.0])
    board = Leaderboard.of([0.1, float("nan"), 0.2, 0.4, 0.8], larger_is_better=True)
    np.testing.assert_array_equal(board.percentile([0.05, 0.1, 0.3, 0.8, 5.0]), [0.0, 0.125, 0.5, 0.875, 1.0])


def test_an_empty_cell_of_a_leaderboard_is_a_failed_entry(tmp_path: Path) -> None:
    (tmp_path / "board.csv").write_text("score,who\n0.5,a\n,b\n0.7,c\n")
    assert len(Leaderboard.read(tmp_path / "board.csv", larger_is_better=True).goodness) == 2


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=10),
    st.booleans(),
)
def test_percentile_lies_in_0_1_and_never_falls_as_the_score_gets_better(
    entries: list[float], scores: list[float], larger: bool
) -> None:
    better_last = sorted(scores, reverse=not larger)
    percentile = Leaderboard.of(entries, larger_is_better=larger).percentile(better_last)
    assert ((percentile >= 0) & (percentile <= 1)).all()
    assert (np.diff(percentile) >= 0).all()


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20, unique=True), st.booleans())
def test_score_at_a_percentile_stands_near_that_percentile(entries: list[float], larger: bool) -> None:
    board = Leaderboard.of(entries, larger_is_better=larger)
    for asked in (0.0, 0.3, 0.5, 1.0):
        assert abs(float(board.percentile(board.score_at(asked))) - asked) <= 1.0 / len(entries) + 1e-9


def test_the_ladder_puts_every_valid_submission_above_every_invalid_one() -> None:
    np.testing.assert_array_equal(ladder_value([0.0, 0.5, 1.0]), [0.5, 0.75, 1.0])
