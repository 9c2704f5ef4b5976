"""The study in the whole design space: each script runs once, arms pay for what they ask for, rows and tables are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import executions
from benchmarks.real_tasks.bars import WMRL
from benchmarks.real_tasks.run import Rows
from benchmarks.real_tasks.settings import Settings
from benchmarks.real_tasks.whole_space.__main__ import main
from benchmarks.real_tasks.whole_space.executed import TURNS, ExecutedOnce, Table
from benchmarks.real_tasks.whole_space.study import SpaceJob, run
from benchmarks.real_tasks.whole_space.verdicts import LATER, summarise, values, verdicts
from wmrl_gym.envs.autoresearch import load_task
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.rules import STATUSES, VALID
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.verdict import Verdict
from wmrl_gym.world_models import OutcomeModel

TASK = "penguin-sex"
SMALL = Settings(0.03, 0.01, epochs=2, num_envs=10, steps=40, real_envs=5)


class Machine:
    """Stands in for a sandbox: forests have an error of .4, everything else of .9, and support vectors run out of time."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, task: Task, code: str) -> tuple[float, Verdict]:
        self.ran.append(code)
        if "SVC" in code or "SVR" in code:
            return 1.0, Verdict(STATUSES.index("timeout"), np.nan, np.nan, "exceeded", "", "lost", "words")
        score = 0.4 if "RandomForest" in code else 0.9
        return 0.1, Verdict(VALID, score, score, "exit code: 0", "", "some", "words")


def table(folder: Path, machine: Machine) -> Table:
    return Table(load_task(TASK), machine, folder=folder, packed=())


@pytest.fixture(scope="module")
def model() -> OutcomeModel:
    return OutcomeModel.pretrained()


def test_a_script_runs_once_whoever_asks_for_it_and_is_known_to_the_next_process(tmp_path: Path) -> None:
    machine = Machine()
    first = table(tmp_path, machine)
    designs = np.random.default_rng(0).integers(0, NVEC, size=(30, 9))
    found = [first.of(design) for design in designs]
    assert [first.of(design) for design in designs] == found
    assert len(machine.ran) == len(set(machine.ran)) == len(first) == first.new
    later = table(tmp_path, machine)
    again = [later.of(design) for design in designs]
    assert later.new == 0
    for one, other in zip(found, again, strict=True):
        assert (one.digest, one.verdict.status, one.cpu_s) == (other.digest, other.verdict.status, other.cpu_s)
        np.testing.assert_equal(one.verdict.test, other.verdict.test)
    assert not any(each.verdict.stdout or each.verdict.stderr for each in again), "what a script prints is not kept"


def test_a_packed_table_is_read_and_leaves_out_what_other_studies_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, others = Machine(), tmp_path / "others"
    monkeypatch.setattr(executions, "FOLDER", others)
    first = table(tmp_path / "runs", machine)
    designs = np.random.default_rng(1).integers(0, NVEC, size=(12, 9))
    known = first.of(designs[0])
    executions.write(TASK, [known], folder=others)
    for design in designs:
        first.of(design)
    assert first.pack(tmp_path / "packed") == len(first) - 1
    packed = Table(first.task, machine, folder=tmp_path / "new", packed=(others, tmp_path / "packed"))
    assert {each.digest for each in packed.all()} == {each.digest for each in first.all()}


def test_what_an_environment_pays_is_the_verdict_of_the_table(tmp_path: Path) -> None:
    own = table(tmp_path, Machine())
    source = ExecutedOnce(own)
    start, info = source.start(np.zeros(1, np.int64))
    design = np.array([[2, 1, 1, 0, 3, 2, 0, 1, 0]])
    outcome = source.execute(source.attempt(source.begin(start, info), design))
    assert outcome.value[0] == own.of(design[0]).verdict.value(own.task)
    assert source.asked == 1


@pytest.mark.parametrize(("arm", "asked"), [("real", 60), (WMRL, 60), ("paper", 60), ("mixture", 60), ("model", 0)])
def test_an_arm_asks_for_its_budget_and_the_same_job_brings_the_same_value(
    arm: str, asked: int, tmp_path: Path, model: OutcomeModel
) -> None:
    job = SpaceJob(TASK, arm, 60, 3, replace(SMALL, early=0.0), episodes=12)
    one, other = (run(job, table(tmp_path / name, Machine()), lambda task: model) for name in "ab")
    assert one["executions"] == asked
    assert 0 < one["new"] <= asked + 12 * TURNS
    assert (one["value"], one["error"], one["new"]) == (other["value"], other["error"], other["new"])
    again = run(job, table(tmp_path / "a", Machine()), lambda task: model)
    assert again["new"] == 0, "all of it is in the table"
    assert again["value"] == one["value"]


def test_real_execution_learns_what_pays(tmp_path: Path, model: OutcomeModel) -> None:
    settings = replace(SMALL, rate=0.01, epochs=4)
    jobs = [SpaceJob(TASK, "real", budget, 0, settings, episodes=100) for budget in (30, 750)]
    few, many = (run(job, table(tmp_path, Machine()), lambda task: model)["value"] for job in jobs)
    assert many > few + 0.03


def rows_of(**reached: list[float]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, each in reached.items():
        arm, budget = ("real", 1_200) if name == "later" else (name.replace("wmrl", WMRL), 300)
        for seed, value in enumerate(each):
            for task, shift in (("a", 0.1), ("b", -0.1)):
                job = {"arm": arm, "budget": budget, "seed": seed, "task": task}
                rows.append({"job": job, "value": value + shift, "executions": budget, "new": 1, "cpu_s": 0.1})
    return rows


def test_bars_are_judged_by_paired_differences_over_whole_seeds() -> None:
    rows = rows_of(wmrl=[0.8, 0.9], mixture=[0.7, 0.8], paper=[0.8, 0.9], real=[0.6, 0.75], later=[0.79, 0.9])
    found = values(rows, tasks=2)  # type: ignore[arg-type]
    assert found[LATER] == pytest.approx({0: 0.79, 1: 0.9})
    assert [each.met for each in verdicts(found)] == [True, False, True, True]
    assert not verdicts(values(rows[:-1], tasks=2)), "a seed without one of its tasks is no whole seed"  # type: ignore[arg-type]
    document = summarise(rows, tasks=["a", "b"])  # type: ignore[arg-type]
    assert document["arms"][WMRL]["value"][0] == pytest.approx(0.85)
    assert len(document["bars"]) == 4


def test_without_rows_no_bar_is_met(tmp_path: Path) -> None:
    assert main(["report", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]) == 1
    assert (tmp_path / "whole_space.json").is_file()


def test_rows_keep_jobs_of_this_study_too(tmp_path: Path) -> None:
    job = SpaceJob(TASK, "real", 300, 0, SMALL)
    rows = Rows(tmp_path / "rows.jsonl", study="one")
    rows.add(job, {"value": 0.5})
    again = Rows(tmp_path / "rows.jsonl", study="one")
    assert job in again
    assert replace(job, task="digits") not in again
    assert again[job]["value"] == 0.5
