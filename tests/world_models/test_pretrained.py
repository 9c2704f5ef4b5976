"""The outcome models that come with the package: ready on tasks never seen, honest about them, and they go on learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks.executions import HELD_OUT_TASKS, TRAIN_TASKS, digest_of, grid_designs, load_grid, read
from tests.bandit import Bandit, BanditAttempt
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchText, load_task
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import VALID
from wmrl_gym.envs.autoresearch.tasks.descriptors import DESCRIPTORS, descriptors
from wmrl_gym.envs.autoresearch.tasks.profile import profile
from wmrl_gym.envs.autoresearch.text_env import CODE, TextAttempt
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.world_models import Interface, OutcomeModel, WorldModelError
from wmrl_gym.world_models.outcome.pretrained import FOLDER, KINDS
from wmrl_gym.world_models.outcome.pretrained import read as read_pretrained


def bound(model: OutcomeModel, logic: Factored[Any, Any]) -> OutcomeModel:
    model.bind(Interface(logic.observation_space, logic.action_space, logic.reward_range, logic))
    return model


@pytest.fixture(scope="module")
def designs() -> OutcomeModel:
    return bound(OutcomeModel.pretrained(), AutoResearchDesign(list(HELD_OUT_TASKS)))


def grid_of(number: int) -> DesignAttempt:
    return DesignAttempt(np.full(225, number), grid_designs())


def test_it_predicts_before_anything_was_executed_and_better_than_a_constant(designs: OutcomeModel) -> None:
    assert designs.fitted
    ranks, gain = [], []
    for number, name in enumerate(HELD_OUT_TASKS):
        truth = load_grid(name).rewards.ravel()
        predicted, std = designs.predict(grid_of(number), np.random.default_rng(0))
        assert np.isfinite(predicted.value).all()
        assert (std > 0).all()
        ranks.append(spearmanr(predicted.value, truth).statistic)
        gain.append(np.abs(truth - 0.7).mean() - np.abs(truth - predicted.value).mean())
    assert np.mean(ranks) > 0.3
    assert np.mean(gain) > 0


def test_its_doubt_about_tasks_never_seen_is_honest(designs: OutcomeModel) -> None:
    inside = []
    for number, name in enumerate(HELD_OUT_TASKS):
        predicted, std = designs.predict(grid_of(number), np.random.default_rng(0))
        inside.append((np.abs(predicted.value - load_grid(name).rewards.ravel()) < 1.645 * std).mean())
    assert 0.75 < np.mean(inside) <= 1.0


def test_the_same_seed_gives_the_same_predictions_and_it_is_saved_and_loaded(designs: OutcomeModel, tmp_path: Path) -> None:
    again = bound(OutcomeModel.pretrained(), AutoResearchDesign(list(HELD_OUT_TASKS)))
    designs.save(tmp_path)
    loaded = bound(OutcomeModel(), AutoResearchDesign(list(HELD_OUT_TASKS)))
    loaded.load(tmp_path)
    expected = designs.predict(grid_of(2), np.random.default_rng(0))
    for other in (again, loaded):
        found = other.predict(grid_of(2), np.random.default_rng(0))
        np.testing.assert_array_equal(found[0].value, expected[0].value)
        np.testing.assert_array_equal(found[1], expected[1])


def test_a_study_on_a_training_task_leaves_its_executions_out() -> None:
    model = bound(OutcomeModel.pretrained(without="abalone"), AutoResearchDesign("abalone"))
    assert model.span.by_context == {"elsewhere": model.span.kept}
    whole = bound(OutcomeModel.pretrained(), AutoResearchDesign("abalone"))
    assert whole.span.by_context["abalone"] == whole.span.kept - model.span.kept > 50
    with pytest.raises(ValueError, match="does not know diabetes; it knows abalone"):
        bound(OutcomeModel.pretrained(without=("abalone", "diabetes")), AutoResearchDesign("abalone"))


def test_other_environments_are_told_that_it_is_not_for_them() -> None:
    with pytest.raises(WorldModelError, match=r"knows executions of AutoResearch tasks.*Bandit is another environment"):
        bound(OutcomeModel.pretrained(), Bandit())


def test_it_learns_the_task_at_hand_from_real_executions() -> None:
    logic = AutoResearchDesign("happiness")
    model, truth = bound(OutcomeModel.pretrained(), logic), load_grid("happiness")
    attempt = DesignAttempt(np.zeros(225, np.int64), grid_designs())
    before = np.abs(model.predict(attempt, np.random.default_rng(0))[0].value - truth.rewards.ravel())
    executed = np.random.default_rng(0).choice(225, 60, replace=False)
    zeros, no = np.zeros(60), np.zeros(60, bool)
    value, status = truth.rewards.ravel()[executed], truth.status.ravel()[executed]
    outcome = Outcome(status, value, value, np.full(60, "", object), ~no, zeros, zeros)
    own = DesignAttempt(np.zeros(60, np.int64), grid_designs()[executed])
    count = model.executions
    model.update(Transitions((), (), value, (), no, no, ~no, own.task, own, outcome), np.random.default_rng(0))
    assert model.executions == count + 60
    after = np.abs(model.predict(attempt, np.random.default_rng(0))[0].value - truth.rewards.ravel())
    others = np.setdiff1d(np.arange(225), executed)
    assert after[others].mean() < 0.8 * before[others].mean()


def test_it_is_fitted_anew_as_its_own_executions_grow_and_not_at_each() -> None:
    logic = AutoResearchDesign("phishing")
    model, grid = bound(OutcomeModel.pretrained(), logic), load_grid("phishing")

    def learn(rows: range) -> bool:
        """Whether these executions bring another fit."""
        before, n = model._learnt.fit, len(rows)
        value, status, no = grid.rewards.ravel()[rows], grid.status.ravel()[rows], np.zeros(n, bool)
        outcome = Outcome(status, value, value, np.full(n, "", object), ~no, np.zeros(n), np.zeros(n))
        own = DesignAttempt(np.zeros(n, np.int64), grid_designs()[rows])
        model.update(Transitions((), (), value, (), no, no, ~no, own.task, own, outcome), np.random.default_rng(0))
        return model._learnt.fit is not before

    assert [learn(range(2)), learn(range(2, 4)), learn(range(4, 6)), learn(range(6, 20)), learn(range(20, 24))] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_in_the_text_environment_a_broken_script_is_told_from_one_that_works() -> None:
    logic = AutoResearchText("cars-mpg")
    model = bound(OutcomeModel.pretrained(), logic)
    works = render_design(load_task("cars-mpg"), [2, 1, 1, 0, 3, 2, 1, 0, 0])
    broken = works.replace("model.fit(", "modle.fit(")
    attempt = TextAttempt(np.zeros(2, np.int64), np.full(2, CODE), (works, broken))
    chances = model.chances(attempt)
    assert chances[0, VALID] > 0.7
    assert chances[1, VALID] < 0.3
    predicted, _ = model.predict(attempt, np.random.default_rng(0))
    assert predicted.feedback[0].startswith("status: valid")
    assert predicted.feedback[1].startswith("status: runtime_error")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_hold_what_was_recorded_by_the_leaderboards_of_today(kind: str) -> None:
    saved = read_pretrained(FOLDER / f"{kind}.npz")
    assert saved.contexts == TRAIN_TASKS
    assert saved.evidence is not None
    for number, name in enumerate(TRAIN_TASKS):
        task, mine = load_task(name), saved.evidence.context == number
        recorded = [each for each in read(name) if each.kind != ("agent" if kind == KINDS[0] else "grid")]
        assert mine.sum() == len(recorded)
        np.testing.assert_allclose(saved.evidence.outcome.value[mine], [each.verdict.value(task) for each in recorded])
        np.testing.assert_array_equal(saved.evidence.outcome.status[mine], [each.verdict.status for each in recorded])
        if kind == KINDS[1]:
            assert [digest_of(text) for text in saved.evidence.text[mine]] == [each.digest for each in recorded]


def test_a_damaged_file_is_a_clear_error_and_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes((FOLDER / f"{KINDS[0]}.npz").read_bytes()[:1000])
    np.savez(tmp_path / "pickled.npz", document=np.array([{"a": 1}], dtype=object))
    for name in ("cut", "pickled", "missing"):
        with pytest.raises(WorldModelError, match="cannot be read"):
            read_pretrained(tmp_path / f"{name}.npz")


def test_descriptors_are_bounded_and_tell_tasks_apart() -> None:
    every = np.stack([descriptors(load_task(name)) for name in (*TRAIN_TASKS, *HELD_OUT_TASKS)])
    assert every.shape == (24, len(DESCRIPTORS))
    assert np.isfinite(every).all()
    assert np.abs(every).max() <= 1.0
    assert len(np.unique(every, axis=0)) == 24
    linear, trees = DESCRIPTORS.index("landmark_linear"), DESCRIPTORS.index("landmark_trees")
    digits = every[(*TRAIN_TASKS, *HELD_OUT_TASKS).index("digits")]
    assert digits[trees] > digits[linear] > 0.3


@pytest.mark.parametrize(("argument", "value"), [("min_leaf", 0), ("max_features", 0.0), ("max_features", 1.5)])
def test_senseless_growth_is_refused(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{argument} must"):
        OutcomeModel(**{argument: value})


def test_an_environment_has_no_descriptors_unless_it_gives_some_and_a_model_asks_for_them() -> None:
    bandit, attempt = Bandit(), DesignAttempt(np.zeros(2, np.int64), grid_designs()[[0, 200]])
    assert bandit.descriptors(BanditAttempt(np.zeros(3, np.int64), np.zeros((3, 2), np.int64))).shape == (3, 0)
    logic = AutoResearchDesign(["heart-disease", "diabetes"])
    found = logic.descriptors(attempt)
    assert found.shape == (2, len(DESCRIPTORS) + 37)
    assert np.abs(found).max() <= 1.0
    plain, asking = bound(OutcomeModel(encoder="none"), logic), bound(OutcomeModel(encoder="none", descriptors=True), logic)
    assert plain._features(attempt).shape[1] + found.shape[1] == asking._features(attempt).shape[1]


def test_designs_that_leave_empty_cells_are_told_from_those_that_fill_them() -> None:
    logic = AutoResearchDesign(["seattle-weather", "happiness", "diabetes"])
    designs = np.tile(grid_designs()[0], (2, 1))
    designs[0, 0] = 0
    for number, name in enumerate(logic.contexts):
        left = logic.descriptors(DesignAttempt(np.full(2, number), designs))[:, -1]
        assert left.tolist() == [float(profile(load_task(name)).missing), 0.0]
    assert any(profile(task).missing for task in logic.tasks)
