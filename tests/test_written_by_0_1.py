"""What version 0.1 wrote is read: checkpoints and recorded episodes that it left in ``tests/written_by_0_1``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit, BanditAttempt
from tests.world_models.real_steps import random_steps
from wmrl_gym.data.demonstrations import EpisodeFolder
from wmrl_gym.world_models import EnsembleDynamics, Interface, LLMWorldModel, OutcomeModel, WorldModelError, load_model

WRITTEN = Path(__file__).parent / "written_by_0_1"


def test_an_ensemble_predicts_and_goes_on_from_its_transitions(tmp_path: Path) -> None:
    model = load_model(WRITTEN / "dynamics")
    assert isinstance(model, EnsembleDynamics)
    env = gym.make("Pendulum-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    assert model.fitted
    assert model.span.end == model.span.kept >= 60
    rng, starts = np.random.default_rng(0), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 2.0]], np.float32)
    _, prediction = model.step(model.begin(starts, {}, rng), np.zeros((2, 1), np.float32), rng)
    assert np.isfinite(prediction.reward).all()
    assert env.observation_space.contains(prediction.observation[0])
    model.save(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, EnsembleDynamics)
    assert again.span == model.span


def test_an_outcome_model_predicts_what_it_predicted() -> None:
    bandit, model = Bandit(), load_model(WRITTEN / "outcome")
    assert isinstance(model, OutcomeModel)
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    designs = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2)
    outcome, std = model.predict(BanditAttempt(np.zeros(16, np.int64), designs), np.random.default_rng(0))
    expected = json.loads((WRITTEN / "outcome.expected.json").read_text())
    np.testing.assert_allclose(outcome.value, expected["value"])
    np.testing.assert_allclose(std, expected["std"])


def test_a_model_that_asks_a_language_model_knows_its_server() -> None:
    model = load_model(WRITTEN / "llm")
    assert isinstance(model, LLMWorldModel)
    assert repr(model.backend) == "ChatClient('http://127.0.0.1:9/v1', 'small')"


def test_recorded_episodes_are_read() -> None:
    folder = EpisodeFolder(WRITTEN / "episodes")
    assert folder.collection.env_id == "CartPole-v1"
    assert [episode.seed for episode in folder] == [0, 1]
    assert all(len(episode.transitions()) == len(episode) > 5 for episode in folder)


def test_arrays_of_another_save_are_refused_where_a_stamp_says_so(tmp_path: Path) -> None:
    model = load_model(WRITTEN / "dynamics")
    env = gym.make("Pendulum-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    model.save(tmp_path / "a")
    model.update(random_steps("Pendulum-v1", 20), np.random.default_rng(0))
    model.save(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "dynamics.safetensors", tmp_path / "b")
    with pytest.raises(WorldModelError, match="are of two different EnsembleDynamicss"):
        load_model(tmp_path / "b")
