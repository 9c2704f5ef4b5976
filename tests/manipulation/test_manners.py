"""What every Gymnasium environment does: it can be copied, made again, seeded, and stays closed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids

STATE: tuple[str, dict[str, Any]] = ("wmrl/VLAManipulationState-v0", {"task": ["reach", "push"]})
BLIND: tuple[str, dict[str, Any]] = ("wmrl/VLAManipulation-v0", {"task": "drawer-open", "cameras": ()})
SEEING: tuple[str, dict[str, Any]] = ("wmrl/VLA-drawer-open-v0", {"image_size": 32, "action_repeat": 2})
LIBERO: tuple[str, dict[str, Any]] = ("wmrl/LIBERO-v0", {"suite": "libero_object", "task": [0, 3], "image_size": 32})
QUICK = [STATE, BLIND, pytest.param(*SEEING, marks=pytest.mark.needs_gl)]
EVERY = [*QUICK, pytest.param(*LIBERO, marks=pytest.mark.needs_gl)]


def through_pickle(env: Any) -> Any:
    return pickle.loads(pickle.dumps(env))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(np.array_equal(left, right))


@pytest.mark.parametrize("copied", [through_pickle, copy.deepcopy])
@pytest.mark.parametrize(("name", "options"), QUICK)
def test_a_copy_of_a_fresh_environment_plays_the_same_episode(
    name: str, options: dict[str, Any], copied: Callable[[Any], Any]
) -> None:
    env = gym.make(name, **options)
    again = copied(env)
    assert same(env.reset(seed=3)[0], again.reset(seed=3)[0])
    action = env.action_space.sample()
    assert same(env.step(action)[0], again.step(action)[0])
    env.close()
    assert again.reset(seed=3)[1]["is_success"] is False  # closed is only the one that was closed
    again.close()


@pytest.mark.parametrize("copied", [through_pickle, copy.deepcopy])
@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_copy_knows_its_spaces_and_tasks(name: str, options: dict[str, Any], copied: Callable[[Any], Any]) -> None:
    env = gym.make(name, **options)
    again = copied(env)
    assert (again.observation_space, again.action_space) == (env.observation_space, env.action_space)
    assert again.unwrapped.tasks == env.unwrapped.tasks  # type: ignore[attr-defined]
    assert again.spec == env.spec
    env.close()
    again.close()


def test_a_copy_of_an_environment_in_use_begins_without_an_episode() -> None:
    env = gym.make(STATE[0], **STATE[1]).unwrapped
    env.reset(seed=0)
    again = copy.deepcopy(env)
    with pytest.raises(gym.error.ResetNeeded, match="none has begun"):
        again.step(np.zeros(4, np.float32))
    assert same(again.reset(seed=5)[0], env.reset(seed=5)[0])


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_it_is_made_again_from_its_specification(name: str, options: dict[str, Any]) -> None:
    env = gym.make(name, **options)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert again.observation_space == env.observation_space
    assert again.spec == env.spec
    assert again.unwrapped.tasks == env.unwrapped.tasks  # type: ignore[attr-defined]
    assert gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json())).observation_space == env.observation_space


def test_the_seed_that_reset_was_given_is_the_generators() -> None:
    env = gym.make(STATE[0], **STATE[1])
    env.reset(seed=41)
    env.reset()
    assert env.np_random_seed == env.unwrapped.np_random_seed == 41
    envs = gym.make_vec(STATE[0], num_envs=2, vectorization_mode="sync", **STATE[1])
    envs.reset(seed=[7, 9])
    assert [each.np_random_seed for each in envs.envs] == [7, 9]  # type: ignore[attr-defined]
    envs.close()


@pytest.mark.parametrize(("name", "options"), [STATE, BLIND, pytest.param(*LIBERO, marks=pytest.mark.needs_gl)])
def test_a_closed_environment_stays_closed_and_says_so(name: str, options: dict[str, Any]) -> None:
    env = gym.make(name, **options)
    if name != LIBERO[0]:  # whose scenes take seconds to build
        env.reset(seed=0)
    env.close()
    env.close()
    for call in (env.unwrapped.reset, env.unwrapped.render, env.unwrapped.expert_action):  # type: ignore[attr-defined]
        with pytest.raises(gym.error.ClosedEnvironmentError, match=r"\(\) was called on an environment that was closed"):
            call()
    with pytest.raises(gym.error.ClosedEnvironmentError, match=r"reset\(\) was called"):
        env.reset(seed=0)
    with pytest.raises(gym.error.ClosedEnvironmentError, match=r"step\(\) was called"):
        env.unwrapped.step(env.action_space.sample())


def test_closing_after_an_episodes_end_is_what_the_next_step_speaks_of() -> None:
    env = gym.make(STATE[0], max_episode_steps=1, **STATE[1])
    env.reset(seed=0)
    env.step(env.action_space.sample())
    with pytest.raises(gym.error.ResetNeeded):
        env.step(env.action_space.sample())
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.step(env.action_space.sample())


def test_an_expert_sees_nothing_before_the_first_reset() -> None:
    env: Any = gym.make(STATE[0], **STATE[1])
    with pytest.raises(gym.error.ResetNeeded, match="before expert_action"):
        env.unwrapped.expert_action()


@pytest.mark.needs_gl
def test_a_pickled_environment_chooses_its_opengl_where_it_arrives(tmp_path: Any) -> None:
    path = tmp_path / "env.pickle"
    path.write_bytes(pickle.dumps(gym.make(SEEING[0], **SEEING[1])))
    script = f"import pickle; env = pickle.load(open({str(path)!r}, 'rb')); print(env.reset(seed=0)[0]['image'].std() > 10)"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}  # neither MUJOCO_GL nor a display
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
