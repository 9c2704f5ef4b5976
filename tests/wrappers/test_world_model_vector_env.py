"""Many environments in one world model."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit, truth
from tests.drifting import Drift, Inflated, fitted
from wmrl_gym.engine.info import KEYS
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import OrderError
from wmrl_gym.wrappers.vector import (
    InverseVarianceDenoising,
    OnlineDebiasing,
    ResidualCorrection,
    WorldModelVectorEnv,
    corrected,
)
from wmrl_gym.wrappers.vector.corrections import VectorStepInfo

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


@pytest.fixture
def bandit() -> Bandit:
    return Bandit()


def steps(envs: Any, count: int, *, seed: int = 0) -> Iterator[tuple[Any, Any, Any, Any, dict[str, Any], Any]]:
    """Random actions; yields what each step returned, and the info of the step itself."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        returned = envs.step(rng.integers(0, 4, (envs.num_envs, 2)))
        yield *returned, VectorStepInfo(returned[4], returned[2] | returned[3])


@pytest.mark.parametrize("num_envs", [1, 7, 256])
@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_any_number_of_environments_gives_observations_inside_the_space(bandit: Bandit, num_envs: int, mode: Any) -> None:
    envs = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=num_envs, anchors=0.05, autoreset_mode=mode, update_every=0)
    observation, infos = envs.reset(seed=0)
    assert envs.observation_space.contains(observation)
    assert set(KEYS) <= set(infos)
    for observation, reward, *_, rows in steps(envs, 9):
        assert envs.observation_space.contains(observation)
        assert np.isfinite(reward).all()
        assert all(len(rows[key]) == num_envs for key in KEYS)
    envs.close()


def test_single_and_vector_are_the_same_engine(bandit: Bandit) -> None:
    from wmrl_gym.envs.factored_env import FactoredEnv
    from wmrl_gym.wrappers import corrected as corrected_single

    model = fitted(bandit)
    single = corrected_single(FactoredEnv(bandit), model, anchors=0.4, update_every=0)
    envs = corrected(bandit, model, num_envs=1, anchors=0.4, update_every=0, autoreset_mode=SAME)
    one, _ = single.reset(seed=4)
    many, _ = envs.reset(seed=4)
    np.testing.assert_array_equal(one, many[0])
    replayed = np.random.default_rng(0)
    for _, reward, terminated, _, _, rows in steps(envs, 30, seed=0):
        _, expected, _, _, info = single.step(replayed.integers(0, 4, (1, 2))[0])
        assert expected == reward[0]
        assert info["anchor"] == rows["anchor"][0]
        if terminated[0]:
            single.reset()
    envs.close()


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_autoreset_steps_are_never_transitions_nor_pairs(bandit: Bandit, mode: Any) -> None:
    envs = corrected(bandit, fitted(bandit), num_envs=6, anchors=1.0, autoreset_mode=mode, update_every=0)
    engine = envs.unwrapped.engine
    before = engine.buffer.added
    envs.reset(seed=0)
    ended = 0
    for _, reward, terminated, _, _, rows in steps(envs, 16):
        ended += int(terminated.sum())
        resets = ~rows["reward_due"] & (rows["group"] >= 0) & np.isnan(rows["wm_reward"])
        assert (reward[resets] == 0).all()
    assert engine.stream.added == ended
    assert engine.buffer.added - before == 3 * ended + sum(engine.episodes.steps % 3)
    envs.close()


def test_an_ended_slot_resets_alone(bandit: Bandit) -> None:
    class Uneven(Bandit):
        """Context 0 ends after one attempt."""

        def advance(self, state: Any, attempt: Any, outcome: Any) -> Any:
            after, step = super().advance(state, attempt, outcome)
            early = state.task == 0
            step.terminated[early], step.reward_due[early] = True, True
            step.reward[early] = after.best[early]
            return after, step

    uneven = Uneven()
    envs = WorldModelVectorEnv(uneven, fitted(uneven), num_envs=8, anchors=0.0, autoreset_mode=SAME, update_every=0)
    observation, _ = envs.reset(seed=2)
    tasks = observation[:, :3].argmax(axis=1)
    assert 0 < (tasks == 0).sum() < 8
    observation, _, terminated, *_ = envs.step(np.ones((8, 2), int))
    np.testing.assert_array_equal(terminated, tasks == 0)
    np.testing.assert_allclose(observation[tasks != 0, 3], 1 / 3)
    assert (observation[tasks == 0, 3] == 0).all()
    envs.close()


