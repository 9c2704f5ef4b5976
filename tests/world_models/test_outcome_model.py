"""The outcome model on an environment whose truth is known."""

from __future__ import annotations

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
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits
from wmrl_gym.world_models import Interface, OutcomeModel, WorldModelError
from wmrl_gym.world_models.outcome.forests import BaggedTrees


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
