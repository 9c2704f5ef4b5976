"""A model of outcomes learns from code which scripts fail, and shows what it knows them by."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tests.bandit import Bandit, BanditAttempt
from tests.world_models.test_outcome_model import every_design, scripts, taught
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch.rules import RUNTIME_ERROR
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.spaces import UnicodeText
from wmrl_gym.world_models import Interface, OutcomeModel, WorldModelError, check_world_model
from wmrl_gym.world_models.outcome.forests import BaggedTrees, StatusCalibration


@pytest.mark.parametrize("encoder", ["tfidf", "hashing"])
def test_it_learns_from_code_which_scripts_fail_and_how_good_the_others_are(encoder: Any) -> None:
    text, transitions = scripts(160)
    _, new = scripts(80, seed=1)
    model = taught(text, transitions, encoder=encoder)
    predicted, _ = model.predict(new.attempt, np.random.default_rng(0))
    assert (predicted.status == new.outcome.status).mean() > 0.95
    assert np.abs(predicted.value - new.outcome.value).mean() < 0.08
    failing = predicted.status == RUNTIME_ERROR
    assert set(predicted.feedback[failing]) == {"told of crash"}


@pytest.mark.parametrize(
    ("n_trees", "sharpness", "gain"), [(48, 0.0, -0.02), (48, 2.0, -0.02), (48, 6.0, -0.02), (48, 40.0, -0.02), (6, 0.0, 0.1)]
)
def test_probabilities_of_statuses_are_calibrated(n_trees: int, sharpness: float, gain: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((1500, 6)).astype(np.float32)
    truth = 1 / (1 + np.exp(-sharpness * (x[:, 0] - 0.5)))
    status = (rng.random(1500) < truth).astype(np.int64)
    trees = BaggedTrees(n_trees).fit(x[:700], np.eye(2)[status[:700]])
    judged = np.isfinite(trees.held_out_mean).all(axis=1)
    calibration = StatusCalibration.fitted(trees.held_out_mean[judged], status[:700][judged])
    raw = trees.predict(x[700:])[0]
    calibrated = calibration(raw)
    np.testing.assert_allclose(calibrated.sum(axis=1), 1.0)
    happened = np.arange(800), status[700:]
    before, after = (-np.log(np.maximum(each, 1e-3)[happened]).mean() for each in (raw, calibrated))
    assert after < before - gain
    for low in (0.1, 0.3, 0.5, 0.7):
        inside = (calibrated[:, 1] >= low) & (calibrated[:, 1] < low + 0.2)
        if inside.sum() > 100:
            assert abs(calibrated[inside, 1].mean() - truth[700:][inside].mean()) < 0.12


def test_the_nearest_executed_attempts_are_evidence_in_info() -> None:
    text, transitions = scripts(60)
    model = taught(text, transitions, neighbours=4)
    state = model.begin(*text.start(np.arange(60)), np.random.default_rng(0))
    _, prediction = model.step(state, transitions.action, np.random.default_rng(0))
    info = prediction.info
    assert info["neighbour"].shape == (60, 4)
    assert (np.diff(info["neighbour_distance"], axis=1) >= 0).all()
    same = info["neighbour_distance"][:, 0] == 0
    assert same.mean() > 0.9, "what was executed itself is nearest to itself"
    for row in np.flatnonzero(same)[:10]:
        code, outcome = model.execution(int(info["neighbour"][row, 0]))
        assert code.split()[2] == transitions.attempt.code[row].split()[2]
        assert outcome.value[0] == info["neighbour_value"][row, 0]
        assert outcome.status[0] == info["neighbour_status"][row, 0]
    with pytest.raises(KeyError, match="execution 999 is not kept"):
        model.execution(999)


def test_before_the_first_fit_there_is_no_evidence() -> None:
    text, transitions = scripts(5)
    model = taught(text, transitions)
    assert not model.fitted
    state = model.begin(*text.start(np.arange(2)), np.random.default_rng(0))
    _, prediction = model.step(state, list(transitions.action[:2]), np.random.default_rng(0))
    assert (prediction.info["neighbour"] == -1).all()


def test_what_was_learnt_of_some_tasks_serves_in_an_environment_of_others(tmp_path: Any) -> None:
    text, transitions = scripts(120, tasks=2)
    taught(text, transitions).save(tmp_path)
    other, new = scripts(60, tasks=3, seed=1)
    loaded = OutcomeModel()
    loaded.bind(Interface(other.observation_space, other.action_space, other.reward_range, other))
    loaded.load(tmp_path)
    predicted, _ = loaded.predict(new.attempt, np.random.default_rng(0))
    assert (predicted.status == new.outcome.status).mean() > 0.9
    unseen = new.context == 2
    assert unseen.any()
    assert np.corrcoef(predicted.value[unseen], new.outcome.value[unseen])[0, 1] > 0.9
    assert loaded.span.by_context.keys() == {"diabetes", "breast-cancer"}
    measures = loaded.update(new, np.random.default_rng(0))
    assert measures["wm/executions"] == 180


def test_a_checkpoint_of_other_statuses_or_of_another_kind_is_refused(tmp_path: Any) -> None:
    text, transitions = scripts(20)
    taught(text, transitions).save(tmp_path)
    model, bandit = OutcomeModel(), Bandit()
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    with pytest.raises(WorldModelError, match="was trained on the statuses"):
        model.load(tmp_path)
    (tmp_path / "outcome_model.json").write_text('{"model": "EnsembleDynamics", "format": 1}')
    with pytest.raises(WorldModelError, match="holds EnsembleDynamics of format 1, expected OutcomeModel of format 2"):
        model.load(tmp_path)


def test_a_checkpoint_says_what_it_was_trained_on(tmp_path: Any) -> None:
    text, transitions = scripts(90)
    model = taught(text, transitions, capacity=50, min_executions=8)
    model.update(scripts(30, seed=2)[1], np.random.default_rng(0))
    span = model.span
    assert span.kept == sum(span.by_context.values()) == 50
    assert span.end == model.executions == 120
    assert span.first >= 40
    model.save(tmp_path)
    assert json.loads((tmp_path / "outcome_model.json").read_text())["trained_on"] == span.as_json()
    loaded = OutcomeModel()
    loaded.load(tmp_path)
    loaded.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    assert loaded.span == span


def test_beyond_its_capacity_older_evidence_thins_out_and_new_evidence_stays() -> None:
    text, transitions = scripts(40)
    model = taught(text, transitions, capacity=64)
    for seed in range(1, 8):
        model.update(scripts(20, seed=seed)[1], np.random.default_rng(0))
    assert model.evidence is not None
    number = model.evidence.number
    assert len(number) == 64
    assert (np.diff(number) > 0).all()
    assert set(range(180 - 32, 180)) <= set(number.tolist()), "the newest half is kept whole"
    assert (number < 120).any(), "and something of the old"


def test_learning_aside_and_adopting_is_updating() -> None:
    text, transitions = scripts(60)
    at_once, aside = taught(text, transitions), OutcomeModel(16)
    aside.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    before, _ = aside.predict(transitions.attempt, np.random.default_rng(0))
    computed = aside.compute_update(transitions, np.random.default_rng(0))
    still, _ = aside.predict(transitions.attempt, np.random.default_rng(0))
    np.testing.assert_array_equal(before.value, still.value)
    assert aside.executions == 0
    aside.apply_update(computed)
    (left, doubt), (right, doubt_again) = (
        each.predict(transitions.attempt, np.random.default_rng(0)) for each in (at_once, aside)
    )
    np.testing.assert_equal(asdict(left), asdict(right))
    np.testing.assert_equal(doubt, doubt_again)


@pytest.mark.parametrize("encoder", ["tfidf", "hashing"])
def test_it_keeps_the_contract_of_world_models_on_text(encoder: Any) -> None:
    text, transitions = scripts(60)
    env = FactoredEnv(text)
    env.action_space = Scripts(32768)
    assert check_world_model(taught(text, transitions, encoder=encoder), env, sizes=(1, 7)) == []
    assert check_world_model(taught(text, transitions, encoder=encoder, sample=True), env, sizes=(1, 7)) == []


class Scripts(UnicodeText):
    """Replies with code of known words."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        word = ("forest", "linear", "boost", "crash")[int(self.np_random.integers(4))]
        return f"```python\nimport os\n{word} = {self.np_random.integers(1000)}\n```"


