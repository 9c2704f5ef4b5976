"""Competitions of other benchmarks are read as they are, run, and graded by their own metric."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from tests.autoresearch.peer_layouts import IDS, LAYOUTS, TRUTH, write_mle_bench, write_mle_dojo
from wmrl_gym.envs.autoresearch import AutoResearchDesign, Task, TaskError, load_task
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.sandbox import Sandbox


def submission(shift: float = 0.0) -> bytes:
    """A submission that is off by ``shift`` everywhere, its rows in another order than the answers'."""
    return "".join(["id,y\n", *(f"{name},{TRUTH[name] + shift}\n" for name in reversed(IDS))]).encode()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """A competition of each benchmark."""
    return {name: load_task(write(tmp_path_factory.mktemp(name) / "small")) for name, write in LAYOUTS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_competition_is_graded_by_its_own_metric_on_each_part(layout: str, tasks: dict[str, Task]) -> None:
    task = tasks[layout]
    assert not task.spec.metric.larger_is_better
    assert task.spec.prediction_columns == ("y",)
    assert "mean absolute error" in task.description
    assert sorted(path.name for path in task.public.iterdir()) == ["sample_submission.csv", "test.csv", "train.csv"]
    assert 0 < task.answers.test.mean() < 1
    hidden = dict(zip(task.answers.ids, task.answers.test, strict=True))
    rows = [f"{name},{TRUTH[name] + (2 if hidden[name] else 1)}\n" for name in IDS]
    graded = grade(task, "".join(["id,y\n", *rows]).encode())
    assert (graded.validation, graded.test) == (1.0, 2.0)


def test_an_environment_takes_a_path_to_a_competition(tmp_path: Path, sandbox: Sandbox) -> None:
    root = write_mle_dojo(tmp_path / "small")
    env = gym.make("wmrl/AutoResearch-v0", task=str(root), max_turns=1, sandbox=sandbox)
    observation, _ = env.reset(seed=0)
    assert "id, y" in observation["task"]
    code = "import os, shutil\nshutil.copy(os.environ['DATA_DIR'] + '/sample_submission.csv', os.environ['SUBMISSION_PATH'])"
    observation, reward, terminated, *_ = env.step(f"```python\n{code}\n```")
    assert terminated
    task = load_task(root)
    expected = grade(task, (task.public / "sample_submission.csv").read_bytes())
    assert "validation score: about " in observation["feedback"]
    assert reward == pytest.approx(0.5 + 0.5 * float(task.leaderboard.percentile(expected.test)))
    env.close()


def test_dsbench_scores_linearly_between_its_baseline_and_the_truth(tasks: dict[str, Task]) -> None:
    board = tasks["dsbench"].leaderboard
    np.testing.assert_allclose(board.percentile([0.0, 1.5, 3.0, 9.0]), [1.0, 0.5, 0.0, 0.0], atol=0.01)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"id,z\n", "wrong columns"),
        (submission().replace(b"r3,", b"r4,"), "more than once"),
        (submission().replace(b"r3,", b"r99,"), "1 ids are missing and 1 are unknown"),
        (submission().replace(b"r3,3", b"r3,nan"), "'nan.0' in column 'y'|is not a finite number"),
        (submission().replace(b"r3,3.0", b"r3,"), "is missing"),
        (submission().replace(b"r3,3.0", b"r3,1_0"), "'1_0' in column 'y' is not a finite number"),
        (submission().replace(b"r3,3.0", "r3,\N{FULLWIDTH DIGIT THREE}".encode()), "is not a finite number"),
        (submission().replace(b"r3,3.0", b"r3,3.0,1"), "fields, expected 2"),
        (submission().replace(b"r3,3.0", b"r3,-1"), "y must not be negative"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "empty"),
        (None, "no submission"),
    ],
)
def test_an_invalid_submission_gets_a_verdict_in_words(tasks: dict[str, Task], content: bytes | None, problem: str) -> None:
    found = grade(tasks["mle-dojo"], content).problem
    assert found is not None
    assert any(part in found for part in problem.split("|")), found


