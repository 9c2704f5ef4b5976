"""``wmrl/LIBERO-v0``: quick starts that repeat, fixed initial states, LIBERO's sentence and its own check of success."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import wmrl_gym  # noqa: F401
from wmrl_gym.envs.manipulation import LiberoEnv
from wmrl_gym.envs.manipulation.libero import SUITES, Libero, missing_assets, split_of

pytestmark = pytest.mark.needs_gl


@pytest.fixture(scope="module")
def env() -> Iterator[gym.Env[Any, Any]]:
    """One scene for all tests here: it takes long to build."""
    made = gym.make("wmrl/LIBERO-v0", suite="libero_goal", task=1, image_size=48, cameras=["agentview", "robot0_eye_in_hand"])
    yield made
    made.close()


def test_all_suites_and_their_assets_are_there() -> None:
    assert missing_assets() is None
    counts = {suite: len(Libero(suite, height=16, width=16).tasks) for suite in SUITES}
    assert counts == {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}


def test_gymnasium_accepts_it_without_a_warning(env: gym.Env[Any, Any]) -> None:
    check_env(env.unwrapped, skip_render_check=True)  # which would build a second scene
    assert env.unwrapped.render() is None


def test_it_shows_two_cameras_a_robot_and_a_sentence(env: gym.Env[Any, Any]) -> None:
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    assert observation["image"].shape == observation["image_robot0_eye_in_hand"].shape == (48, 48, 3)
    assert observation["instruction"] == "put the bowl on the stove"
    assert info == {"is_success": False, "task": "put_the_bowl_on_the_stove", "context": 0}
    assert observation["image"].std() > 20


def test_the_same_seed_and_actions_give_the_same_episode(env: gym.Env[Any, Any]) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 7)).astype(np.float32)

    def play() -> list[Any]:
        seen = [env.reset(seed=3)[0]]
        return seen + [env.step(action)[0] for action in actions]

    first, second = play(), play()
    for left, right in zip(first, second, strict=True):
        assert (left["state"] == right["state"]).all()
        assert (left["image"] == right["image"]).all()
    assert (first[0]["state"] != first[-1]["state"]).any()


def test_fixed_initial_states_can_be_chosen(env: gym.Env[Any, Any]) -> None:
    states = env.unwrapped.simulator.states  # type: ignore[attr-defined]
    assert len(states) == 50
    images = [env.reset(seed=seed, options={"state": 7})[0]["image"] for seed in (0, 1)]
    assert (images[0] == images[1]).all()
    assert (env.reset(seed=0, options={"state": 8})[0]["image"] != images[0]).any()
    with pytest.raises(ValueError, match="initial states 0 to 49, got 50"):
        env.reset(options={"state": 50})


def test_success_is_liberos_own_check_and_ends_the_episode(env: gym.Env[Any, Any]) -> None:
    env.reset(seed=0)
    scene = env.unwrapped.simulator.env  # type: ignore[attr-defined]
    sim = scene.sim
    # There is no expert: the bowl is put on the stove by hand.
    bowl = next(name for name in sim.model.joint_names if "bowl" in name)
    stove = next(name for name in sim.model.site_names if "flat_stove" in name and "cook" in name)
    where = np.concatenate([sim.data.get_site_xpos(stove) + np.array([0, 0, 0.02]), [1, 0, 0, 0]])
    sim.data.set_joint_qpos(bowl, where)
    sim.forward()
    won = False
    for _ in range(15):
        _, reward, terminated, _, info = env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
        won = bool(info["is_success"])
        assert (reward, terminated) == (float(won), won)
        if won:
            break
    assert won
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(7, np.float32))


def test_splits_share_no_initial_state(env: gym.Env[Any, Any]) -> None:
    states = env.unwrapped.simulator.states  # type: ignore[attr-defined]
    inner, outer = set(split_of(states, "id").tolist()), set(split_of(states, "ood").tolist())
    assert inner & outer == set()
    assert inner | outer == set(range(50))
    assert (len(inner), len(outer)) == (35, 15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "libero_100"}, "suite must be one of libero_spatial"),
        ({"task": 10}, "libero_goal has the tasks 0 to 9, got 10"),
        ({"task": "put_the_bowl_on_the_stov"}, "the closest are put_the_bowl_on_the_stove"),
        ({"instruction": " "}, "must say something"),
        ({"cameras": "corner2"}, "there is no camera 'corner2'; there are agentview"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LiberoEnv(**options)


def test_nan_is_refused_and_there_is_no_expert(env: gym.Env[Any, Any]) -> None:
    env.reset(seed=0)
    with pytest.raises(ValueError, match="entry 6 of the action is nan"):
        env.unwrapped.step(np.array([0, 0, 0, 0, 0, 0, np.nan], np.float32))
    with pytest.raises(NotImplementedError, match="ships no scripted expert"):
        env.unwrapped.expert_action()  # type: ignore[attr-defined]
