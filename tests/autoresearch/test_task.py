"""A task directory is checked as a whole, and every damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.envs.autoresearch.tasks.format import FILES, Task, TaskError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_small_task(tmp_path / "small", metric="accuracy", kind="multiclass", larger_is_better=True)


def test_a_complete_directory_loads(directory: Path) -> None:
    task = Task.load(directory)
    assert task.spec.name == "small"
    assert task.spec.labels == ("ant", "bee", "cow")
    assert task.public == directory / "public"
    assert task.answers.test.sum() == 4
    assert task.spec.limits == {"wall_s": 5}


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(TaskError, match=f"lacks {name}"):
        Task.load(directory)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="nowhere does not exist"):
        Task.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('metric = "accuracy"', 'metric = "acuracy"', "did you mean 'accuracy'"),
        ('metric = "accuracy"', 'metric = "rmse"', "does not fit kind 'multiclass'|larger_is_better of rmse is False"),
        ('metric = "accuracy"', 'metric = "auc"', "'auc' does not fit kind 'multiclass'"),
        ("larger_is_better = true", "larger_is_better = false", "larger_is_better of accuracy is True, got False"),
        ('kind = "multiclass"', 'kind = "binary"', "binary needs 2 labels"),
        ('kind = "multiclass"', 'kind = "ranking"', "kind must be one of binary, multiclass, regression, got 'ranking'"),
        ('title = "A small task"', "title = 3", "expected a text for 'title', got 3"),
        ('licence = "MIT"', "", "expected a text for 'licence', got None"),
        ("wall_s = 5", "wall = 5", "limits take positive numbers .* got wall = 5"),
        ("wall_s = 5", "wall_s = 0", "got wall_s = 0"),
        ("wall_s = 5", 'wall_s = "5"', "got wall_s = '5'"),
        ("name =", "name", "not valid TOML"),
        ('"cow"', '"dog"', r"labels \['cow'\] are not among those of task.toml"),
    ],
)
def test_an_ill_formed_task_toml_says_what_is_expected(directory: Path, old: str, new: str, message: str) -> None:
    path = directory / "task.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(TaskError, match=message):
        Task.load(directory)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("public/train.csv", "id,x,y", "id,x,z", "train.csv: expected columns 'id' and 'y'"),
        ("public/train.csv", "r0,0,ant", "r0,0", "train.csv is not valid: line 2 has 2 fields, expected 3"),
        ("public/test.csv", "id,x", "id,w", "test.csv: expected the columns of train.csv without the target"),
        ("public/test.csv", "t3,", "t99,", "test.csv: its ids are not those of private/answers.csv"),
        ("public/sample_submission.csv", "id,y", "id,z", r"sample_submission.csv: expected columns \['id', 'y'\]"),
        ("public/sample_submission.csv", "t3,", "t2,", "sample_submission.csv: its ids"),
        ("private/answers.csv", "id,y,part", "id,y,split", r"answers.csv: expected columns \['id', 'y', 'part'\]"),
        ("private/answers.csv", "t3,", "t2,", "answers.csv: ids are not unique"),
        ("private/answers.csv", "validation", "test", r"part must take the values .*, got \['test'\]"),
        ("leaderboard.csv", "score", "points", "leaderboard.csv: expected a column 'score', got columns"),
        ("leaderboard.csv", "0.2\n0.4\n0.6\n0.8\n", "nan\n", "needs at least one finite score"),
    ],
)
def test_an_ill_formed_csv_is_named(directory: Path, name: str, old: str, new: str, message: str) -> None:
    path = directory / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(TaskError, match=message):
        Task.load(directory)


def test_an_empty_csv_is_named(directory: Path) -> None:
    (directory / "public/test.csv").write_text("")
    with pytest.raises(TaskError, match=r"test\.csv is empty"):
        Task.load(directory)


def test_a_target_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "numbers", metric="mae", kind="regression", larger_is_better=False)
    answers = root / "private/answers.csv"
    answers.write_text(answers.read_text().replace("4.0", "four"))
    with pytest.raises(TaskError, match=r"answers\.csv: could not convert string to float: 'four'"):
        Task.load(root)
    answers.write_text(answers.read_text().replace("four", "inf"))
    with pytest.raises(TaskError, match="finite everywhere"):
        Task.load(root)


def test_a_part_that_its_metric_cannot_score_is_refused(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "one-class", metric="auc", kind="binary", larger_is_better=True)
    rows = (root / "private/answers.csv").read_text().splitlines()
    parts = [row.rpartition(",")[0] + (",test" if ",yes," in row else ",validation") for row in rows[1:]]
    (root / "private/answers.csv").write_text("\n".join([rows[0], *parts]) + "\n")
    with pytest.raises(TaskError, match="auc cannot be computed on a part with one label only"):
        Task.load(root)
