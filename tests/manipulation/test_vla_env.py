"""``wmrl/VLAManipulation-v0``: seeds hold, images are upright, targets stay out of sight, bad input is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import wmrl_gym  # noqa: F401
from wmrl_gym.envs.manipulation.env import EpisodeRules
from wmrl_gym.envs.manipulation.instructions import instruction_table
from wmrl_gym.envs.manipulation.metaworld import CAMERAS, FREE_TARGETS
from wmrl_gym.registration import METAWORLD_TASKS


@pytest.fixture
def made() -> Iterator[Any]:
    """A function that makes environments, all of them closed at the end."""
    envs: list[gym.Env[Any, Any]] = []

    def make(name: str = "wmrl/VLAManipulation-v0", **options: Any) -> gym.Env[Any, Any]:
        if "State" not in name:
            options.setdefault("image_size", 64)
        envs.append(gym.make(name, **options))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def play(env: gym.Env[Any, Any], *, seed: int, steps: int = 6) -> list[Any]:
    """Observations and rewards of a few random steps."""
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen: list[Any] = [observation, info]
    for _ in range(steps):
        seen += env.step(env.action_space.sample())
    return seen


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(np.array_equal(left, right))


@pytest.mark.needs_gl
@pytest.mark.parametrize("name", ["wmrl/VLAManipulation-v0", "wmrl/VLAManipulationState-v0", "wmrl/VLA-drawer-open-v0"])
def test_gymnasium_accepts_it_without_a_warning(made: Any, name: str) -> None:
    check_env(made(name, render_mode="rgb_array", image_size=32).unwrapped)


def test_every_task_is_registered_under_its_own_id() -> None:
    for task in METAWORLD_TASKS:
        assert gym.spec(f"wmrl/VLA-{task}-v0").kwargs == {"task": task}


@pytest.mark.needs_gl
@pytest.mark.parametrize("task", ["reach", "push", "stick-pull"])
def test_the_same_seed_gives_the_same_episode(made: Any, task: str) -> None:
    first, second = made(task=task), made(task=task)
    play(first, seed=3, steps=15)  # what happened before must not matter
    for left, right in zip(play(first, seed=7), play(second, seed=7), strict=True):
        assert same(left, right)


def test_other_seeds_give_other_episodes(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task="reach")
    targets = {tuple(env.reset(seed=seed)[0][-3:]) for seed in range(5)}
    assert len(targets) == 5


def test_a_run_that_is_seeded_once_goes_on_with_new_episodes_that_can_be_repeated(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task="push")

    def run() -> list[Any]:
        return [env.reset(seed=5)[0]] + [env.reset()[0] for _ in range(3)]

    first, second = run(), run()
    assert all(same(left, right) for left, right in zip(first, second, strict=True))
    assert len({observation.tobytes() for observation in first}) == 4


def test_splits_share_no_initial_state_and_ood_ones_lie_further_out(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task="drawer-open")
    where = {
        split: [abs(float(env.reset(seed=seed, options={"split": split})[0][-3])) for seed in range(12)]
        for split in ("id", "ood")
    }
    assert max(where["id"]) < min(where["ood"])


@pytest.mark.needs_gl
def test_nothing_of_the_target_is_in_the_observation(made: Any) -> None:
    env = made(task="reach", goal="hidden", instruction="go")
    simulator = env.unwrapped.simulator
    observations = []
    for seed in (0, 1):
        observation, _ = env.reset(seed=seed)
        observations.append((observation, simulator.target.copy()))
    (left, one), (right, other) = observations
    assert not np.allclose(one, other)
    np.testing.assert_array_equal(left["state"], right["state"])


@pytest.mark.needs_gl
def test_markers_are_drawn_only_where_they_are_asked_for(made: Any) -> None:
    frames = {}
    for goal in ("hidden", "language", "marker"):
        frames[goal] = made(task="reach", goal=goal, phrasing="plain").reset(seed=0)[0]["image"].astype(int)
    assert np.abs(frames["hidden"] - frames["language"]).max() == 0
    assert np.abs(frames["hidden"] - frames["marker"]).max() > 40


def test_words_say_where_a_target_in_empty_space_is(made: Any) -> None:
    env = made(task=["reach", "drawer-open"], phrasing="plain", cameras=())
    said = {env.reset(seed=seed, options={"task": "reach"})[0]["instruction"] for seed in range(6)}
    assert len(said) > 1
    assert all(sentence.startswith("move the gripper to the target: ") for sentence in said)
    assert env.reset(seed=0, options={"task": "drawer-open"})[0]["instruction"] == "open the drawer"
    assert set(METAWORLD_TASKS) > FREE_TARGETS


@pytest.mark.parametrize("phrasing", ["train", "held_out"])
def test_sentences_come_from_the_phrasing_that_was_asked_for(made: Any, phrasing: Any) -> None:
    env = made(task="drawer-open", phrasing=phrasing, cameras=())
    said = {env.reset(seed=seed)[0]["instruction"] for seed in range(12)}
    assert said == set(instruction_table()["drawer-open"].of(phrasing))


def row_of_ball(simulator: Any, camera: str, where: tuple[float, float, float]) -> float | None:
    """The mean row of a purple ball at ``where``; None where the camera does not see it."""
    model, data, cameras = simulator.env.model, simulator.env.data, simulator._cameras
    cameras[simulator._task].show_sites = True
    site = model.site("goal").id
    model.site_rgba[site], model.site_size[site] = (1, 0, 1, 1), 0.04
    data.site_xpos[site] = (0.0, 0.0, -9.0)  # out of sight
    before = simulator.image(camera).astype(int)
    data.site_xpos[site] = where
    changed = np.abs(simulator.image(camera).astype(int) - before).max(axis=-1) > 30
    return float(np.argwhere(changed)[:, 0].mean()) if changed.any() else None


@pytest.mark.needs_gl
def test_images_are_upright(made: Any) -> None:
    env = made(task="reach", cameras=[name for name in CAMERAS if name != "gripperPOV"])
    env.reset(seed=0)
    simulator = env.unwrapped.simulator
    for camera in env.unwrapped.cameras:
        seen = 0
        for x in (-0.25, 0.25):
            low, high = (x, 0.7, 0.1), (x, 0.7, 0.35)
            if camera == "topview":  # seen from above, what is further away is higher up
                low, high = (x, 0.5, 0.1), (x, 0.8, 0.1)
            rows = row_of_ball(simulator, camera, low), row_of_ball(simulator, camera, high)
            if None not in rows:
                assert rows[1] < rows[0] - 2, camera  # type: ignore[operator]
                seen += 1
        assert seen, camera


@pytest.mark.needs_gl
def test_a_second_camera_is_a_second_image(made: Any) -> None:
    env = made(task="drawer-open", cameras=["corner2", "gripperPOV"], image_size=(48, 64))
    observation, _ = env.reset(seed=0)
    assert observation["image"].shape == observation["image_gripperPOV"].shape == (48, 64, 3)
    assert np.abs(observation["image"].astype(int) - observation["image_gripperPOV"]).mean() > 10


@pytest.mark.needs_gl
def test_fast_rendering_changes_what_is_seen_little_and_what_happens_not_at_all(made: Any) -> None:
    fast, exact = made(task="drawer-open"), made(task="drawer-open", rendering="exact")
    seen = [play(env, seed=0, steps=2) for env in (fast, exact)]
    assert same(seen[0][0]["state"], seen[1][0]["state"])
    assert same(seen[0][7]["state"], seen[1][7]["state"])
    difference = np.abs(seen[0][0]["image"].astype(int) - seen[1][0]["image"]).mean()
    assert 0 < difference < 25


@pytest.mark.parametrize("task", ["drawer-open", "button-press", "reach", "door-open", "faucet-open", "pick-place"])
def test_scripted_experts_succeed_and_success_ends_the_episode(made: Any, task: str) -> None:
    env = made("wmrl/VLAManipulationState-v0", task=task)
    env.reset(seed=1)
    over, steps, info = False, 0, {}
    reward = 0.0
    while not over:
        assert reward == 0.0
        _, reward, terminated, truncated, info = env.step(env.unwrapped.expert_action())
        over, steps = terminated or truncated, steps + 1
    assert info["is_success"]
    assert (reward, terminated) == (1.0, True)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.unwrapped.step(env.action_space.sample())


def test_the_dense_reward_pays_every_step_and_does_not_end_with_success(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task="reach", reward="dense")
    env.reset(seed=0)
    rewards, won, terminated = [], False, False
    for _ in range(60):
        _, reward, terminated, _, info = env.step(env.unwrapped.expert_action())
        rewards.append(float(reward))
        won |= info["is_success"]
        assert not terminated
    assert won
    assert rewards[-1] > 3 * rewards[0] > 0


def test_the_time_limit_truncates_and_stepping_on_is_refused(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task="reach", max_episode_steps=3)
    env.reset(seed=0)
    for step in range(3):
        *_, terminated, truncated, _ = env.step(np.zeros(4, np.float32))
        assert (terminated, truncated) == (False, step == 2)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(4, np.float32))


def test_several_tasks_are_drawn_and_named(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0", task=["reach", "push", "drawer-open"])
    infos = [env.reset(seed=seed)[1] for seed in range(12)]
    assert {info["task"] for info in infos} == {"reach", "push", "drawer-open"}
    for info in infos:
        assert ["reach", "push", "drawer-open"][info["context"]] == info["task"]
    observation, info = env.reset(seed=0, options={"task": "push"})
    assert info["task"] == "push"
    assert observation[-3:].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "drawer-opne"}, "the closest are drawer-open"),
        ({"task": []}, "expected one task or several different ones"),
        ({"task": ["reach", "reach"]}, "several different ones"),
        ({"instruction": ""}, "must say something"),
        ({"reward": "shaped"}, '"sparse" or "dense"'),
        ({"split": "test"}, '"id", "ood" or "all"'),
        ({"phrasing": "poetic"}, '"plain", "train" or "held_out"'),
        ({"cameras": "front"}, "there is no camera 'front'; there are corner"),
        ({"image_size": 8}, "16 to 1024 pixels, got 8"),
        ({"goal": "shown"}, '"language", "marker" or "hidden"'),
        ({"out_of_range": "wrap"}, '"clip" or "error"'),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    from wmrl_gym.envs.manipulation import VLAManipulationEnv

    with pytest.raises(ValueError, match=message):
        VLAManipulationEnv(**options)


def test_an_unknown_option_of_reset_is_refused(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0")
    with pytest.raises(ValueError, match="reset\\(\\) knows the options task, split, instruction, state, got 'goal'"):
        env.reset(options={"goal": 1})


def test_nan_in_an_action_is_refused_by_its_entry(made: Any) -> None:
    env = made("wmrl/VLAManipulationState-v0")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="entry 2 of the action is nan"):
        env.unwrapped.step(np.array([0, 0, np.nan, 0], np.float32))


@pytest.mark.needs_gl
def test_rendering_before_reset_is_refused(made: Any) -> None:
    env = made(render_mode="rgb_array")
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.unwrapped.render()
    env.reset(seed=0)
    assert env.render().shape == (64, 64, 3)


def test_rules_decide_by_themselves_whether_success_ends_an_episode() -> None:
    assert EpisodeRules(reward="sparse").ends_on_success
    assert not EpisodeRules(reward="dense").ends_on_success
    assert EpisodeRules(reward="dense", terminate_on_success=True).ends_on_success


def test_an_action_that_is_repeated_does_what_as_many_single_steps_do(made: Any) -> None:
    options = {"task": "drawer-open", "reward": "dense"}
    once = made("wmrl/VLAManipulationState-v0", **options)
    thrice = made("wmrl/VLAManipulationState-v0", action_repeat=3, **options)
    once.reset(seed=1)
    thrice.reset(seed=1)
    action = np.array([0.3, 0.5, -0.2, 1.0], np.float32)
    single = [once.step(action) for _ in range(3)]
    observation, reward, *_ = thrice.step(action)
    assert np.array_equal(observation, single[-1][0])
    assert reward == pytest.approx(sum(step[1] for step in single))
    assert (once.metadata["render_fps"], thrice.metadata["render_fps"]) == (80, 27)


def test_an_action_is_repeated_no_further_than_the_success_that_ends_the_episode(made: Any) -> None:
    single = made("wmrl/VLAManipulationState-v0", task="reach")
    repeated = made("wmrl/VLAManipulationState-v0", task="reach", action_repeat=50)
    start, _ = single.reset(seed=2)
    repeated.reset(seed=2)
    way = start[-3:] - start[:3]  # straight from the hand to the target
    action = np.append(way / np.abs(way).max(), 0.0).astype(np.float32)
    over = False
    while not over:
        expected, _, over, _, _ = single.step(action)
    observation, reward, terminated, _, info = repeated.step(action)
    assert np.array_equal(observation, expected)
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)


def test_an_action_must_be_applied_at_least_once() -> None:
    with pytest.raises(ValueError, match="action_repeat must be at least 1, got 0"):
        EpisodeRules(action_repeat=0)


@pytest.mark.needs_gl
def test_without_cameras_the_robot_feels_and_reads_but_sees_nothing(made: Any) -> None:
    seeing, blind = made(task="drawer-open"), made(task="drawer-open", cameras=())
    expected, felt = seeing.reset(seed=4)[0], blind.reset(seed=4)[0]
    assert set(felt) == {"instruction", "state"} == set(expected) - {"image"}
    assert felt["instruction"] == expected["instruction"]
    assert np.array_equal(felt["state"], expected["state"])
    with pytest.raises(ValueError, match="needs a camera"):
        made(task="drawer-open", cameras=(), render_mode="rgb_array")
