"""Competitions whose own files make rewards meaningless are named when they are loaded."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.autoresearch.peer_layouts import IDS, LAYOUTS, write_dsbench, write_mle_bench
from tests.autoresearch.small_tasks import write_csv
from wmrl_gym.cli import main
from wmrl_gym.envs.autoresearch import TaskError, load_task
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.peers import DoubtfulTask

ACCURACY = """
def grade(submission, answers):
    merged = answers.merge(submission, on="id", suffixes=("", "_submitted"))
    return float((merged["y"] == merged["y_submitted"]).mean())
"""


def of_labels(root: Path, *, common: str, rare: str) -> Path:
    """A competition of labels, whose sample submission says ``rare`` everywhere."""
    write_mle_bench(root)
    (root / "grade.py").write_text(ACCURACY)
    write_csv(root / "leaderboard.csv", [("score",), *((place / 30,) for place in range(30, 0, -1))])
    truth = [(name, rare if number % 4 == 0 else common) for number, name in enumerate(IDS)]
    write_csv(root / "prepared/private/test.csv", [("id", "y"), *truth])
    write_csv(root / "prepared/public/sample_submission.csv", [("id", "y"), *((name, rare) for name in IDS)])
    return root


@pytest.mark.parametrize("label", ["NA", "", "None"])
def test_labels_that_the_metric_reads_as_missing_are_named(label: str, tmp_path: Path) -> None:
    root = of_labels(tmp_path / "small", common=label, rare="b")
    with pytest.warns(
        DoubtfulTask, match=f"answers in test.csv .among them is '{label}', which pandas reads as a missing.* 0.25, and the"
    ):
        load_task(root)


def test_labels_that_are_there_are_no_matter_of_doubt(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task(of_labels(tmp_path / "small", common="a", rare="b"))


def test_a_metric_that_is_turned_round_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_mle_bench(tmp_path / "small")
    write_csv(root / "leaderboard.csv", [("score",), *((place,) for place in range(30, 0, -1))])
    with pytest.warns(DoubtfulTask, match="where larger scores are better: no attempt can be right"):
        load_task(root)
    main(["tasks", "validate", str(root)])
    said = capsys.readouterr().out
    assert "  - warning: small: the metric gives the answers in test.csv 0, and the sample submission" in said
    assert "time series" not in said


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_submission_with_a_column_without_a_name_is_refused(layout: str, tmp_path: Path) -> None:
    root = LAYOUTS[layout](tmp_path / "small")
    (sample,) = root.rglob("sample_submission.csv")
    lines = sample.read_text().splitlines()
    sample.write_text("\n".join(["," + lines[0], *(f"{number},{line}" for number, line in enumerate(lines[1:]))]))
    with pytest.raises(TaskError, match=r"sample_submission.csv: column 1 has no name: give it one"):
        load_task(root)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    root = write_mle_bench(tmp_path / "small")
    sample = root / "prepared/public/sample_submission.csv"
    sample.write_text(sample.read_text().replace("id,y", "id,y,y").replace(",0", ",0,0"))
    with pytest.raises(TaskError, match="two columns are called 'y'"):
        load_task(root)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"", "is empty"),
        (b"id,y\n", "40 ids are missing"),
        (b"\xff\xfe", "not UTF-8"),
        (b"id,y\n" + b"".join(b"%s,nan\n" % name.encode() for name in IDS), "is not a finite number"),
        (b"id,y\n" + b"".join(b"%s,1e999\n" % name.encode() for name in IDS), "is not a finite number"),
        (b"id,y\n" + b"".join(b'%s,"=cmd()"\n' % name.encode() for name in IDS), "is not a finite number"),
        (b"id,y\n" + b"".join(b"%s,0\n" % name.encode() for name in (*IDS, "r0")), "appears more than once"),
        (b"id,y,--path\n" + b"".join(b"%s,0,x\n" % name.encode() for name in IDS), "wrong columns"),
        (b"id,y\n" + b"".join(b"%s,0\0\n" % name.encode() for name in IDS), "NUL"),
        (b"id,y\r" + b"".join(b"%s,0\r" % name.encode() for name in IDS[:-1]), "1 ids are missing"),
    ],
)
def test_hostile_submissions_to_dsbench_get_a_verdict(written: bytes, problem: str, tmp_path: Path) -> None:
    graded = grade(load_task(write_dsbench(tmp_path / "small")), written)
    assert problem in str(graded.problem)


def test_what_dsbenchs_script_does_of_itself_is_no_score(tmp_path: Path) -> None:
    folder = write_dsbench(tmp_path / "small")
    script = folder.parents[2] / "evaluation/small_eval.py"
    for code, told in (
        ("import os\nos._exit(0)", "no score"),
        ("raise SystemExit(0)", "ended its process"),
        ("print('0.0')", "No such file"),
        ("import sys\nsys.setrecursionlimit(10**6)\nf = lambda: f()\nf()", "RecursionError"),
    ):
        script.write_text(code)
        with pytest.raises(TaskError, match=told):
            load_task(folder)
