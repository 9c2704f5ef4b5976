"""``wmrl tasks``: the list, what is wrong with a task, and a task to begin with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.autoresearch.peer_layouts import TRUTH, write_mle_bench
from tests.autoresearch.small_tasks import write_csv
from wmrl_gym.cli import main
from wmrl_gym.envs.autoresearch import list_tasks, load_task
from wmrl_gym.envs.autoresearch.tasks import authoring
from wmrl_gym.envs.autoresearch.tasks.authoring import validate
from wmrl_gym.files import CannotWrite


def test_the_list_names_every_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for arguments in (["tasks"], ["tasks", "list"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in list_tasks())


def test_every_embedded_task_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "validate", "--all"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: ok" for name in list_tasks()]


def test_a_competition_of_another_benchmark_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_mle_bench(tmp_path / "small")
    assert main(["tasks", "validate", str(root)]) == 0
    write_csv(root / "prepared/public/extra.csv", [("id", "guess"), *TRUTH.items()])
    assert main(["tasks", "validate", str(root)]) == 1
    assert "extra.csv: its column 'guess' holds the answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("regression", None), ("binary", "auc"), ("binary", None), ("multiclass", None), ("multiclass", "log-loss")],
)
def test_a_new_task_is_sound(kind: str, metric: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "mine"
    assert main(["tasks", "new", str(root), "--kind", kind, *(["--metric", metric] if metric else [])]) == 0
    assert main(["tasks", "validate", str(root)]) == 0
    assert f"{root}: ok" in capsys.readouterr().out
    assert main(["tasks", "new", str(root)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_new_task_whose_metric_does_not_fit_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "new", str(tmp_path / "mine"), "--kind", "regression", "--metric", "auc"]) == 2
    assert "does not fit kind 'regression'" in capsys.readouterr().err
    assert main(["tasks", "new", str(tmp_path / "mine"), "--metric", "rmsle"]) == 2
    assert "did you mean 'rmse'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
def test_a_new_task_is_whole_or_not_there(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, rows: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(authoring, "_write", full)
        with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else CannotWrite):
            authoring.write_scaffold(tmp_path / "mine", kind="binary", measure="auc")
    assert list(tmp_path.iterdir()) == []
    authoring.write_scaffold(tmp_path / "mine", kind="binary", measure="auc")
    assert validate(load_task(tmp_path / "mine")) == []


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_wrong_is_said_in_sentences(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    main(["tasks", "new", str(root), "--kind", "binary", "--metric", "auc"])
    write_csv(root / "leaderboard.csv", [("score",), (0.2,), (0.3,), (7,)])
    replace(root / "description.md", "auc", "points")
    rows = (root / "private/answers.csv").read_text().splitlines()[1:]
    answers = [row.split(",")[:2] for row in rows]
    write_csv(root / "public/notes.csv", [("row", "remark"), *answers])
    text = (root / "public/train.csv").read_text().splitlines()
    doubled = [f"{line},{'copy' if place == 0 else line.split(',')[3]}" for place, line in enumerate(text)]
    (root / "public/train.csv").write_text("\n".join(doubled).replace("row000,", f"{answers[0][0]},") + "\n")
    test = (root / "public/test.csv").read_text().splitlines()
    (root / "public/test.csv").write_text("\n".join(f"{line},{'copy' if i == 0 else 'no'}" for i, line in enumerate(test)) + "\n")
    found = "\n".join(validate(load_task(root)))
    for expected in (
        "beats 67% of the leaderboard",
        "has 3 scores, too few",
        "from 0.2 to 7, but auc lies between 0 and 1",
        "does not mention the metric, auc",
        "notes.csv: its column 'remark' holds the answers",
        "'copy' is the target under another name",
        "1 rows with ids of test.csv",
    ):
        assert expected in found, found


def test_a_leaderboard_without_differences_and_a_bad_sample_are_named(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    main(["tasks", "new", str(root)])
    write_csv(root / "leaderboard.csv", [("score",), *[(1.0,)] * 25])
    replace(root / "public/sample_submission.csv", ",0.5", ",high")
    (root / "public/link.txt").symlink_to(root / "private/answers.csv")
    found = "\n".join(validate(load_task(root)))
    for expected in ("not a valid submission", "all scores of the leaderboard are the same", "link.txt links to what is outside"):
        assert expected in found, found


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ([], 2, "name a task or a directory"),
        (["no/such/path"], 1, "no/such/path does not exist"),
        (["digit"], 1, "did you mean 'digits'"),
    ],
)
def test_what_cannot_be_checked_says_why(
    arguments: list[str], status: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "validate", *arguments]) == status
    captured = capsys.readouterr()
    assert expected in captured.out + captured.err


def test_a_competition_without_its_answers_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_mle_bench(tmp_path / "small")
    (root / "prepared/private/test.csv").unlink()
    assert main(["tasks", "validate", str(root)]) == 1
    assert "no csv file with answers" in capsys.readouterr().out
