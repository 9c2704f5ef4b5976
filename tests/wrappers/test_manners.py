"""Environments with a world model behave as every other Gymnasium environment does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TransformReward

import wmrl_gym  # noqa: F401 - registers the ids
from tests.bandit import Bandit
from tests.wrappers.goal import cart_pole
from tests.wrappers.nothing import Nothing
from wmrl_gym.envs.factored_env import FactoredEnv, FactoredVectorEnv
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel, WorldModel
from wmrl_gym.wrappers import (
    InverseVarianceDenoising,
    OnlineDebiasing,
    ResidualCorrection,
    WorldModelWrapper,
    corrected,
    world_model_parts,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv
from wmrl_gym.wrappers.vector import corrected as corrected_vector

PRESETS = ("recommended", "contextual", "smooth", "adaptive", "paper", "debias", "denoise")


class Plain(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


def wrapped() -> dict[str, Callable[[], gym.Env[Any, Any]]]:
    """Every wrapper of one environment."""
    made: dict[str, Callable[[], gym.Env[Any, Any]]] = {
        "imagined": lambda: WorldModelWrapper(cart_pole(), Nothing(), anchors=0.0, seed=0),
        "background": lambda: WorldModelWrapper(cart_pole(), Nothing(), anchors=1.0, anchor_mode="background", seed=0),
        "unfitted": lambda: corrected(cart_pole(), EnsembleDynamics(hidden=(8,)), seed=0),
        "weights": lambda: InverseVarianceDenoising(WorldModelWrapper(cart_pole(), Nothing(), seed=0), "gradient"),
        "guard": lambda: OnlineDebiasing(WorldModelWrapper(cart_pole(), Nothing(), seed=0), pessimism=1.0),
        "residual": lambda: ResidualCorrection(OnlineDebiasing(WorldModelWrapper(cart_pole(), Nothing(), seed=0)), 0.3),
        "wrapper between": lambda: OnlineDebiasing(TransformReward(WorldModelWrapper(cart_pole(), Nothing(), seed=0), float)),
    }
    return made | {name: lambda name=name: corrected(cart_pole(), Nothing(), preset=name, seed=0) for name in PRESETS}


@pytest.mark.parametrize("name", wrapped())
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
@pytest.mark.filterwarnings("ignore:.*A Box observation space (minimum|maximum) value is:UserWarning")
def test_gymnasiums_checker_accepts_a_wrapped_environment(name: str) -> None:
    env = wrapped()[name]()
    check_env(env, skip_render_check=True)  # drawing CartPole takes another library
    env.close()


@pytest.mark.parametrize("name", wrapped())
def test_a_specification_makes_a_wrapped_environment_again(name: str) -> None:
    env = wrapped()[name]()
    again = gym.make(env.spec)  # type: ignore[arg-type]
    kinds = []
    for layer in (env, again):
        kinds.append([])
        while isinstance(layer, gym.Wrapper):
            kinds[-1].append(type(layer).__name__)
            layer = layer.env
    assert kinds[0] == kinds[1]
    parts, others = world_model_parts(env), world_model_parts(again)
    assert parts is not None
    assert others is not None
    assert others.model is parts.model, "the weights are shared, and not copied"
    assert others.engine.options == parts.engine.options
    np.testing.assert_array_equal(env.reset(seed=3)[0], again.reset(seed=3)[0])
    env.close()
    again.close()


@pytest.mark.parametrize("name", wrapped())
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"])
def test_a_fresh_wrapped_environment_can_be_copied(name: str, copied: Any) -> None:
    env = wrapped()[name]()
    other = copied(env)
    for each in (env, other):
        each.reset(seed=1)
        each.action_space.seed(1)
    for _ in range(5):
        left, right = env.step(0), other.step(0)
        np.testing.assert_equal(left, right)
    env.close()
    other.close()


def test_a_fresh_vector_environment_can_be_copied() -> None:
    for envs in (
        corrected_vector("CartPole-v1", Nothing(), num_envs=3, seed=0),
        FactoredVectorEnv(Bandit(), 3),
    ):
        if isinstance(envs, FactoredVectorEnv):
            envs.factored._lock = None  # type: ignore[attr-defined]
        other = copy.deepcopy(envs)
        np.testing.assert_equal(envs.reset(seed=1), other.reset(seed=1))
        envs.close()
        other.close()


def test_a_seed_is_the_seed_that_was_given() -> None:
    for env in (WorldModelWrapper(cart_pole(), Nothing()), corrected(FactoredEnv(Bandit()), OutcomeModel(8, encoder="none"))):
        env.reset(seed=42)
        env.reset()
        assert env.np_random_seed == 42
        assert env.unwrapped._np_random is not None
    assert FactoredEnv(Bandit())._np_random is not None
    for envs in (WorldModelVectorEnv("CartPole-v1", Nothing(), num_envs=2), FactoredVectorEnv(Bandit(), 2)):
        envs.reset(seed=42)
        envs.reset()
        assert envs.np_random_seed == 42
        envs.reset(seed=[3, 4])
        assert envs.np_random_seed == (3, 4)
        envs.close()


def test_pair_numbers_begin_again_with_the_seed() -> None:
    env = WorldModelWrapper(cart_pole(), Nothing(), anchors=1.0)
    for _ in range(2):
        env.reset(seed=5)
        assert [env.step(0)[4]["pair"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: corrected(cart_pole(), Nothing()),
        lambda: FactoredEnv(Bandit()),
        lambda: corrected_vector("CartPole-v1", Nothing(), num_envs=2),
        lambda: FactoredVectorEnv(Bandit(), 2),
    ],
    ids=["single", "factored", "vector", "factored vector"],
)
def test_a_closed_environment_stays_closed_and_says_so(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError, match=r"reset\(\) of an environment that was closed"):
        env.reset(seed=0)
    with pytest.raises(ClosedEnvironmentError, match=r"step\(\) of an environment that was closed"):
        env.step(env.action_space.sample())


def test_a_wrapper_that_cannot_be_made_again_is_refused_where_a_second_instance_is_needed() -> None:
    below = Plain(cart_pole())
    with pytest.raises(ValueError, match="Plain below does not record its arguments"):
        WorldModelWrapper(below, Nothing(), anchor_mode="background")
    with pytest.raises(ValueError, match="second instance"):
        OnlineDebiasing(WorldModelWrapper(below, Nothing()), pessimism=1.0)
    WorldModelWrapper(below, Nothing()).reset(seed=0)


def test_a_trainer_reads_engine_model_and_corrections_of_any_stack() -> None:
    env: Any = TransformReward(corrected(cart_pole(), Nothing(), preset="recommended"), float)
    parts = world_model_parts(env)
    assert parts is not None
    assert [type(each).__name__ for each in parts.corrections] == ["Debiasing", "Residual"]
    assert (parts.debiasing, parts.residual, parts.denoising) == (*parts.corrections, None)
    assert isinstance(parts.model, WorldModel)
    assert parts.engine.model is parts.model
    assert world_model_parts(cart_pole()) is None
