"""Corrections around one environment: what f and the residual do to its rewards, and what they refuse."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.drifting import Drift, fitted, inflated, run
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.wrappers import (
    InverseVarianceDenoising,
    OnlineDebiasing,
    OrderError,
    ResidualCorrection,
    WorldModelWrapper,
    corrected,
)


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


def test_residuals_of_background_anchors_need_a_trainer_that_joins_them() -> None:
    with pytest.raises(OrderError, match="LateAnchors"):
        corrected(gym.make("CartPole-v1"), Drift(), anchor_mode="background")
