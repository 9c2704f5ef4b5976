"""Vector environments: real executions on several threads, autoreset in each mode, Sync and Async workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.autoresearch.small_tasks import BROKEN, QUICK, write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchDesignEnv, AutoResearchText
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.sandbox import Sandbox

ACTIONS = np.stack([QUICK, BROKEN, QUICK, BROKEN])


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("vector")
    return [
        write_small_task(root / name, metric="accuracy", kind="multiclass", larger_is_better=True)
        for name in ("ant", "bee", "cow", "dog")
    ]


def vector(directories: list[Path], sandbox: Sandbox, mode: AutoresetMode | str, **options: Any) -> FactoredVectorEnv:
    logic = AutoResearchDesign(directories, sandbox=sandbox, max_turns=2, **options)
    return FactoredVectorEnv(logic, 4, max_real=2, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_env_equals_gymnasium_over_single_envs(mode: AutoresetMode, directories: list[Path], sandbox: Sandbox) -> None:
    ours = vector(directories, sandbox, mode)
    theirs = SyncVectorEnv(
        [lambda: AutoResearchDesignEnv(directories, sandbox=sandbox, max_turns=2) for _ in range(4)], autoreset_mode=mode
    )
    (mine, my_info), (gyms, gym_info) = ours.reset(seed=5), theirs.reset(seed=5)
    np.testing.assert_array_equal(mine, gyms)
    assert set(my_info) == set(gym_info)
    for _ in range(4):
        left, right = ours.step(ACTIONS), theirs.step(ACTIONS)
        for a, b in zip(left[:4], right[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert set(left[4]) == set(right[4])
        for key in ("context", "status", "reward_due", "reward_valid", "_status", "_final_info", "_final_obs"):
            if key in right[4]:
                np.testing.assert_array_equal(left[4][key], right[4][key], err_msg=key)
    ours.close()


def test_in_the_same_step_the_paying_info_is_in_final_info(directories: list[Path], sandbox: Sandbox) -> None:
    envs = vector(directories, sandbox, "SameStep")
    envs.reset(seed=0)
    envs.step(ACTIONS)
    _, reward, terminated, _, infos = envs.step(ACTIONS)
    assert terminated.all()
    assert reward[1] == pytest.approx(0.1)
    assert infos["final_info"]["reward_due"].all()
    assert not infos["reward_due"].any()
    assert infos["final_info"]["status"].tolist() == [5, 2, 5, 2]
    assert (infos["status"] == -1).all()


def test_equal_seeds_make_a_group_that_stays_together(directories: list[Path], sandbox: Sandbox) -> None:
    envs = vector(directories, sandbox, "NextStep")
    observation, infos = envs.reset(seed=[7, 7, 8, 8])
    assert infos["context"][0] == infos["context"][1]
    assert infos["context"][2] == infos["context"][3]
    contexts = set()
    for _ in range(9):
        observation, _, _, _, infos = envs.step(ACTIONS)
        assert infos["context"][0] == infos["context"][1]
        contexts.add(int(infos["context"][0]))
    assert len(contexts) > 1
    assert observation in envs.observation_space


def test_costs_are_attributes_and_never_info(directories: list[Path], sandbox: Sandbox) -> None:
    envs = vector(directories, sandbox, "NextStep")
    envs.reset(seed=0)
    *_, infos = envs.step(ACTIONS)
    assert (envs.last_cost["wall_s"] > 0).all()
    assert not any("cost" in key or "wall" in key or "cpu" in key for key in infos)
    envs.step(ACTIONS)
    envs.step(ACTIONS)  # a reset of all slots
    assert not envs.last_cost["wall_s"].any()


def test_a_part_of_the_slots_can_be_reset(directories: list[Path], sandbox: Sandbox) -> None:
    envs = vector(directories, sandbox, "Disabled")
    envs.reset(seed=0)
    envs.step(ACTIONS)
    mask = np.array([True, False, False, True])
    observation, infos = envs.reset(seed=3, options={"reset_mask": mask, "task": "cow"})
    names = envs.factored.observation_names  # type: ignore[attr-defined]
    assert infos["context"][mask].tolist() == [2, 2]
    assert infos["_context"].tolist() == mask.tolist()
    assert observation[:, names.index("turn")].tolist() == [0.0, 0.5, 0.5, 0.0]
    _, _, terminated, _, _ = envs.step(ACTIONS)
    assert terminated.tolist() == [False, True, True, False]


def test_texts_in_a_vector_env(directories: list[Path], sandbox: Sandbox) -> None:
    envs = FactoredVectorEnv(
        AutoResearchText(directories, sandbox=sandbox, max_turns=2), 3, max_real=2, autoreset_mode="SameStep"
    )
    observation, _ = envs.reset(seed=0)
    assert observation in envs.observation_space
    replies = ("DESCRIBE", "what?", "```python\nprint('é🙂')\n```")
    observation, *_ = envs.step(replies)
    assert "Predict y from x." in observation["feedback"][0]
    assert "malformed" in observation["feedback"][1]
    assert "é🙂" in observation["feedback"][2]
    observation, reward, terminated, _, infos = envs.step(replies)
    assert reward.tolist() == [0.0, 0.0, 0.2]
    assert terminated.all()
    assert observation["feedback"] == ("", "", "")
    assert "é🙂" in infos["final_obs"][2]["feedback"]


def test_fewer_than_one_thread_is_refused(directories: list[Path]) -> None:
    with pytest.raises(ValueError, match="max_real must be at least 1, got 0"):
        FactoredVectorEnv(AutoResearchDesign(directories), 2, max_real=0)


def make_text(directory: str) -> gym.Env[Any, Any]:
    """Module-level, so that a spawned worker finds it; the id is registered by naming the module."""
    return gym.make("wmrl_gym:wmrl/AutoResearch-v0", task=directory, max_turns=2)


class Maker:
    """A picklable maker of one environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def __call__(self) -> gym.Env[Any, Any]:
        return make_text(self.directory)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasiums_own_vector_envs_carry_the_text_environment(kind: str, directories: list[Path]) -> None:
    makers = [Maker(directory) for directory in directories[:2]]
    envs: gym.vector.VectorEnv[Any, Any, Any]
    envs = SyncVectorEnv(makers) if kind == "sync" else AsyncVectorEnv(makers, context="spawn")
    try:
        observation, infos = envs.reset(seed=0)
        assert infos["status"].tolist() == [-1, -1]
        assert observation["task"][0].startswith("Task ant")
        observation, reward, terminated, _, infos = envs.step(("DESCRIBE", "```python\nprint('ünï\\ncode')\n```"))
        assert "Predict y from x." in observation["feedback"][0]
        assert "ünï\ncode" in observation["feedback"][1]
        assert not terminated.any()
        _, reward, terminated, _, infos = envs.step(("nothing", "nothing"))
        assert reward.tolist() == [0.0, 0.2]
        assert terminated.all()
        assert infos["reward_due"].all()
    finally:
        envs.close()
