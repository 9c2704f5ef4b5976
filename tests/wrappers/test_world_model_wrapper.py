"""One environment in a world model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit, truth
from tests.drifting import CountedEnv, Drift, fitted, inflated, run
from wmrl_gym.engine.info import KEYS
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import OutcomeModel, Prediction, WorldModel, WorldModelError
from wmrl_gym.wrappers import (
    InverseVarianceDenoising,
    OnlineDebiasing,
    OrderError,
    ResidualCorrection,
    WorldModelWrapper,
    corrected,
    diagnostics,
)

ALWAYS = {name for name, key in KEYS.items() if key.always}


def test_model_episodes_never_touch_the_real_environment() -> None:
    counted = CountedEnv(gym.make("CartPole-v1"))
    env = WorldModelWrapper(counted, Drift(), anchors=0.0)
    for _ in range(5):
        env.reset(seed=1)
        for _ in range(20):
            observation, reward, *_ = env.step(0)
            assert reward == 0.5
            assert env.observation_space.contains(observation)
    assert counted.steps == 0


def test_blocking_anchors_are_the_real_episode() -> None:
    counted = CountedEnv(gym.make("CartPole-v1"))
    env = WorldModelWrapper(counted, Drift(), anchors=1.0)
    reference = gym.make("CartPole-v1")
    observation, info = env.reset(seed=3)
    expected, _ = reference.reset(seed=3)
    np.testing.assert_array_equal(observation, expected)
    over = False
    while not over:
        observation, reward, terminated, truncated, info = env.step(1)
        expected, real, ended, cut, _ = reference.step(1)
        np.testing.assert_array_equal(observation, expected)
        assert (reward, terminated, truncated) == (real, ended, cut)
        assert info["anchor"]
        assert info["real_reward"] == real
        assert info["wm_reward"] == 0.5
        over = terminated or truncated
    assert counted.steps == len(env.engine.stream) == len(env.engine.buffer)


def test_teacher_forced_predictions_start_from_each_real_observation() -> None:
    seen: list[np.ndarray[Any, Any]] = []

    class Spy(Drift):
        def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
            seen.append(state.copy())
            return super().step(state, action, rng)

    env = WorldModelWrapper(gym.make("CartPole-v1"), Spy(), anchors=1.0, pairs="teacher_forced")
    observation, _ = env.reset(seed=0)
    for action in (0, 1, 0):
        before = observation
        observation, *_ = env.step(action)
        np.testing.assert_array_equal(seen[-1][0], before)


def test_open_loop_predictions_roll_on_from_the_start() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=0.001), anchors=1.0, pairs="open_loop")
    start, _ = env.reset(seed=0)
    for _ in range(4):
        env.step(0)
    np.testing.assert_allclose(env.engine._state[0], start + 4 * np.float32(0.001), rtol=1e-5)


def test_a_time_limit_truncates_and_never_terminates() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1", max_episode_steps=7), Drift(step=0.0), anchors=0.0)
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(7)]
    assert flags == [(False, False)] * 6 + [(False, True)]


def test_max_model_steps_truncates_imagined_but_not_real_episodes() -> None:
    imagined = WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=0.0), anchors=0.0, max_model_steps=3)
    imagined.reset(seed=0)
    assert [imagined.step(0)[3] for _ in range(3)] == [False, False, True]
    real = WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=0.0), anchors=1.0, max_model_steps=3)
    real.reset(seed=0)
    assert [real.step(i % 2)[3] for i in range(4)] == [False] * 4


def test_a_predicted_end_at_the_limit_is_terminated_alone() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1", max_episode_steps=1), Drift(ends=True), anchors=0.0)
    env.reset(seed=0)
    assert env.step(0)[2:4] == (True, False)


def test_every_info_key_is_there_at_reset_and_at_every_step() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), fitted(bandit), anchors=0.3)
    for _ in range(10):
        _, info = env.reset()
        assert set(info) >= ALWAYS
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(np.array([1, 1]))
            assert set(info) >= ALWAYS
            assert not any(isinstance(value, float) and np.isnan(value) for value in info.values())
            over = terminated or truncated


def test_costs_and_timings_are_never_in_info() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), fitted(bandit))
    _, info = env.reset(seed=0)
    info |= env.step(np.array([1, 2]))[4]
    assert not [key for key in info if "cost" in key or "wall" in key or key.endswith("_s")]
    assert env.get_wrapper_attr("last_cost")["imagined"] == 1


def test_an_unfitted_model_begins_with_real_episodes_of_propensity_one() -> None:
    bandit = Bandit()
    model = OutcomeModel(8, min_executions=6, encoder="none")
    env = WorldModelWrapper(FactoredEnv(bandit), model, anchors=0.0)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(10):
        fitted_before = model.fitted
        _, info = env.reset()
        assert (info["anchor"], info["propensity"]) == ((False, 0.0) if fitted_before else (True, 1.0))
        for _ in range(3):
            env.step(rng.integers(1, 4, 2))
    assert model.executions == 6


def test_pairs_are_made_only_where_a_reward_is_due() -> None:
    bandit = Bandit(reward="final")
    env = WorldModelWrapper(FactoredEnv(bandit), fitted(bandit), anchors=1.0, update_every=0)
    ends = run(env, 6)
    pairs, _ = env.engine.stream.since(0)
    assert len(pairs) == 6
    np.testing.assert_allclose(pairs.real, [reward for reward, _ in ends])
    assert (pairs.step == 3).all()


def test_lost_grades_are_unknown_and_never_a_pair_nor_a_number() -> None:
    bandit = Bandit(lose=2)
    env = corrected(FactoredEnv(bandit), fitted(bandit), anchors=1.0, update_every=0)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(np.array([2, 0]))
    assert (terminated, truncated) == (False, True)
    assert not info["reward_valid"]
    assert "real_reward" not in info
    assert np.isfinite(reward)
    assert env.get_wrapper_attr("engine").stream.added == 0
    assert diagnostics(env)["anchors/unknown"] == 1


def test_the_same_seed_gives_the_same_run() -> None:
    def trace() -> list[Any]:
        bandit = Bandit()
        return run(corrected(FactoredEnv(bandit), fitted(bandit), anchors=0.3), 20, seed=5)

    first, second = trace(), trace()
    for (reward, info), (again, info_again) in zip(first, second, strict=True):
        assert reward == again
        np.testing.assert_equal(info, info_again)


def test_anchor_choices_differ_between_seeds_of_reset() -> None:
    bandit = Bandit()
    env = WorldModelWrapper(FactoredEnv(bandit), fitted(bandit), anchors=0.2)
    anchors = [env.reset(seed=seed)[1]["anchor"] for seed in range(300)]
    assert 0.12 < np.mean(anchors) < 0.28


def test_members_of_a_group_share_start_and_anchor_decision() -> None:
    bandit = Bandit()
    env = WorldModelWrapper(FactoredEnv(bandit), fitted(bandit), anchors=0.3, group_size=4)
    starts = []
    for episode in range(40):
        observation, info = env.reset(seed=0 if episode == 0 else None)
        starts.append((info["group"], info["anchor"], info["context"], tuple(observation)))
        for _ in range(3):
            env.step(np.array([1, 1]))
    assert len(set(starts)) == 10
    assert [group for group, *_ in starts] == [episode // 4 for episode in range(40)]
    assert 0 < sum(anchor for _, anchor, *_ in set(starts)) < 10


def test_debiasing_without_anchors_changes_nothing() -> None:
    bandit = Bandit()
    model = fitted(bandit)
    plain = run(WorldModelWrapper(FactoredEnv(bandit), model, anchors=0.0), 10)
    corrected_ = run(corrected(FactoredEnv(bandit), model, anchors=0.0), 10)
    assert [reward for reward, _ in plain] == [reward for reward, _ in corrected_]


def test_debiasing_learns_what_an_overrating_model_hides() -> None:
    bandit = Bandit()
    env = OnlineDebiasing(WorldModelWrapper(FactoredEnv(bandit), inflated(bandit), anchors=0.5, update_every=0))
    ends = run(env, 300)
    late = [info for _, info in ends[150:] if info["anchor"]]
    raw = np.mean([abs(info["wm_reward"] - info["real_reward"]) for info in late])
    calibrated = np.mean([abs(info["calibrated_reward"] - info["real_reward"]) for info in late])
    assert calibrated < 0.6 * raw
    assert all(reward == info["calibrated_reward"] for reward, info in ends if not info["anchor"])


def test_f_is_applied_before_the_steps_own_pair_is_learnt() -> None:
    bandit = Bandit()
    env = OnlineDebiasing(WorldModelWrapper(FactoredEnv(bandit), inflated(bandit), anchors=1.0, update_every=0))
    _, first = run(env, 1)[0]
    assert first["calibrated_reward"] == first["wm_reward"]  # no pair had arrived: the identity
    assert env.correction.calibration.n_pairs == 1


def test_the_residual_form_is_f_plus_gain_times_what_f_missed() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), fitted(bandit), anchors=0.25, preset="smooth", update_every=0)
    for reward, info in run(env, 60):
        f, real = info["calibrated_reward"], info.get("real_reward")
        expected = f + 0.5 / 0.25 * (real - f) if info["anchor"] else f
        assert reward == pytest.approx(expected, abs=1e-12)


def test_the_residual_is_the_truth_where_everything_is_real() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), fitted(bandit), anchors=1.0, update_every=0)
    for reward, info in run(env, 5):
        assert reward == pytest.approx(info["real_reward"])


def test_the_papers_weight_goes_to_anchors_only() -> None:
    bandit = Bandit()
    env = corrected(FactoredEnv(bandit), inflated(bandit), preset="paper", anchors=0.5, group_size=2, update_every=0)
    ends = run(env, 320)
    late = ends[240:]
    assert all(info["weight"] == 1.0 for _, info in late if not info["anchor"])
    assert all(info["weight"] > 1.0 for _, info in late if info["anchor"])
    assert all(reward == info["real_reward"] for reward, info in ends if info["anchor"])


@pytest.mark.parametrize("wrapper", [OnlineDebiasing, ResidualCorrection, InverseVarianceDenoising])
def test_a_correction_without_a_world_model_is_refused(wrapper: Any) -> None:
    with pytest.raises(OrderError, match="WorldModelWrapper first"):
        wrapper(gym.make("CartPole-v1"))


def test_senseless_orders_are_refused_and_say_the_right_one() -> None:
    base = WorldModelWrapper(gym.make("CartPole-v1"), Drift())
    with pytest.raises(OrderError, match=r"needs OnlineDebiasing below it.*order is WorldModelWrapper, OnlineDebiasing"):
        ResidualCorrection(base)
    debiased = OnlineDebiasing(base)
    with pytest.raises(OrderError, match="there twice"):
        OnlineDebiasing(debiased)
    with pytest.raises(OrderError, match="must stand below InverseVarianceDenoising"):
        ResidualCorrection(InverseVarianceDenoising(debiased))
    with pytest.raises(OrderError, match="must stand below"):
        OnlineDebiasing(InverseVarianceDenoising(base))


def test_residuals_of_background_anchors_need_a_trainer_that_joins_them() -> None:
    with pytest.raises(OrderError, match="LateAnchors"):
        corrected(gym.make("CartPole-v1"), Drift(), anchor_mode="background")


@pytest.mark.parametrize("anchors", [-0.1, 1.1, "all"])
def test_anchors_outside_the_unit_interval_are_refused(anchors: Any) -> None:
    with pytest.raises(ValueError, match=r"fraction in \[0, 1\] or a schedule, got"):
        WorldModelWrapper(gym.make("CartPole-v1"), Drift(), anchors=anchors)


def test_a_prediction_that_leaves_the_space_names_entry_and_bounds() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=10.0), anchors=0.0)
    env.reset(seed=0)
    with pytest.raises(WorldModelError, match=r"rollout 0 is outside its space, .*: entry \[0\] is 1\d\.\d+, expected \[-4\.8"):
        env.step(0)


@pytest.mark.parametrize("endless", [np.inf, -np.inf, np.nan])
def test_a_prediction_without_bounds_is_still_finite(endless: float) -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=np.array([0.0, endless, 0.0, 0.0])), anchors=0.0)  # type: ignore[arg-type]
    env.reset(seed=0)
    with pytest.raises(WorldModelError, match=rf"not finite: entry \[1\] is {endless}, expected \[-inf, inf\]"):
        env.step(0)


def test_a_prediction_of_the_wrong_dtype_is_refused() -> None:
    class Wide(Drift):
        def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
            after, prediction = super().step(state, action, rng)
            return after, Prediction(after.astype(np.float64), *[getattr(prediction, f) for f in _FIELDS])

    env = WorldModelWrapper(gym.make("CartPole-v1"), Wide(), anchors=0.0)
    env.reset(seed=0)
    with pytest.raises(WorldModelError, match="must be float32 of shape"):
        env.step(0)


_FIELDS = ("reward", "reward_std", "terminated", "truncated", "reward_due", "reward_valid")


def test_a_nan_reward_is_refused_unless_it_says_that_it_is_unknown() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1"), Drift(pays=float("nan")), anchors=0.0)
    env.reset(seed=0)
    with pytest.raises(WorldModelError, match="reward_valid=False"):
        env.step(0)


def test_outcome_models_refuse_environments_that_are_not_factored() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(WorldModelError, match="needs a dynamics model"):
        WorldModelWrapper(env, OutcomeModel())


def test_stepping_before_reset_and_after_the_end_is_a_clear_error() -> None:
    env = WorldModelWrapper(gym.make("CartPole-v1", disable_env_checker=True), Drift(ends=True), anchors=0.0)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(0)


def test_vector_environments_are_pointed_to_their_own_wrappers() -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(TypeError, match="WorldModelVectorEnv"):
        WorldModelWrapper(envs, Drift())  # type: ignore[arg-type]
    envs.close()


def test_a_wrapper_that_changes_rewards_below_is_not_bypassed() -> None:
    bandit = Bandit()
    changed = gym.wrappers.TransformReward(FactoredEnv(bandit), lambda reward: 10 * reward)
    env = WorldModelWrapper(changed, Drift(step=0.0), anchors=1.0)
    env.reset(seed=0, options={"task": 1})
    designs = [[1, 1], [1, 2], [2, 3]]
    rewards = [env.step(np.array(design))[1] for design in designs]
    assert rewards[-1] == pytest.approx(10 * truth(Bandit(), 1, designs))


@pytest.mark.parametrize("preset", ["paper", "recommended", "smooth", "adaptive"])
@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_a_run_stopped_and_resumed_equals_one_never_stopped(preset: Any, mode: Any, tmp_path: Any) -> None:
    def layers(env: Any) -> list[Any]:
        found = []
        while hasattr(env, "env"):
            if hasattr(type(env), "state_dict"):
                found.append(env)
            env = env.env
        return found

    def build() -> tuple[Any, OutcomeModel]:
        bandit = Bandit()
        model = OutcomeModel(8, min_executions=6, encoder="none")
        made = corrected(
            FactoredEnv(bandit), model, preset=preset, anchors=0.5, anchor_mode=mode, late=True, update_every=9, group_size=1
        )
        return made, model

    def go(env: Any, rng: np.random.Generator, steps: int) -> list[Any]:
        trace = []
        for _ in range(steps):
            observation, reward, terminated, truncated, info = env.step(rng.integers(0, 4, 2))
            env.get_wrapper_attr("engine").wait(60)  # so that arrival does not depend on the machine
            trace.append((observation, reward, info["anchor"], info["weight"], info.get("calibrated_reward")))
            if terminated or truncated:
                env.reset()
        return trace

    env, _ = build()
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    go(env, rng, 31)
    never_stopped = go(env, rng, 40)

    stopped, model = build()
    stopped.reset(seed=3)
    rng = np.random.default_rng(0)
    go(stopped, rng, 31)
    model.save(tmp_path)
    states = [layer.state_dict() for layer in layers(stopped)]
    resumed, fresh = build()
    fresh.load(tmp_path)
    for layer, state in zip(layers(resumed), states, strict=True):
        layer.load_state_dict(state)
    again = go(resumed, rng, 40)
    for left, right in zip(never_stopped, again, strict=True):
        np.testing.assert_equal(left, right)


def test_render_shows_imagined_episodes_as_text_and_real_ones_as_they_are() -> None:
    bandit = Bandit()
    env = WorldModelWrapper(FactoredEnv(bandit, render_mode="ansi"), fitted(bandit), anchors=0.0)
    with pytest.raises(gym.error.ResetNeeded):
        env.render()
    env.reset(seed=0)
    env.step(np.array([1, 2]))
    assert "imagined" in env.render()
    assert "[1 2]" in env.render()
    real = WorldModelWrapper(gym.make("FrozenLake-v1", render_mode="ansi"), Stuck(), anchors=1.0)
    real.reset(seed=0)
    assert "SFFF" in real.render().replace("\x1b[41m", "").replace("\x1b[0m", "")
    real.close()


class Stuck(WorldModel):
    """Believes that FrozenLake never moves."""

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        return observation

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        n = len(state)
        yes, no = np.ones(n, bool), np.zeros(n, bool)
        return state, Prediction(state, np.zeros(n), np.full(n, np.nan), no, no, yes, yes)
