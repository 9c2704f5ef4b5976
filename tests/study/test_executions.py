"""What was executed once and for all can be read, is what running it again brings, and outlives leaderboards."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.executions import (
    FOLDER,
    GRID_SHAPE,
    HELD_OUT_TASKS,
    TRAIN_TASKS,
    grid_designs,
    grid_executions,
    load_grid,
    read,
    script,
    write,
)
from benchmarks.record_executions import DESIGN_LIMITS, Recorder, random_designs, run
from wmrl_gym.envs.autoresearch import AutoResearchDesign, load_task
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import STATUS_VALUES, VALID
from wmrl_gym.sandbox import Sandbox, make_sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = make_sandbox("local")
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.mark.parametrize("task", HELD_OUT_TASKS)
def test_every_design_of_the_grid_was_executed_on_every_held_out_task(task: str) -> None:
    grid, loaded = load_grid(task), load_task(task)
    assert grid.rewards.shape == GRID_SHAPE
    valid = grid.status == VALID
    assert valid.mean() > 0.5
    np.testing.assert_array_equal(grid.rewards[~valid], np.array(STATUS_VALUES)[grid.status[~valid]])
    np.testing.assert_allclose(grid.rewards[valid], 0.5 + 0.5 * loaded.leaderboard.percentile(grid.test[valid]))
    assert np.isnan(grid.test[~valid]).all()


@pytest.mark.parametrize("task", TRAIN_TASKS)
def test_scripts_of_recorded_designs_are_rendered_as_they_were(task: str) -> None:
    loaded, executions = load_task(task), read(task)
    assert len(executions) >= 60
    assert all(script(loaded, each) for each in executions)


def test_executing_again_brings_what_was_recorded(sandbox: Sandbox) -> None:
    task = load_task("diabetes")
    recorded = [each for each in read("diabetes") if each.kind == "grid" and each.cpu_s < 0.3]
    for execution in recorded[:: len(recorded) // 4]:
        _, verdict = run(task, sandbox, script(task, execution), DESIGN_LIMITS)
        assert verdict.status == execution.verdict.status
        np.testing.assert_allclose(verdict.test, execution.verdict.test, rtol=1e-6)


def test_a_grid_holds_what_the_environment_pays(sandbox: Sandbox) -> None:
    logic = AutoResearchDesign("diabetes", sandbox=sandbox)
    grid = load_grid("diabetes")
    quick = np.flatnonzero(grid.cpu_s.ravel() < 0.3)[::60]
    outcome = logic.execute(DesignAttempt(np.zeros(len(quick), np.int64), grid_designs()[quick]))
    np.testing.assert_allclose(outcome.value, grid.rewards.ravel()[quick], atol=0.011)
    np.testing.assert_array_equal(outcome.status, grid.status.ravel()[quick])


def test_what_is_recorded_already_is_not_executed_again(sandbox: Sandbox, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    designs = random_designs("diabetes", 3, seed=5)
    recorder = Recorder("diabetes", sandbox, lambda done, total: told.append((done, total)), folder=tmp_path)
    new = recorder.designs("random", designs, pool)
    assert told[-1] == (len(new), len(new)) == (3, 3)
    again = Recorder("diabetes", sandbox, lambda done, total: None, folder=tmp_path)
    assert again.designs("random", np.concatenate([designs, random_designs("diabetes", 4, seed=5)]), pool)[0].design not in {
        each.design for each in new
    }
    assert len(read("diabetes", folder=tmp_path)) == 4


def test_an_agents_episodes_go_on_where_they_were_stopped(sandbox: Sandbox, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    def recorder() -> Recorder:
        return Recorder("diabetes", sandbox, lambda done, total: None, folder=tmp_path)

    new = recorder().episodes(2, seed=3, pool=pool)
    assert {each.episode for each in new} == {0, 1}
    assert all(each.kind == "agent" and each.code for each in new)
    assert recorder().episodes(2, seed=3, pool=pool) == []
    known = {each.digest: each for each in new}
    for each in read("diabetes", folder=tmp_path):
        assert each.code == known[each.digest].code
        assert each.verdict.status == known[each.digest].verdict.status
        assert each.verdict.stderr == known[each.digest].verdict.stderr


def test_records_of_other_rows_are_refused(tmp_path: Path) -> None:
    write("diabetes", read("diabetes")[:2], folder=tmp_path)
    path = tmp_path / "diabetes.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join([lines[0].replace('"rows": "', '"rows": "0'), *lines[1:]]).encode()))
    with pytest.raises(ValueError, match="was recorded on other rows than diabetes has now"):
        read("diabetes", folder=tmp_path)
    write("diabetes", read("diabetes")[:2], folder=tmp_path)
    with pytest.raises(KeyError, match="designs of diabetes were not executed"):
        grid_executions("diabetes", folder=tmp_path)


def test_records_hold_no_path_of_the_machine_that_made_them() -> None:
    for path in FOLDER.glob("*.jsonl.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        assert "/home/" not in text
        assert "/root/" not in text
        assert ".venv" not in text
