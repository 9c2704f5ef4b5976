"""Where real and imagined episodes differ, and other edges."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit, TransformReward

from tests.bandit import Bandit
from tests.drifting import Counter, Drift, fitted, run
from wmrl_gym.corrections import AdaptiveSchedule, AnchorSchedule, BudgetSchedule
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.integrations import sb3
from wmrl_gym.world_models import OutcomeModel, WorldModelError
from wmrl_gym.wrappers import OrderError, WorldModelWrapper, corrected
from wmrl_gym.wrappers.vector import WorldModelVectorEnv
from wmrl_gym.wrappers.vector import corrected as corrected_vector

SAME = AutoresetMode.SAME_STEP


def background(ends: int, *, imagined: int) -> WorldModelVectorEnv:
    return WorldModelVectorEnv(
        lambda: Counter(ends=ends),
        Drift(pays=0.5),
        num_envs=1,
        anchors=1.0,
        anchor_mode="background",
        pairs="open_loop",
        max_model_steps=imagined,
        autoreset_mode=SAME,
    )


def test_a_real_episode_that_ended_earlier_pays_nothing_afterwards() -> None:
    envs = background(2, imagined=4)
    envs.reset(seed=0)
    envs.engine.collect_late()
    for _ in range(4):
        envs.step(np.zeros(1, int))
    assert envs.engine.wait(60)
    truths, lost = envs.engine.collect_late()
    assert list(truths.values()) == [1.0, 1.0, 0.0, 0.0]
    assert lost == set()
    assert envs.engine.stream.added == 2  # beyond the real end there is nothing to calibrate on
    envs.close()


def test_an_observation_that_the_environment_writes_over_is_kept_as_it_was() -> None:
    env = WorldModelWrapper(Counter(ends=3), Drift(), anchors=1.0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    kept = env.engine.buffer.everything()
    assert kept is not None
    np.testing.assert_array_equal(kept.observation[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(kept.next_observation[:, 0], [1, 2, 3])


def test_warm_up_ends_where_episodes_do_not() -> None:
    envs = WorldModelVectorEnv(Counter, Drift(), num_envs=1)
    assert 10 <= envs.warm_up(10) <= 20
    envs.close()


def test_a_model_that_knows_nothing_makes_no_pairs() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), OutcomeModel(8, min_executions=30, encoder="none"))
    run(env, 6)
    assert env.get_wrapper_attr("engine").stream.added == 0


def test_no_pair_is_made_after_the_model_believes_the_episode_over() -> None:
    env = WorldModelWrapper(Counter(ends=4), Drift(ends=True), anchors=1.0, pairs="open_loop")
    env.reset(seed=0)
    for _ in range(4):
        env.step(0)
    assert env.engine.stream.added == 1


def test_time_limits_hold_however_they_are_given() -> None:
    bare = WorldModelWrapper(TimeLimit(Counter(), 4), Drift(), anchors=0.0)
    bare.reset(seed=0)
    assert [bare.step(0)[3] for _ in range(4)] == [False, False, False, True]
    bandit = Bandit()
    for anchors in (0.0, 1.0):
        limited = WorldModelWrapper(TimeLimit(FactoredEnv(bandit), 2), fitted(bandit), anchors=anchors)
        limited.reset(seed=0)
        assert [limited.step(np.array([1, 1]))[2:4] for _ in range(2)] == [(False, False), (False, True)]


def test_a_wrapper_around_many_is_not_bypassed() -> None:
    envs = WorldModelVectorEnv(
        lambda: TransformReward(FactoredEnv(Bandit()), lambda reward: 100 * reward), Drift(step=0.0), num_envs=2, anchors=1.0
    )
    envs.reset(seed=0)
    for _ in range(3):
        _, reward, *_ = envs.step(np.ones((2, 2), int))
    assert (reward > 40).all()
    envs.close()


def test_schedules_with_a_memory_are_fed_and_resume() -> None:
    bandit = Bandit()
    model = fitted(bandit)
    budget = WorldModelWrapper(FactoredEnv(bandit), model, anchors=BudgetSchedule(9.0, groups=40, cost=3.0), update_every=0)
    anchors = [info["anchor"] for _, info in run(budget, 60)]
    assert 1 <= sum(anchors) <= 4
    schedule: Any = budget.engine.episodes.schedule
    assert schedule.spent == 3.0 * sum(anchors)
    resumed = WorldModelWrapper(FactoredEnv(bandit), model, anchors=BudgetSchedule(9.0, groups=40, cost=3.0), update_every=0)
    resumed.load_state_dict(budget.state_dict())
    assert resumed.engine.episodes.schedule.spent == schedule.spent  # type: ignore[attr-defined]
    adaptive = WorldModelWrapper(FactoredEnv(bandit), model, anchors=AdaptiveSchedule(0.2), update_every=0)
    run(adaptive, 30)
    assert adaptive.engine.episodes.schedule.disagreement > 0  # type: ignore[attr-defined]


def test_a_group_size_that_contradicts_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the schedule has groups of 4, and group_size=2"):
        WorldModelWrapper(Counter(), Drift(), anchors=AnchorSchedule(0.1, group_size=4), group_size=2)


def test_the_adaptive_preset_learns_from_what_was_done() -> None:
    bandit = Bandit()

    class Wrong(OutcomeModel):
        """Believes that one design is worth nothing."""

        def predict_outcomes(self, attempt: Any, context: Any, **options: Any) -> Any:
            predicted = super().predict_outcomes(attempt, context, **options)
            predicted.outcome.value[attempt.design[:, 0] == 1] = 0.2
            return predicted

    model = Wrong(8, encoder="none")
    WorldModelVectorEnv(bandit, model, num_envs=1, seed=0).warm_up(96)
    env = corrected(FactoredEnv(bandit), model, preset="adaptive", anchors=1.0, update_every=0)
    before = env.stats()["residual/kappa"]  # type: ignore[attr-defined]
    run(env, 400)
    assert env.stats()["residual/kappa"] != before  # type: ignore[attr-defined]


def test_weights_for_background_anchors_need_a_trainer_that_joins_them() -> None:
    bandit = Bandit()
    with pytest.raises(OrderError, match="InverseVarianceDenoising cannot change"):
        corrected(FactoredEnv(bandit), fitted(bandit), preset="paper", anchor_mode="background")


def test_background_anchors_of_one_plain_environment_run_in_a_second_instance() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(ends=True), anchors=1.0, anchor_mode="background")
    for _ in range(20):
        env.reset()
        env.step(0)
    assert env.engine.wait(60)
    assert env.engine.stream.added == 20
    env.close()
    with pytest.raises(ValueError, match="second instance"):
        WorldModelWrapper(Counter(), Drift(), anchor_mode="background")


def test_a_context_that_is_given_at_reset_holds_for_the_episode() -> None:
    env = WorldModelWrapper(Counter(ends=2, context=3), Drift(), anchors=1.0)
    env.reset(seed=0)
    assert env.step(0)[4]["context"] == 3
    named = WorldModelWrapper(Counter(ends=2, context="red"), Drift(), anchors=1.0)
    assert named.reset(seed=0)[1]["context"] == 0


@pytest.mark.parametrize("num_envs", [1, 2])
def test_training_goes_on_where_every_step_is_parked(num_envs: int) -> None:
    from stable_baselines3 import PPO

    bandit = Bandit()
    envs = corrected_vector(
        bandit, fitted(bandit), num_envs=num_envs, anchors=0.6, anchor_mode="background", late=True, autoreset_mode=SAME
    )
    venv = sb3.to_vec_env(envs)
    late = sb3.LateAnchors(venv, timeout_s=None)
    PPO("MlpPolicy", venv, n_steps=3, batch_size=3, n_epochs=1, device="cpu", seed=0, **sb3.weighted(venv)).learn(
        90, callback=late
    )
    assert late.arrived > 0
    venv.close()


def test_real_episodes_of_an_unfitted_model_need_no_joining() -> None:
    from stable_baselines3 import PPO

    bandit = Bandit()
    envs = corrected_vector(
        bandit,
        OutcomeModel(8, encoder="none"),
        num_envs=4,
        warmup=0,
        anchors=0.2,
        anchor_mode="background",
        late=True,
        autoreset_mode=SAME,
    )
    venv = sb3.to_vec_env(envs)
    model = PPO("MlpPolicy", venv, n_steps=3, batch_size=12, n_epochs=1, device="cpu", seed=0, **sb3.weighted(venv))
    model.learn(120, callback=sb3.LateAnchors(venv, timeout_s=None))
    venv.close()


def test_an_anchor_cut_short_by_a_reset_is_executed_as_far_as_it_went() -> None:
    bandit = Bandit(reward="improvement")
    envs = WorldModelVectorEnv(
        bandit, fitted(bandit), num_envs=2, anchors=1.0, anchor_mode="background", autoreset_mode=SAME, update_every=0
    )
    envs.reset(seed=0)
    envs.engine.collect_late()
    envs.step(np.ones((2, 2), int))
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.engine.wait(60)
    truths, lost = envs.engine.collect_late()
    assert (len(truths), len(lost)) == (1, 0)
    assert len(envs.engine.stream) == 1
    envs.close()


def test_a_model_may_be_loaded_before_it_is_bound(tmp_path: Any) -> None:
    bandit = Bandit()
    fitted(bandit).save(tmp_path)
    model = OutcomeModel()
    model.load(tmp_path)
    WorldModelWrapper(FactoredEnv(bandit), model)
    assert model.fitted


def test_nested_tuples_of_observations_are_refused() -> None:
    class Nested(Counter):
        observation_space = gym.spaces.Dict({"a": gym.spaces.Tuple([gym.spaces.Discrete(2)])})

    with pytest.raises(TypeError, match="Tuple observation spaces are not supported"):
        WorldModelWrapper(Nested(), Drift())


def test_outcome_models_say_why_a_wrapped_environment_does_not_suit_them() -> None:
    with pytest.raises(WorldModelError, match="needs a dynamics model"):
        WorldModelWrapper(TransformReward(FactoredEnv(Bandit()), lambda reward: reward), OutcomeModel())