def test_the_paying_step_keeps_its_info_in_final_info_and_is_corrected_there(bandit: Bandit) -> None:
    envs = corrected(bandit, fitted(bandit), num_envs=5, preset="paper", anchors=1.0, autoreset_mode=SAME, update_every=0)
    envs.reset(seed=0)
    *_, (_, _, terminated, _, infos, rows) = steps(envs, 3)
    assert terminated.all()
    final = infos["final_info"]
    np.testing.assert_array_equal(final["calibrated_reward"], rows["calibrated_reward"])
    assert np.isfinite(final["calibrated_reward"]).all()
    assert np.isfinite(final["real_reward"]).all()
    assert np.isnan(infos["calibrated_reward"]).all()
    assert len(infos["final_obs"]) == 5
    envs.close()


def test_real_execution_never_exceeds_max_real(bandit: Bandit) -> None:
    envs = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=32, anchors=0.8, max_real=3, autoreset_mode=SAME)
    envs.reset(seed=0)
    for _ in steps(envs, 9):
        pass
    assert 1 <= bandit.most_running <= 3
    envs.close()


def test_warm_up_executes_at_least_what_it_was_asked_and_fits_the_model(bandit: Bandit) -> None:
    model = OutcomeModel(8, encoder="none")
    envs = WorldModelVectorEnv(bandit, model, num_envs=4, max_real=2, warmup=20, autoreset_mode=SAME)
    envs.reset(seed=0)
    assert model.fitted
    assert 20 <= bandit.executed <= 20 + 2 * 3
    envs.close()


def test_warm_up_is_the_same_whatever_runs_side_by_side() -> None:
    buffers = []
    for max_real in (1, 3):
        made = Bandit()
        envs = WorldModelVectorEnv(made, OutcomeModel(8, encoder="none"), num_envs=1, max_real=max_real, seed=5)
        envs.warm_up(18)
        everything = envs.engine.buffer.everything()
        assert everything is not None
        buffers.append(everything.action[:18])
        envs.close()
    np.testing.assert_array_equal(*buffers)


def test_corrections_change_only_steps_that_pay(bandit: Bandit) -> None:
    model = Inflated(16, encoder="none")
    envs = corrected(bandit, model, num_envs=12, anchors=0.3, autoreset_mode=NEXT)
    envs.reset(seed=0)
    for _, reward, terminated, _, _, rows in steps(envs, 40):
        assert (reward[~terminated] == 0).all()
        assert np.isnan(rows["calibrated_reward"][~terminated]).all()
        assert np.isfinite(rows["calibrated_reward"][terminated]).all()
    envs.close()


def test_vector_wrappers_refuse_senseless_orders() -> None:
    plain = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(OrderError, match="WorldModelWrapper first"):
        OnlineDebiasing(plain)
    plain.close()
    base = WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=2)
    with pytest.raises(OrderError, match="needs OnlineDebiasing"):
        ResidualCorrection(base)
    with pytest.raises(OrderError, match="must stand below"):
        OnlineDebiasing(InverseVarianceDenoising(base))
    with pytest.raises(TypeError, match="wraps vector environments"):
        OnlineDebiasing(gym.make("CartPole-v1"))  # type: ignore[arg-type]
    base.close()


def test_any_gymnasium_environment_runs_with_real_anchors_side_by_side() -> None:
    envs = WorldModelVectorEnv("CartPole-v1", Drift(step=0.0), num_envs=6, anchors=0.5, max_real=2, autoreset_mode=SAME)
    observation, _ = envs.reset(seed=0)
    anchors = 0
    for _ in range(40):
        observation, reward, terminated, _, infos = envs.step(np.ones(6, int))
        rows = VectorStepInfo(infos, terminated)
        anchors += int(rows["anchor"].sum())
        np.testing.assert_array_equal(reward, np.where(rows["anchor"], 1.0, 0.5))
        assert envs.observation_space.contains(observation)
    assert anchors == envs.engine.stream.added > 0
    envs.close()


def test_it_pickles_before_its_first_use() -> None:
    envs = WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=3)
    again = pickle.loads(pickle.dumps(envs))
    observation, _ = again.reset(seed=0)
    assert observation.shape == (3, 4)
    again.close()
    envs.close()


def test_close_leaves_no_thread_behind(bandit: Bandit) -> None:
    before = threading.enumerate()
    envs = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=8, anchors=1.0, max_real=4, autoreset_mode=SAME)
    envs.reset(seed=0)
    for _ in steps(envs, 3):
        pass
    own = [thread for thread in threading.enumerate() if thread.name.startswith("wmrl-real") and thread not in before]
    envs.close()
    assert own
    assert not any(thread.is_alive() for thread in own)
    assert bandit.closed


