"""The outcome model on an environment whose truth is known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.bandit import Bandit, BanditAttempt
from tests.drifting import fitted
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.envs.autoresearch.rules import RUNTIME_ERROR, VALID
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits
from wmrl_gym.spaces import UnicodeText
from wmrl_gym.world_models import Interface, OutcomeModel, WorldModelError, check_world_model
from wmrl_gym.world_models.outcome.forests import BaggedTrees, StatusCalibration


def every_design(task: int) -> BanditAttempt:
    designs = np.array([[first, second] for first in range(4) for second in range(4)])
    return BanditAttempt(np.full(16, task), designs)


def test_it_ranks_designs_and_tells_which_fail() -> None:
    bandit = Bandit()
    model = fitted(bandit, 150)
    for task in range(3):
        attempt = every_design(task)
        predicted, std = model.predict(attempt, np.random.default_rng(0))
        real = bandit.execute(attempt)
        assert spearmanr(predicted.value, real.value).statistic > 0.8
        assert (predicted.status == real.status).mean() > 0.85
        assert (std[1:] > 0).all()


def test_the_gate_answers_exactly_and_without_doubt() -> None:
    predicted, std = fitted(Bandit()).predict(every_design(0), np.random.default_rng(0))
    assert predicted.status[0] == 0
    assert predicted.value[0] == std[0] == 0.0


def test_it_says_more_doubt_of_what_it_has_seen_less() -> None:
    bandit = Bandit()
    few, many = fitted(bandit, 12), fitted(bandit, 300)
    rng = np.random.default_rng(0)
    assert np.mean(many.predict(every_design(1), rng)[1]) < 0.5 * np.mean(few.predict(every_design(1), rng)[1])


def test_its_doubt_covers_its_errors() -> None:
    bandit = Bandit()
    inside = []
    for task in range(3):
        attempt = every_design(task)
        predicted, std = fitted(bandit, 60).predict(attempt, np.random.default_rng(0))
        inside.extend(np.abs(predicted.value - bandit.execute(attempt).value) <= 2 * std + 1e-9)
    assert np.mean(inside) > 0.8


def test_an_unfitted_model_says_that_it_does_not_know() -> None:
    model = OutcomeModel(encoder="none")
    bandit = Bandit()
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    assert not model.fitted
    predicted, std = model.predict(every_design(0), np.random.default_rng(0))
    assert np.isnan(std[1:]).all()
    assert np.isfinite(predicted.value).all()


@pytest.mark.parametrize("size", [1, 7, 256, 4097])
def test_any_batch_size_predicts_each_rollout_alike(size: int) -> None:
    bandit = Bandit()
    model = fitted(bandit)
    rng = np.random.default_rng(0)
    observation = bandit.start(np.full(size, 1))[0]
    info = {"context": np.full(size, int(observation[0, :3].argmax()))}
    actions = rng.integers(0, 4, (size, 2))
    _, whole = model.step(model.begin(observation, info, rng), actions, rng)
    row = size // 2
    one_info = {"context": info["context"][:1]}
    _, one = model.step(model.begin(observation[:1], one_info, rng), actions[row : row + 1], rng)
    assert whole.reward.shape == (size,)
    np.testing.assert_allclose(whole.observation[row], one.observation[0], rtol=1e-6)


def test_step_is_pure() -> None:
    bandit = Bandit()
    model = fitted(bandit)
    rng = np.random.default_rng
    observation, _ = bandit.start(np.array([1]))
    info = {"context": np.array([int(observation[0, :3].argmax())])}
    state = model.begin(observation, info, rng(0))
    action = np.array([[1, 2]])
    first = model.step(state, action, rng(3))
    second = model.step(state, action, rng(3))
    np.testing.assert_equal(first[1].observation, second[1].observation)
    assert state.best[0] == -np.inf


def test_sampling_draws_outcomes_whose_mean_is_the_expectation() -> None:
    bandit = Bandit()
    model = fitted(bandit, 150)
    attempt = BanditAttempt(np.zeros(4000, np.int64), np.tile([[1, 2]], (4000, 1)))
    expected, _ = model.predict(attempt, np.random.default_rng(0))
    model.sample = True
    drawn, _ = model.predict(attempt, np.random.default_rng(0))
    assert drawn.value.std() > 0
    assert drawn.value.mean() == pytest.approx(expected.value[0], abs=0.02)
    again, _ = model.predict(attempt, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn.value, again.value)


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Any) -> None:
    bandit = Bandit()
    model = fitted(bandit)
    model.save(tmp_path)
    loaded = OutcomeModel()
    loaded.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    loaded.load(tmp_path)
    attempt = every_design(2)
    (before, doubt), (after, doubt_again) = (each.predict(attempt, np.random.default_rng(0)) for each in (model, loaded))
    np.testing.assert_equal(asdict(before), asdict(after))
    np.testing.assert_equal(doubt, doubt_again)
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_loading_from_an_empty_folder_is_a_clear_error(tmp_path: Any) -> None:
    with pytest.raises(WorldModelError, match=r"outcome_model\.json is missing"):
        OutcomeModel().load(tmp_path)


def test_lost_executions_teach_nothing() -> None:
    bandit = Bandit(lose=1)
    model = fitted(bandit, 60)
    assert model.evidence is not None
    assert (model.evidence.outcome.known).all()
    assert model.executions < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_trees": 1}, "n_trees must be at least 2"),
        ({"min_executions": 1}, "min_executions must be at least 2"),
        ({"encoder": "bert"}, "encoder must be"),
        ({"neighbours": -1}, "neighbours must be at least 0, got -1"),
        ({"refit_share": -0.1}, r"refit_share must be 0 or more and finite, got -0\.1"),
        ({"capacity": 4}, "capacity must be at least min_executions, 8, got 4"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutcomeModel(**options)


def test_unbound_it_says_what_to_do() -> None:
    with pytest.raises(WorldModelError, match="wrap one in WorldModelWrapper"):
        OutcomeModel().begin(np.zeros((1, 5)), {"context": np.zeros(1)}, np.random.default_rng(0))


def test_held_out_errors_of_the_trees_are_honest() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((400, 4)).astype(np.float32)
    y = x[:, 0] + rng.normal(0, 0.3, 400)
    trees = BaggedTrees(32).fit(x, y)
    seen = np.mean((trees.predict(x)[0][:, 0] - y) ** 2)
    held_out = np.nanmean((trees.held_out_mean[:, 0] - y) ** 2)
    new = rng.random((2000, 4)).astype(np.float32)
    truly_new = np.mean((trees.predict(new)[0][:, 0] - new[:, 0] - rng.normal(0, 0.3, 2000)) ** 2)
    assert seen < 0.5 * held_out
    assert held_out == pytest.approx(truly_new, rel=0.25)


def scripts(count: int, *, tasks: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """A text environment of ``tasks`` tasks, and transitions of scripts whose outcomes follow from their words."""
    rng = np.random.default_rng(seed)
    text = AutoResearchText(["diabetes", "breast-cancer", "digits"][:tasks], limits=Limits(wall_s=5.0))
    observation, info = text.start(np.arange(count))
    good = {"forest": 0.8, "linear": 0.6, "boost": 0.9}
    words = [rng.choice(["forest", "linear", "boost", "crash"], p=[0.3, 0.2, 0.2, 0.3]) for _ in range(count)]
    actions = [f"```python\nimport os\n{word} = {rng.integers(1000)}\n```" for word in words]
    attempt = text.attempt(text.begin(observation, info), actions)
    status = np.array([RUNTIME_ERROR if word == "crash" else VALID for word in words])
    value = np.array(
        [good.get(word, 0.1) + (word != "crash") * 0.05 * context for word, context in zip(words, info["context"], strict=True)]
    )
    no, zeros = np.zeros(count, bool), np.zeros(count)
    feedback = np.array([f"told of {word}" for word in words], dtype=object)
    outcome = Outcome(status, value, value.copy(), feedback, ~no, zeros, zeros)
    return text, Transitions(observation, actions, zeros, observation, no, no, ~no, info["context"], attempt, outcome)


def taught(text: Any, transitions: Any, **options: Any) -> OutcomeModel:
    model = OutcomeModel(**({"n_trees": 16} | options))
    model.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    model.update(transitions, np.random.default_rng(0))
    return model


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


def fits_while_learning(count: int, **options: Any) -> tuple[OutcomeModel, int]:
    """A model that is given executions four at a time, and how many different fits it has had."""
    text, transitions = scripts(count)
    model = OutcomeModel(4, encoder="none", **options)
    model.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    fits: list[Any] = []
    for start in range(0, count, 4):
        model.update(batch.take(transitions, np.arange(start, start + 4)), np.random.default_rng(0))
        if model.fitted and (not fits or model._learnt.fit is not fits[-1]):
            fits.append(model._learnt.fit)
    return model, len(fits)


def test_forests_are_grown_anew_when_a_share_of_what_they_know_is_new() -> None:
    eager, each_time = fits_while_learning(240, refit_share=0.0)
    model, few = fits_while_learning(240, refit_share=0.25)
    assert each_time == 59, "at each update from the eighth execution on"
    assert few <= 1 + math.ceil(math.log(240 / 8) / math.log(1.25))
    assert model.executions == eager.executions == 240
    assert 240 / 1.25 < model.span.kept == model.span.end <= 240
    assert model.evidence is not None
    assert len(model.evidence.number) == 240, "what is new is kept until then"


def test_saved_between_two_fits_it_goes_on_the_same(tmp_path: Any) -> None:
    text, transitions = scripts(60)
    model = taught(text, batch.take(transitions, np.arange(40)), refit_share=0.3, neighbours=2)
    model.update(batch.take(transitions, np.arange(40, 46)), np.random.default_rng(0))
    assert (model.span.end, model.executions) == (40, 46)
    model.save(tmp_path)
    loaded = OutcomeModel()
    loaded.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    loaded.load(tmp_path)
    assert loaded.span == model.span
    rest = batch.take(transitions, np.arange(46, 60))
    for each in (False, True):
        if each:
            assert model.update(rest, np.random.default_rng(0)) == loaded.update(rest, np.random.default_rng(0))
            assert model.span.end == 60
        predictions = [one.predict(transitions.attempt, np.random.default_rng(0)) for one in (model, loaded)]
        np.testing.assert_equal(asdict(predictions[0][0]), asdict(predictions[1][0]))
        np.testing.assert_equal(predictions[0][1], predictions[1][1])


def test_a_forest_says_of_columns_that_never_change_just_that() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((200, 3)).astype(np.float32)
    y = np.eye(5)[np.where(x[:, 0] > 0.5, 1, 3)]
    trees = BaggedTrees(8).fit(x, y)
    mean, variance = trees.predict(x)
    assert mean.shape == variance.shape == trees.held_out_mean.shape == (200, 5)
    assert (mean[:, [0, 2, 4]] == 0).all()
    assert (variance[:, [0, 2, 4]] == 0).all()
    np.testing.assert_allclose(mean.sum(axis=1), 1.0)
    np.testing.assert_array_equal(trees.mean(x), mean)
    always = BaggedTrees(4).fit(x, np.full((200, 2), 0.5))
    np.testing.assert_array_equal(always.predict(x)[0], np.full((200, 2), 0.5))