@pytest.mark.parametrize(
    ("layout", "missing", "message"),
    [
        ("mle-bench", "prepared/private/test.csv", "no csv file with answers"),
        ("mle-bench", "grade.py", "needs its grade.py, or an installed mlebench"),
        ("mle-bench", "leaderboard.csv", "has no leaderboard"),
        ("mle-bench", "description.md", "has no description"),
        ("mle-bench", "prepared/public/sample_submission.csv", "no sample submission"),
        ("mle-dojo", "data/private/test_answer.csv", "no csv file with answers"),
        ("mle-dojo", "utils/metric.py", "needs utils/metric.py"),
        ("dsbench", "data/answers/small/test_answer.csv", "no csv file with answers"),
        ("dsbench", "evaluation/small_eval.py", "needs small_eval.py"),
        ("dsbench", "save_performance/GT/small/result.txt", "scores are given relative to it"),
    ],
)
def test_what_is_missing_is_named(layout: str, missing: str, message: str, tmp_path: Path) -> None:
    root = LAYOUTS[layout](tmp_path / "small")
    (tmp_path / "small" / missing).unlink()
    with pytest.raises(TaskError, match=message):
        load_task(root)


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("utils/metric.py", "higher_is_better: bool = False", "higher_is_better: bool = True", "smaller seems to be better, but"),
        ("utils/metric.py", "return mean", "raise KeyError('target') or mean", "does not score the answers.*KeyError"),
        ("utils/metric.py", "import pandas as pd", "import os; os._exit(1)", "no score, but"),
        ("utils/metric.py", "def evaluate", "def assess", "must define one class with a method `evaluate`"),
        ("data/private/test_answer.csv", "r3,", "r99,", "1 are missing and 1 are of no row"),
        ("data/private/test_answer.csv", "id,y", "ID,y", "expected the column 'id'"),
        ("info/private_leaderboard.csv", "Score", "Points", "expected a column 'score'"),
    ],
)
def test_what_contradicts_the_rest_is_named(path: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    root = write_mle_dojo(tmp_path / "small")
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))
    with pytest.raises(TaskError, match=message):
        load_task(root)


def test_a_folder_that_is_no_task_says_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    with pytest.raises(TaskError, match=r"expected task\.toml .*wmrl tasks new.*MLE-bench.*MLE-Dojo.*DSBench"):
        load_task(tmp_path / "some")


def test_designs_are_not_for_competitions_that_do_not_say_what_to_predict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use wmrl/AutoResearch-v0"):
        AutoResearchDesign(write_mle_bench(tmp_path / "small"))


def test_answers_that_code_would_see_are_refused(tmp_path: Path) -> None:
    root = LAYOUTS["mle-bench"](tmp_path / "small")
    (root / "config.yaml").write_text("dataset:\n  answers: prepared/public/sample_submission.csv\n")
    with pytest.raises(TaskError, match="the answers lie in the folder that code sees"):
        load_task(root)


@pytest.mark.parametrize("scores", [[0.3, 0.1, 0.2], [0.2, 0.2, 0.2]])
def test_a_board_whose_order_does_not_say_what_is_better_is_refused(tmp_path: Path, scores: list[float]) -> None:
    root = write_mle_bench(tmp_path / "small")
    (root / "leaderboard.csv").write_text("score\n" + "".join(f"{score}\n" for score in scores))
    with pytest.raises(TaskError, match="its scores are not sorted from best to worst: sort them"):
        load_task(root)


def test_what_a_metric_prints_is_no_answer_whatever_way_it_prints(tmp_path: Path) -> None:
    root = write_mle_bench(tmp_path / "small")
    noisy = "import atexit, os\natexit.register(lambda: os.write(1, b'bye'))\nos.write(1, b'hello')\n"
    (root / "grade.py").write_text(noisy + (root / "grade.py").read_text())
    assert load_task(root).leaderboard is not None
