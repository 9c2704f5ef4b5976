"""The studies on real tasks: rewards come through the package, values are exact, and rows are kept as they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from benchmarks.real_tasks.__main__ import main
from benchmarks.real_tasks.arms import ARMS, environments
from benchmarks.real_tasks.bars import Estimate, best_baseline, executions_for, gap_closed, statement, verdicts
from benchmarks.real_tasks.designs import COUNT, SIZES, Executed, ExecutedDesigns, every_action, every_design
from benchmarks.real_tasks.models import Models
from benchmarks.real_tasks.report import summarise
from benchmarks.real_tasks.run import Job, Rows, run, study_of
from benchmarks.real_tasks.settings import Settings, grid
from benchmarks.real_tasks.side_by_side import SideBySide
from benchmarks.real_tasks.trainers import TRAINERS, Curve, TaskwiseBuffer
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import STATUSES, VALID
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.integrations import sb3

TASKS = ("cars-mpg", "diabetes", "happiness")
SMALL = Settings(0.3, 0.01, num_envs=20, steps=200)


@pytest.fixture(scope="module")
def tables() -> dict[str, Executed]:
    """Outcomes of three tasks whose good designs differ: one family is good, and another fails."""
    rng, made = np.random.default_rng(0), {}
    for at, task in enumerate(TASKS):
        family, size, strength = every_action().T
        value = 0.5 + 0.35 * (family == 2 + at) + 0.02 * size + 0.01 * (4 - strength) + 0.01 * rng.random(COUNT)
        failed = family == at
        status = np.where(failed, STATUSES.index("timeout"), VALID)
        value = np.where(failed, 0.1, value)
        made[task] = Executed(task, status, value, value.copy())
    return made


@pytest.fixture(scope="module")
def models(tables: dict[str, Executed]) -> Models:
    return Models(tables)


def real(table: Executed, num_envs: int) -> FactoredVectorEnv:
    return FactoredVectorEnv(ExecutedDesigns(table, at_once=True), num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_executing_a_design_pays_what_the_table_says(tables: dict[str, Executed]) -> None:
    for at_once in (False, True):
        envs = FactoredVectorEnv(
            ExecutedDesigns(tables["diabetes"], at_once=at_once), COUNT, autoreset_mode=AutoresetMode.SAME_STEP
        )
        envs.reset(seed=0)
        _, reward, terminated, _, _ = envs.step(every_action())
        np.testing.assert_allclose(reward, tables["diabetes"].value)
        assert terminated.all()
        assert envs.factored.asked == COUNT  # type: ignore[attr-defined]
        envs.close()


def test_a_table_with_an_unknown_outcome_is_refused(tables: dict[str, Executed]) -> None:
    table = tables["diabetes"]
    with pytest.raises(ValueError, match="must have 225 known outcomes"):
        Executed("diabetes", table.status, np.where(np.arange(COUNT) == 7, np.nan, table.value), table.shown)


def test_side_by_side_each_task_gets_what_it_gets_alone(tables: dict[str, Executed]) -> None:
    envs = SideBySide([real(tables[task], 4) for task in TASKS])
    observation, _ = envs.reset(seed=0)
    assert observation.argmax(axis=1).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    actions = every_action()[np.random.default_rng(1).integers(COUNT, size=12)]
    _, reward, _, _, _ = envs.step(actions)
    number = np.ravel_multi_index(tuple(actions.T), tuple(SIZES))
    np.testing.assert_allclose(reward, [tables[TASKS[at // 4]].value[number[at]] for at in range(12)])
    envs.close()


def test_parts_with_different_slots_are_refused(tables: dict[str, Executed]) -> None:
    parts = [real(tables["diabetes"], 4), real(tables["happiness"], 5)]
    with pytest.raises(ValueError, match="same slots"):
        SideBySide(parts)
    for part in parts:
        part.close()


def test_predictions_that_are_looked_up_are_those_of_the_forest(tables: dict[str, Executed], models: Models) -> None:
    model = models.fresh("diabetes", "transfer", seed=0)
    every, none = DesignAttempt(np.zeros(COUNT, np.int64), every_design()), np.zeros(COUNT, np.int64)
    plain = super(type(model), model).predict_outcomes(every, none, seed=none, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(models.predictions("diabetes"), plain.outcome.value)
    order = np.random.default_rng(3).permutation(COUNT)[:31]
    some = model.predict(DesignAttempt(none[:31], every_design()[order]), np.random.default_rng(0))[0]
    np.testing.assert_array_equal(some.value, plain.outcome.value[order])


def test_the_pretrained_model_has_not_seen_the_task_under_study(tables: dict[str, Executed], models: Models) -> None:
    changed = Executed("diabetes", *(getattr(tables["happiness"], name) for name in ("status", "value", "shown")))
    again = Models({**tables, "diabetes": changed})
    np.testing.assert_array_equal(models.predictions("diabetes"), again.predictions("diabetes"))
    assert (models.predictions("happiness") != again.predictions("happiness")).any()


def test_the_value_of_a_policy_is_exact(tables: dict[str, Executed]) -> None:
    curve = Curve(np.stack([tables[task].value for task in TASKS]), lambda: 0)
    rng = np.random.default_rng(0)
    slots = [rng.dirichlet(np.ones(n), size=3) for n in SIZES]
    curve.add(0, slots)
    for at, task in enumerate(TASKS):
        family, size, strength = every_action().T
        chance = slots[0][at, family] * slots[1][at, size] * slots[2][at, strength]
        assert curve.values[at] == pytest.approx(float(chance @ tables[task].value))
    assert curve.points[0].value == pytest.approx(np.mean(curve.values))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("arm", ["mixture", "paper", "recommended", "contextual+residual"])
def test_arms_with_anchors_execute_their_budget_to_the_last_one(
    trainer: str, arm: str, tables: dict[str, Executed], models: Models
) -> None:
    row = run(Job("transfer", trainer, arm, 30, 1, replace(SMALL, early=0.5)), tables, models)
    assert row["executions"] == 30


@pytest.mark.parametrize("trainer", TRAINERS)
def test_real_rewards_everywhere_learn_the_good_family_of_each_task(
    trainer: str, tables: dict[str, Executed], models: Models
) -> None:
    row = run(Job("transfer", trainer, "ceiling", 0, 0, Settings(0.3, 0.0)), tables, models)
    start = {task: float(table.value.mean()) for task, table in tables.items()}
    assert all(row["values"][task] > start[task] + 0.25 for task in TASKS)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_same_job_brings_the_same_row(trainer: str, tables: dict[str, Executed], models: Models) -> None:
    job = Job("transfer", trainer, "contextual+residual", 30, 3, replace(SMALL, early=0.5))
    one, other = run(job, tables, models), run(job, tables, models)
    assert {**one, "cpu_s": 0} == {**other, "cpu_s": 0}
    assert one["values"] != run(replace(job, seed=4), tables, models)["values"]


def test_a_model_that_learns_in_a_run_leaves_the_others_as_they_were(tables: dict[str, Executed], models: Models) -> None:
    before = models.predictions("diabetes").copy()
    run(Job("transfer-learning", "group", "mixture", 30, 0, replace(SMALL, early=0.5)), tables, models)
    np.testing.assert_array_equal(models.predictions("diabetes"), before)


def test_in_the_learning_setting_the_first_random_designs_count_as_executions(
    tables: dict[str, Executed], models: Models
) -> None:
    row = run(Job("learning", "group", "mixture", 30, 0, replace(SMALL, early=0.5)), tables, models)
    assert row["executions"] == 30
    assert row["curve"][0][1] == 10


def test_advantages_are_normalised_within_each_task(tables: dict[str, Executed]) -> None:
    venv = sb3.to_vec_env(SideBySide([real(tables[task], 10) for task in TASKS]))
    from stable_baselines3 import PPO

    made = sb3.weighted(venv)
    made["rollout_buffer_class"] = TaskwiseBuffer
    made["rollout_buffer_kwargs"] |= {"tasks": 3}
    model = PPO("MlpPolicy", venv, n_steps=1, batch_size=30, n_epochs=1, seed=0, **made)
    model.learn(30)
    # The first sampling from the buffer flattens it; with one step a rollout the order of the slots stays.
    advantage = model.rollout_buffer.advantages.reshape(3, 10)
    np.testing.assert_allclose(advantage.mean(axis=1), 0.0, atol=1e-5)
    np.testing.assert_allclose(advantage.std(axis=1, ddof=1), 1.0, atol=1e-3)
    venv.close()


def test_rows_are_kept_and_found_again_but_not_those_of_another_study(
    tmp_path: Path, tables: dict[str, Executed], models: Models
) -> None:
    job = Job("transfer", "group", "model", 0, 0, SMALL)
    rows = Rows(tmp_path / "runs" / "rows.jsonl", study=study_of(tables, models))
    rows.add(job, run(job, tables, models))
    again = Rows(tmp_path / "runs" / "rows.jsonl", study=study_of(tables, models))
    assert job in again
    assert again[job] == rows[job]
    assert replace(job, seed=1) not in again
    assert replace(job, settings=replace(SMALL, rate=0.2)) not in again
    assert job not in Rows(tmp_path / "runs" / "rows.jsonl", study="another")
    assert job in Rows(tmp_path / "runs" / "rows.jsonl", study=None)  # that of the newest row
    with pytest.raises(FileNotFoundError, match="no rows"):
        Rows(tmp_path / "empty.jsonl", study=None)


def test_the_grid_is_the_same_for_all_arms_but_for_the_passes_of_the_one_that_only_executes() -> None:
    for trainer in TRAINERS:
        assert set(grid(trainer, executes_only=False)) < set(grid(trainer, executes_only=True))


@pytest.mark.parametrize(("name", "group"), [("paper", 5), ("mixture", 1)])
def test_anchors_come_in_the_groups_of_their_arm(name: str, group: int, tables: dict[str, Executed], models: Models) -> None:
    envs = environments(
        ARMS[name],
        ExecutedDesigns(tables["diabetes"]),
        model=models.fresh("diabetes", "transfer", seed=0),
        settings=replace(SMALL, early=0.5),
        budget=30,
        warmup=0,
        learns=0,
        seed=0,
    )
    assert envs.unwrapped.engine.episodes.group_size == group  # type: ignore[attr-defined]
    envs.close()


def values(**arms: float) -> dict[str, dict[int, float]]:
    """Twenty seeds of each arm, alike but for a little noise that all share, and less of their own."""
    rng = np.random.default_rng(0)
    shared = 0.01 * rng.standard_normal(20)
    names = {name.replace("_", "+"): mean for name, mean in arms.items()}
    return {
        name: {seed: mean + shared[seed] + 0.002 * rng.standard_normal() for seed in range(20)} for name, mean in names.items()
    }


def test_a_bar_is_met_where_wmrl_closes_the_gap_and_missed_where_it_does_not() -> None:
    good = values(real=0.80, model=0.78, mixture=0.79, paper=0.82, contextual_residual=0.90, ceiling=0.96)
    assert all(each.met for each in verdicts("transfer", "ppo", 30, good))
    assert all(each.met for each in verdicts("transfer", "ppo", 100, good))
    assert [each.met for each in verdicts("transfer", "ppo", 200, good)] == [False]
    weak = values(real=0.89, model=0.78, mixture=0.79, paper=0.82, contextual_residual=0.90, ceiling=0.96)
    assert not verdicts("transfer", "ppo", 30, weak)[0].met
    assert "real only" in verdicts("transfer", "ppo", 30, weak)[0].bar
    below = values(real=0.92, model=0.78, mixture=0.79, paper=0.91, contextual_residual=0.90, ceiling=0.96)
    assert [each.met for each in verdicts("transfer", "ppo", 30, below)] == [False, False, True, True, False]
    assert verdicts("transfer", "ppo", 30, {"real": good["real"]}) == []
    learning = verdicts("learning", "group", 200, good)
    assert [each.met for each in learning] == [True, True, False]


def test_shares_of_gaps_are_ratios_of_means() -> None:
    known = values(real=0.80, mixture=0.70, model=0.6, contextual_residual=0.88, ceiling=0.96)
    assert best_baseline(known) == "real"
    share = gap_closed(known, "contextual+residual", low="real")
    assert share.mean == pytest.approx(0.5, abs=4 * share.error)
    assert 0.001 < share.error < 0.02


def test_the_papers_statement_is_read_from_paired_differences() -> None:
    ordered = statement(values(mixture=0.7, denoise=0.75, debias=0.76, paper=0.8))
    assert ordered is not None
    assert ordered["reproduced"]
    assert not ordered["contradicted"]
    other = statement(values(mixture=0.7, denoise=0.65, debias=0.76, paper=0.8))
    assert other is not None
    assert not other["reproduced"]
    assert other["contradicted"]


def test_executions_that_real_only_needs_are_interpolated_between_its_budgets() -> None:
    reached = {30: 0.7, 100: 0.8, 400: 0.9}
    assert executions_for(0.6, reached) == 30
    assert executions_for(0.8, reached) == pytest.approx(100)
    assert executions_for(0.85, reached) == pytest.approx(200)
    assert executions_for(0.95, reached) == float("inf")


def test_an_error_is_unknown_of_one_seed_and_not_zero() -> None:
    assert np.isnan(Estimate.of([0.5]).error)
    assert not Estimate.of([0.5]).above(2.0)


def test_the_document_holds_what_each_arm_reached(tables: dict[str, Executed], models: Models) -> None:
    rows = []
    for arm in ("real", "model", "mixture", "ceiling"):
        for seed in (0, 1):
            job = Job("transfer", "group", arm, 30 if ARMS[arm].budgeted else 0, seed, replace(SMALL, early=0.5))
            rows.append({"job": job.as_json(), **run(job, tables, models)})
    document = summarise(rows)
    assert document["start"] == pytest.approx(np.mean([table.value.mean() for table in tables.values()]))
    (cell,) = document["comparisons"]
    assert cell["arms"].keys() == {"real", "model", "mixture", "ceiling"}
    assert cell["arms"]["mixture"]["executions"] == 30
    assert cell["arms"]["mixture"]["value"][0] == pytest.approx(np.mean([list(row["values"].values()) for row in rows[4:6]]))
    assert np.array(cell["arms"]["ceiling"]["curve"]).shape == (11, 4)
    assert document["bars"] == []
    others = [{**row, "job": {**row["job"], "setting": "warm-up"}} for row in rows]
    both = summarise(others, before=document)["comparisons"]
    assert [each["setting"] for each in both] == ["transfer", "warm-up"]
    assert both[0] == cell, "a comparison that has no rows here stays as it was"
    assert summarise(rows[:6], before={"comparisons": both})["comparisons"][0]["arms"].keys() == {"real", "model", "mixture"}


def test_bars_are_judged_from_the_document_whether_its_comparisons_are_new_or_kept() -> None:
    def row(arm: str, seed: int, value: float) -> dict[str, object]:
        job = {"setting": "learning", "trainer": "ppo", "arm": arm, "budget": 200 if arm != "ceiling" else 0, "seed": seed}
        curve = [[0, 0.0, 0.5, 5.0], [10, 10.0, value, 1.0]]
        return {"job": job, "values": {"a": value}, "curve": curve, "executions": 200, "hit": 0.1, "cpu_s": 1.0}

    reached = {"real": 0.7, "model": 0.6, "mixture": 0.8, "paper": 0.8, "contextual+residual": 0.85, "ceiling": 0.9}
    rows = [row(arm, seed, value + 0.01 * seed) for arm, value in reached.items() for seed in range(3)]
    document = summarise(rows)
    assert [bar["met"] for bar in document["bars"]] == [True, True, True]
    assert document["comparisons"][0]["from_real"][0] == pytest.approx(0.75)
    other = [{**each, "job": {**each["job"], "setting": "warm-up"}} for each in rows]  # type: ignore[dict-item]
    assert summarise(other, before=document)["bars"] == document["bars"]


@pytest.mark.parametrize("arguments", [["run", "--arms", "nonsense"], ["run", "--budgets", "31"], ["run", "--seeds", "1"]])
def test_what_is_not_known_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "got" in capsys.readouterr().err