@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_a_vector_run_stopped_and_resumed_equals_one_never_stopped(mode: Any, tmp_path: Any) -> None:
    def build() -> tuple[Any, OutcomeModel]:
        model = OutcomeModel(8, encoder="none")
        made = WorldModelVectorEnv(
            Bandit(), model, num_envs=5, anchors=0.4, anchor_mode=mode, autoreset_mode=SAME, update_every=11, warmup=12
        )
        return made, model

    def go(envs: Any, rng: np.random.Generator, count: int) -> list[Any]:
        trace = []
        for _ in range(count):
            trace.append(envs.step(rng.integers(0, 4, (5, 2)))[:4])
            envs.engine.wait(60)
        return trace

    envs, _ = build()
    envs.reset(seed=1)
    rng = np.random.default_rng(0)
    go(envs, rng, 17)
    never = go(envs, rng, 20)
    stopped, model = build()
    stopped.reset(seed=1)
    rng = np.random.default_rng(0)
    go(stopped, rng, 17)
    model.save(tmp_path)
    state = stopped.state_dict()
    resumed, fresh = build()
    fresh.load(tmp_path)
    resumed.load_state_dict(state)
    for left, right in zip(never, go(resumed, rng, 20), strict=True):
        np.testing.assert_equal(left, right)
    for each in (envs, stopped, resumed):
        each.close()


@pytest.mark.parametrize("needs_outcomes", [True, False])
def test_attempts_side_by_side_settle_as_one_after_the_other(needs_outcomes: bool) -> None:
    class Chosen(Bandit):
        pass

    Chosen.needs_outcomes = needs_outcomes
    made = Chosen(reward="improvement")
    envs = WorldModelVectorEnv(
        made, fitted(made), num_envs=3, anchors=1.0, anchor_mode="background", max_real=3, autoreset_mode=SAME, update_every=0
    )
    observation, _ = envs.reset(seed=2)
    tasks = observation[:, :3].argmax(axis=1)
    actions = np.random.default_rng(5).integers(1, 3, (3, 3, 2))
    numbers = []
    for turn in range(3):
        _, _, terminated, truncated, infos = envs.step(actions[turn])
        numbers.append(VectorStepInfo(infos, terminated | truncated)["pair"])
    assert envs.engine.wait(60)
    pairs, _ = envs.engine.stream.since(0)
    real = dict(zip(pairs.pair.tolist(), pairs.real.tolist(), strict=True))
    for slot in range(3):
        paid = [real[int(numbers[turn][slot])] for turn in range(3)]
        running = [truth(made, tasks[slot], actions[: turn + 1, slot]) for turn in range(3)]
        assert paid == pytest.approx(np.diff([0.0, *running]).tolist())
    envs.close()


def test_a_crash_among_attempts_side_by_side_is_unknown() -> None:
    class SideBySide(Bandit):
        needs_outcomes = False

    envs = WorldModelVectorEnv(
        SideBySide(crash=2), fitted(Bandit()), num_envs=1, anchors=1.0, anchor_mode="background", autoreset_mode=SAME
    )
    envs.reset(seed=0)

    def finish_an_episode() -> None:
        for first in (1, 2, 1):
            envs.step(np.array([[first, 1]]))
        assert envs.engine.wait(60)

    with pytest.warns(UserWarning, match="counts as unknown"):
        finish_an_episode()
    assert envs.engine.unknown == 1
    envs.close()


def test_slots_may_be_reset_a_few_at_a_time_from_the_first(bandit: Bandit) -> None:
    envs = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=4, anchors=0.0, autoreset_mode=AutoresetMode.DISABLED)
    for slots in ([0, 2], [1], [3]):
        mask = np.zeros(4, bool)
        mask[slots] = True
        envs.reset(options={"reset_mask": mask})
    observation, *_ = envs.step(np.ones((4, 2), int))
    assert envs.observation_space.contains(observation)
    envs.close()


def test_teacher_forcing_a_factored_environment_is_refused(bandit: Bandit) -> None:
    with pytest.raises(ValueError, match='pairs="open_loop"'):
        WorldModelVectorEnv(bandit, fitted(bandit), num_envs=2, pairs="teacher_forced")


def test_corrected_environments_say_their_autoreset_mode_as_others_do() -> None:
    for mode in AutoresetMode:
        envs = corrected("CartPole-v1", Drift(), num_envs=2, autoreset_mode=mode)
        assert envs.autoreset_mode is envs.unwrapped.autoreset_mode is mode


def test_an_environment_that_is_thrown_away_does_not_close_what_others_use() -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit), num_envs=2)
    del envs
    gc.collect()
    assert not bandit.closed
