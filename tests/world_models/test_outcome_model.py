"""The outcome model on an environment whose truth is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.bandit import Bandit, BanditAttempt
from tests.wrappers.test_world_model_wrapper import fitted
from wmrl_gym.world_models import Interface, OutcomeModel, WorldModelError
from wmrl_gym.world_models.forest import BaggedTrees


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
    model = OutcomeModel(text_encoder="none")
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
    assert model._evidence is not None
    assert (model._evidence.outcome.known).all()
    assert model.executions < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_trees": 1}, "n_trees must be at least 2"),
        ({"min_executions": 1}, "min_executions must be at least 2"),
        ({"text_encoder": "bert"}, "text_encoder must be"),
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
