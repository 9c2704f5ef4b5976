"""What is saved is read again, or it is said what is wrong with it; whatever kind of model it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.world_models.real_steps import random_steps
from wmrl_gym.data.demonstrations import Episode
from wmrl_gym.world_models import (
    ChatClient,
    EnsembleDynamics,
    Interface,
    LLMWorldModel,
    OutcomeModel,
    ProgressModel,
    WorldModel,
    WorldModelError,
    load_model,
)
from wmrl_gym.world_models.storage import Layout


def ensemble() -> WorldModel:
    env = gym.make("Pendulum-v1")
    model = EnsembleDynamics((8,), min_transitions=20, max_gradient_steps=2)
    model.bind(Interface(env.observation_space, env.action_space))
    model.update(random_steps("Pendulum-v1", 60), np.random.default_rng(0))
    return model


def outcome() -> WorldModel:
    bandit = Bandit()
    model = OutcomeModel(encoder="none")
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    return model


def language() -> WorldModel:
    return LLMWorldModel(ChatClient("http://127.0.0.1:9/v1", "small"))


def progress() -> WorldModel:
    n = 6
    seen = {"image": np.zeros((n + 1, 16, 16, 3), np.uint8), "instruction": np.array(["open"] * (n + 1), object)}
    shown = Episode(seen, np.zeros((n, 2), np.float32), np.eye(n)[-1], True, False, True, "open", "open", 0)
    model = ProgressModel()
    model.fit([shown], steps=1)
    return model


MODELS = {"dynamics.json": ensemble, "outcome_model.json": outcome, "llm_world_model.json": language, "progress.json": progress}


@pytest.fixture(params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The document of a saved model."""
    MODELS[request.param]().save(tmp_path)
    return tmp_path / request.param


def test_it_is_loaded_whatever_it_is(saved: Path) -> None:
    model = load_model(saved.parent)
    assert type(model).__name__ == json.loads(saved.read_text())["model"]
    assert not list(saved.parent.glob("*.part"))


def changed(key: str, value: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), key: value})


def without(key: str) -> Callable[[str], str]:
    return lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != key})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: "[" * 100_000, "is damaged: RecursionError"),
        (without("format"), "is damaged: KeyError"),
        (changed("format", 99), r"of format 99, expected \w+ of format \d"),
        (changed("model", "Oracle"), r"holds Oracle of format \d, expected \w+ of format \d"),
    ],
)
def test_a_damaged_document_is_said(damage: Callable[[str], str], message: str, saved: Path) -> None:
    saved.write_text(damage(saved.read_text()))
    with pytest.raises(WorldModelError, match=message):
        load_model(saved.parent)


@pytest.mark.parametrize("kind", ["dynamics.json", "outcome_model.json", "progress.json"])
def test_damaged_or_missing_arrays_are_said(kind: str, tmp_path: Path) -> None:
    MODELS[kind]().save(tmp_path)
    (arrays,) = tmp_path.glob("*.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:5])
    with pytest.raises(WorldModelError, match="is damaged: SafetensorError"):
        load_model(tmp_path)
    arrays.unlink()
    with pytest.raises(WorldModelError, match=rf"{arrays.name} is missing"):
        load_model(tmp_path)
    arrays.mkdir()
    with pytest.raises(WorldModelError, match="is damaged: "):
        load_model(tmp_path)


def test_a_save_that_is_interrupted_leaves_what_was_there(tmp_path: Path) -> None:
    layout = Layout("Any", 1, "any.json")
    layout.write(tmp_path, {"number": 1})
    with pytest.raises(TypeError):
        layout.write(tmp_path, {"number": object()})
    with layout.reading(tmp_path) as (document, arrays):
        assert (document["number"], arrays) == (1, {})


def test_the_list_of_kinds_is_true() -> None:
    from wmrl_gym import world_models
    from wmrl_gym.world_models.attempts import AttemptModel
    from wmrl_gym.world_models.dynamics import checkpoint as of_dynamics
    from wmrl_gym.world_models.llm import saving as of_language
    from wmrl_gym.world_models.loading import MODELS as KINDS
    from wmrl_gym.world_models.outcome import checkpoint as of_outcomes
    from wmrl_gym.world_models.progress import model as of_progress

    layouts = {each.LAYOUT.model: each.LAYOUT.document for each in (of_dynamics, of_language, of_outcomes, of_progress)}
    assert {kind.model: kind.document for kind in KINDS.values()} == layouts
    for kind in KINDS.values():
        assert kind.model in world_models.__all__
        assert issubclass(getattr(world_models, kind.model), AttemptModel) == kind.factored