def test_held_out_it_does_not_know_by_heart_what_it_was_shown_once() -> None:
    bandit = Bandit()
    attempt = batch.concatenate([every_design(task) for task in range(3)])
    chosen = batch.take(attempt, np.random.default_rng(0).permutation(48)[:24])
    model = OutcomeModel(48, encoder="none")
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    model.update(shown(bandit, chosen), np.random.default_rng(0))
    real = bandit.execute(chosen).value
    inside, _ = model.predict(chosen, np.random.default_rng(0))
    held = model.held_out_outcomes(chosen, chosen.task)
    assert held is not None
    unseen = batch.take(attempt, [row for row in range(48) if not _among(attempt, row, chosen)])
    outside = model.predict(unseen, np.random.default_rng(0))[0].value - bandit.execute(unseen).value
    errors = [np.abs(each).mean() for each in (inside.value - real, held.outcome.value - real, outside)]
    assert errors[0] < 0.7 * errors[1]
    assert 0.5 * errors[2] < errors[1] < 2.0 * errors[2]


def test_held_out_it_predicts_what_it_was_not_shown_as_ever() -> None:
    bandit = Bandit()
    model = OutcomeModel(16, encoder="none")
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    assert model.held_out_outcomes(every_design(0), np.zeros(16, np.int64)) is None
    model.update(shown(bandit, every_design(0)), np.random.default_rng(0))
    held = model.held_out_outcomes(every_design(1), np.ones(16, np.int64))
    assert held is not None
    assert (held.outcome.value == model.predict(every_design(1), np.random.default_rng(0))[0].value).all()


def test_held_out_what_waits_for_the_next_fit_is_as_unseen_as_it_is() -> None:
    bandit = Bandit()
    model = OutcomeModel(16, encoder="none", refit_share=1.0)
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    model.update(shown(bandit, every_design(0)), np.random.default_rng(0))
    later = batch.take(every_design(1), np.arange(8))
    model.update(shown(bandit, later), np.random.default_rng(0))
    held = model.held_out_outcomes(later, later.task)
    assert held is not None
    assert (held.outcome.value == model.predict(later, np.random.default_rng(0))[0].value).all()


def shown(bandit: Bandit, attempt: BanditAttempt) -> Transitions:
    n, outcome = len(attempt.task), bandit.execute(attempt)
    no, yes = np.zeros(n, bool), np.ones(n, bool)
    observation = np.zeros((n, 5), np.float32)
    return Transitions(observation, attempt.design, outcome.value, observation, yes, no, yes, attempt.task, attempt, outcome)


def _among(attempt: BanditAttempt, row: int, chosen: BanditAttempt) -> bool:
    return bool(((chosen.task == attempt.task[row]) & (chosen.design == attempt.design[row]).all(axis=1)).any())
