"""Every id of the package keeps Gymnasium's manners, executed for real and in a world model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import wmrl_gym  # noqa: F401 - registers the ids
from tests.wrappers.nothing import Nothing
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel
from wmrl_gym.wrappers import world_model_parts

IDS: dict[str, dict[str, Any]] = {
    "wmrl/AutoResearch-v0": {"task": "diabetes"},
    "wmrl/AutoResearchDesign-v0": {"task": "diabetes"},
    "wmrl/VLAManipulationState-v0": {"task": "drawer-open"},
}


def imagining(name: str) -> dict[str, Any]:
    """Arguments that put an id in a world model."""
    model = EnsembleDynamics(hidden=(8,)) if "VLA" in name else OutcomeModel(8, encoder="none")
    return {"world_model": model, "preset": "recommended", "anchors": 0.2, "seed": 0}


@pytest.fixture(autouse=True)
def task_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Embedded tasks are written here and not into the user's cache."""
    home = tmp_path_factory.getbasetemp() / "wmrl-home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WMRL_HOME", str(home))
        yield home


@pytest.fixture(params=[(name, modelled) for name in IDS for modelled in (False, True)], ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[gym.Env[Any, Any]]:
    """An id's environment, in a world model or not."""
    name, modelled = request.param
    env = gym.make(name, **IDS[name], **(imagining(name) if modelled else {}))
    yield env
    env.close()


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
@pytest.mark.filterwarnings("ignore:.*A Box .* space (minimum|maximum) value is:UserWarning")
def test_gymnasiums_checker_accepts_it(made: gym.Env[Any, Any]) -> None:
    check_env(made, skip_render_check="VLA" in str(made.spec))  # images take a GL


def test_a_fresh_one_can_be_copied(made: gym.Env[Any, Any]) -> None:
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        np.testing.assert_equal(other.reset(seed=1)[1], made.reset(seed=1)[1])
        other.close()


def test_its_specification_makes_it_again(made: gym.Env[Any, Any]) -> None:
    again = gym.make(made.spec)  # type: ignore[arg-type]
    assert str(again).count("<") == str(made).count("<")
    np.testing.assert_equal(again.reset(seed=1)[1], made.reset(seed=1)[1])
    parts, others = world_model_parts(made), world_model_parts(again)
    assert (parts is None) == (others is None)
    if parts is not None and others is not None:
        assert others.model is parts.model
        assert others.engine.options == parts.engine.options
    again.close()


def test_make_and_make_vec_take_the_same_arguments() -> None:
    shared = {"anchors": 0.3, "group_size": 1, "max_model_steps": 2, "imagined_info": {"is_success": False}, "replaces": "step"}
    one = gym.make(
        "wmrl/AutoResearchDesign-v0", task="diabetes", world_model=OutcomeModel(8, encoder="none"), max_episode_steps=2, **shared
    )
    many = gym.make_vec(
        "wmrl/AutoResearchDesign-v0",
        num_envs=2,
        task="diabetes",
        world_model=OutcomeModel(8, encoder="none"),
        max_episode_steps=2,
        **shared,
    )
    parts, others = world_model_parts(one), world_model_parts(many)
    assert parts is not None
    assert others is not None
    for name in shared:
        assert getattr(parts.engine.options, name) == getattr(others.engine.options, name) == shared[name]
    assert others.engine.options.max_episode_steps == 2
    one.reset(seed=0)
    assert [one.step(np.zeros(9, int))[3] for _ in range(2)] == [False, True]
    one.close()
    many.close()
    plain = gym.make_vec("wmrl/AutoResearchDesign-v0", num_envs=2, task="diabetes", max_episode_steps=1)
    plain.reset(seed=0)
    assert plain.step(np.zeros((2, 9), int))[3].all()
    plain.close()


@pytest.mark.parametrize("options", [{"anchors": 0.1}, {"preset": "paper"}, {"replaces": "reward"}])
def test_options_that_say_how_to_imagine_need_a_world_model(options: dict[str, Any]) -> None:
    for make in (gym.make, gym.make_vec):
        with pytest.raises(ValueError, match="say how to imagine, which needs world_model"):
            make("wmrl/AutoResearchDesign-v0", task="diabetes", **options)


def test_a_limit_outside_still_lets_background_anchors_be_executed() -> None:
    env = gym.make(
        "wmrl/VLAManipulationState-v0",
        task="drawer-open",
        world_model=Nothing(),
        anchors=1.0,
        anchor_mode="background",
        max_episode_steps=3,
    )
    parts = world_model_parts(env)
    assert parts is not None
    for _ in range(2):
        env.reset()
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    env.reset()
    assert parts.engine.wait(60)
    assert len(parts.engine.stream) == 6
    env.close()
