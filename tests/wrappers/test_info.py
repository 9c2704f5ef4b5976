"""What stands in info: what is known, of the step it belongs to, and what nobody knows is absent or masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

import wmrl_gym  # noqa: F401 - registers the ids
from tests.bandit import Bandit
from tests.wrappers.goal import Goal, Told, cart_pole
from tests.wrappers.nothing import Nothing
from wmrl_gym.engine.info import KEYS
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import (
    WorldModelWrapper,
    corrected,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv
from wmrl_gym.wrappers.vector import corrected as corrected_vector


def test_numbers_that_nobody_knows_are_absent_and_flags_always_there() -> None:
    env = corrected(cart_pole(), Nothing(), anchors=0.0, seed=0)
    _, info = env.reset(seed=0)
    always = {name for name, key in KEYS.items() if key.always}
    assert always <= set(info)
    assert not set(info) & {"wm_reward", "wm_reward_std", "real_reward", "calibrated_reward", "residual_var"}
    *_, info = env.step(0)
    assert set(info) - always == {"wm_reward", "calibrated_reward", "residual_var"}
    for name in always:
        assert isinstance(info[name], KEYS[name].dtype), name
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_environments_mask_what_nobody_knows(mode: AutoresetMode) -> None:
    envs = corrected_vector(Goal, Nothing(), num_envs=4, anchors=0.5, autoreset_mode=mode, seed=0, warmup=0)
    _, infos = envs.reset(seed=0)
    some = False
    for _ in range(12):
        for place in (infos, infos.get("final_info", {})):
            for name in KEYS.keys() & place.keys():
                values, mask = place[name], place[f"_{name}"]
                assert values.dtype == np.dtype(KEYS[name].dtype), name
                if KEYS[name].always:
                    assert mask.all() or place is not infos
                else:
                    np.testing.assert_array_equal(mask, np.isfinite(values), name)
                    some |= bool(mask.any() and not mask.all())
        *_, infos = envs.step(np.full(4, 2))
    assert some
    envs.close()


def test_the_environments_own_info_is_there_in_real_steps_and_never_old() -> None:
    env = WorldModelWrapper(Goal(), Nothing(), anchors=0.5, seed=0)
    kinds = set()
    for episode in range(12):
        _, info = env.reset(seed=0 if episode == 0 else None)
        assert info["is_success"] is False  # every start is a real one
        for step in range(5):
            *_, info = env.step(2)
            kinds.add(info["anchor"])
            if info["anchor"]:
                assert info["is_success"] is (step == 4)
                assert info["where"] == {"x": step + 1}
            else:
                assert "is_success" not in info
                assert "where" not in info
    assert kinds == {True, False}


def test_imagined_info_is_what_the_model_predicts_else_what_the_user_gives() -> None:
    given = {"is_success": False, "where": {"x": -1}}
    user = WorldModelWrapper(Goal(), Nothing(), anchors=0.0, imagined_info=given)
    user.reset(seed=0)
    first, second = user.step(2)[4], user.step(2)[4]
    assert first["is_success"] is False
    assert first["where"] == {"x": -1}
    assert first["where"] is not second["where"]
    model = WorldModelWrapper(Goal(), Told(), anchors=0.0, imagined_info=given)
    model.reset(seed=0)
    info = model.step(2)[4]
    assert info["is_success"] is True
    assert info["where"] == {"x": -1}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_environments_own_info_reaches_a_vector_with_masks(mode: AutoresetMode) -> None:
    envs = WorldModelVectorEnv(Goal, Nothing(), num_envs=4, anchors=0.5, autoreset_mode=mode, seed=0)
    _, infos = envs.reset(seed=0)
    assert infos["_is_success"].all()
    seen = set()
    for _ in range(14):
        fresh = envs.pending_reset if mode is AutoresetMode.NEXT_STEP else np.zeros(4, bool)
        _, _, terminated, truncated, infos = envs.step(np.full(4, 2))
        over = terminated | truncated
        final = infos.get("final_info", {})
        anchor = np.where(over, final["anchor"], infos["anchor"]) if final else infos["anchor"]
        for slot in np.flatnonzero(~fresh):
            place = final if over[slot] and final else infos
            seen.add((bool(anchor[slot]), bool(over[slot])))
            told = bool(place.get("_is_success", np.zeros(4, bool))[slot])
            assert told == bool(anchor[slot])
            if told:
                assert bool(place["is_success"][slot]) == bool(over[slot])
    assert (True, True) in seen
    assert (False, False) in seen
    envs.close()


def test_statistics_recorded_below_the_world_model_reach_the_user() -> None:
    for below in (RecordEpisodeStatistics(Goal()), RecordEpisodeStatistics(FactoredEnv(Bandit(max_turns=2)))):
        model = (
            Nothing() if below.unwrapped.spec is None and isinstance(below.unwrapped, Goal) else OutcomeModel(8, encoder="none")
        )
        env = WorldModelWrapper(below, model, anchors=1.0)
        env.reset(seed=0)
        over, paid, steps = False, 0.0, 0
        while not over:
            _, reward, terminated, truncated, info = env.step(2 if isinstance(below.unwrapped, Goal) else np.array([1, 2]))
            over, paid, steps = terminated or truncated, paid + reward, steps + 1
        assert info["episode"]["r"] == pytest.approx(paid)
        assert info["episode"]["l"] == steps
        assert list(below.length_queue) == [steps]


def test_statistics_recorded_below_reach_a_vector_too() -> None:
    def make() -> gym.Env[Any, Any]:
        return RecordEpisodeStatistics(FactoredEnv(Bandit(max_turns=2)))

    envs = WorldModelVectorEnv(
        make, OutcomeModel(8, encoder="none"), num_envs=3, anchors=1.0, warmup=0, autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs.reset(seed=0)
    actions = np.array([[1, 2], [2, 1], [1, 1]])
    envs.step(actions)
    _, reward, _, _, infos = envs.step(actions)
    episode = infos["final_info"]["episode"]
    np.testing.assert_allclose(episode["r"], reward)
    np.testing.assert_array_equal(episode["l"], [2, 2, 2])
    envs.close()


def test_the_documented_table_of_keys_is_the_one_that_holds() -> None:
    told = (Path(__file__).parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {key.dtype.__name__} | {'always' if key.always else 'where it is known'} | {key.meaning} |"
        for name, key in KEYS.items()
    ]
    table = [line for line in told.splitlines() if line.startswith("| `")]
    assert table[: len(rows)] == rows
