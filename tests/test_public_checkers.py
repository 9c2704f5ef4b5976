"""The environments pass the checkers of Gymnasium and of Stable-Baselines3, bare and in all wrappers."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import InverseVarianceDenoising, corrected
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@pytest.mark.parametrize("name", ["wmrl/AutoResearch-v0", "wmrl/AutoResearchDesign-v0"])
def test_gymnasium_finds_nothing_to_warn_of(name: str) -> None:
    env = gym.make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("anchors", [0.0, 1.0])
def test_sb3_finds_nothing_to_warn_of_in_all_wrappers(anchors: float) -> None:
    env: Any = gym.make("wmrl/AutoResearchDesign-v0", task=["diabetes", "breast-cancer"], workers=2)
    model = OutcomeModel(8, encoder="none")
    wrapped = InverseVarianceDenoising(corrected(env, model, anchors=anchors, preset="recommended"))
    WorldModelVectorEnv(env.unwrapped.factored, model, num_envs=1, max_real=2, seed=0).warm_up(16)
    assert model.fitted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env_of_sb3(wrapped)
    wrapped.close()


@pytest.mark.parametrize("anchors", [0.0, 1.0])
def test_text_goes_through_the_world_model_too(anchors: float) -> None:
    env: Any = gym.make("wmrl/AutoResearch-v0", task="diabetes")
    model = OutcomeModel(8, min_executions=4)
    wrapped = corrected(env, model, anchors=anchors)
    observation, info = wrapped.reset(seed=0)
    good = 'import os, pandas as pd\nd = os.environ["DATA_DIR"]\ns = pd.read_csv(d + "/sample_submission.csv")\n'
    codes = [good + 's.to_csv(os.environ["SUBMISSION_PATH"], index=False)\n', "1 / 0\n", "import nothing_here\n", "print(1)\n"]
    for code in codes:  # the model knows nothing yet: a real episode
        observation, _, terminated, _, info = wrapped.step(f"```python\n{code}```")
        assert info["anchor"]
    assert terminated
    assert model.fitted
    observation, info = wrapped.reset()
    assert info["anchor"] is bool(anchors)
    observation, _, _, _, info = wrapped.step("```python\n2 / 0\n```")
    assert wrapped.observation_space.contains(observation)
    assert "ZeroDivisionError" in observation["feedback"] or not info["anchor"]
    observation, *_ = wrapped.step("```python\nthis is no python\n```")
    assert "SyntaxError" in observation["feedback"]  # the gate answers exactly, real or imagined
    wrapped.close()


def test_make_vec_imagines_where_it_is_given_a_world_model() -> None:
    envs = gym.make_vec(
        "wmrl/AutoResearchDesign-v0",
        num_envs=32,
        task="diabetes",
        world_model=OutcomeModel(8, encoder="none"),
        preset="recommended",
        anchors=0.1,
        warmup=12,
        max_real=2,
    )
    observation, _ = envs.reset(seed=0)
    for _ in range(3):
        observation, reward, *_ = envs.step(np.stack([envs.single_action_space.sample()] * 32))
    assert observation.shape == envs.observation_space.shape
    assert np.isfinite(reward).all()
    assert (reward != 0).all()
    envs.close()


def test_how_to_imagine_needs_a_world_model() -> None:
    with pytest.raises(ValueError, match="anchors say how to imagine, which needs world_model"):
        gym.make_vec("wmrl/AutoResearchDesign-v0", num_envs=2, anchors=0.1)
