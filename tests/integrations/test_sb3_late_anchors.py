"""Stable-Baselines3: truths that arrive after their rollout was collected are learnt from, or left out."""

from __future__ import annotations

import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.vec_env import VecNormalize

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from tests.integrations.test_sb3 import ppo
from wmrl_gym.corrections import EarlySchedule
from wmrl_gym.integrations import sb3
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected


@pytest.mark.parametrize("preset", ["recommended", "paper"])
def test_late_anchors_rewrite_their_rewards_before_learning(preset: Any) -> None:
    bandit = Bandit()
    envs = corrected(
        bandit,
        fitted(bandit),
        num_envs=16,
        preset=preset,
        anchors=0.5,
        anchor_mode="background",
        late=True,
        update_every=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_real=2,
        group_size=1,
    )
    venv = sb3.to_vec_env(envs)
    model = ppo(venv)
    late = sb3.LateAnchors(venv)
    model.learn(96, callback=late)
    buffer: Any = model.rollout_buffer
    pairs, _ = envs.unwrapped.engine.stream.since(0)
    truths = dict(zip(pairs.pair.tolist(), pairs.real.tolist(), strict=True))
    where = np.argwhere(buffer.pairs >= 0)
    assert len(where) == late.arrived > 0
    assert late.missing == 0
    rewards = buffer.rewards.reshape(16, 6).T if buffer.rewards.shape != buffer.pairs.shape else buffer.rewards
    for step, slot in where:
        truth = truths[int(buffer.pairs[step, slot])]
        if preset == "paper":
            assert rewards[step, slot] == pytest.approx(truth, abs=1e-6)
        else:
            assert buffer.given[step, slot] == pytest.approx(rewards[step, slot], abs=1e-6)
            assert truth == pytest.approx(rewards[step, slot], abs=1e-6) or rewards[step, slot] != truth
    assert (buffer.weights[buffer.pairs < 0] == 1).all() or preset == "paper"
    venv.close()


def test_late_residuals_are_f_plus_gain_times_what_f_missed() -> None:
    from wmrl_gym.wrappers.rewards import Residual

    core = Residual(0.5, late=True, max_gain=100.0)
    core._waiting[7] = (0.6, 0.1, None)
    assert core.late_reward(7, 0.8) == pytest.approx(0.6 + 5 * 0.2)
    core._waiting[8] = (0.6, 0.1, None)
    assert core.late_reward(8, 0.8, completion=0.5) == pytest.approx(0.6 + 10 * 0.2)


def test_anchors_that_do_not_arrive_are_left_out() -> None:
    crashing = Bandit(crash=2)
    envs = corrected(
        crashing,
        fitted(Bandit()),
        num_envs=16,
        anchors=0.6,
        anchor_mode="background",
        late=True,
        update_every=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    venv = sb3.to_vec_env(envs)
    late = sb3.LateAnchors(venv)
    with pytest.warns(UserWarning, match="counts as unknown"):
        ppo(venv).learn(96, callback=late)
    assert late.missing > 0
    assert late.arrived > 0
    venv.close()


def test_late_anchors_need_background_anchors_and_a_weighted_buffer() -> None:
    bandit = Bandit()
    blocking = sb3.to_vec_env(corrected(bandit, fitted(bandit), num_envs=2))
    with pytest.raises(TypeError, match="background anchors"):
        sb3.LateAnchors(blocking)
    plain = sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    with pytest.raises(TypeError, match="has none"):
        sb3.LateAnchors(plain)
    behind = sb3.to_vec_env(corrected(bandit, fitted(bandit), num_envs=2, anchor_mode="background", late=True))
    with pytest.raises(TypeError, match=r"\*\*weighted\(venv\)"):
        PPO("MlpPolicy", behind, n_steps=4, batch_size=8).learn(8, callback=sb3.LateAnchors(behind))
    scaled = VecNormalize(behind)
    with pytest.raises(TypeError, match="norm_reward=False"):
        PPO("MlpPolicy", scaled, n_steps=4, batch_size=8, **sb3.weighted(behind)).learn(8, callback=sb3.LateAnchors(behind))
    for venv in (blocking, plain, behind):
        venv.close()


def _collected(*, reward: str) -> tuple[Any, PPO, sb3.LateAnchors]:
    """A rollout with background anchors whose truths have all arrived, and none joined yet."""
    bandit = Bandit(reward=reward)
    envs = corrected(
        bandit,
        fitted(bandit),
        num_envs=12,
        anchors=0.5,
        anchor_mode="background",
        late=True,
        update_every=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_real=2,
    )
    venv = sb3.to_vec_env(envs)
    model = ppo(venv, gamma=0.9, gae_lambda=0.8)
    model.learn(72)
    callback = sb3.LateAnchors(venv, timeout_s=None)
    callback.init_callback(model)
    model.env.reset()
    model._last_obs, model._last_episode_starts = model.env.reset(), np.ones(12, bool)
    empty = CallbackList([])
    empty.init_callback(model)
    buffer: Any = model.rollout_buffer
    model.collect_rollouts(model.env, empty, buffer, 6)
    assert envs.unwrapped.engine.wait(60)
    return buffer, model, callback


def test_a_parked_and_joined_episode_is_learnt_from_as_if_its_truth_had_been_there() -> None:
    buffer, model, callback = _collected(reward="final")
    before = buffer.advantages.copy()
    anchored = {int(buffer.pairs[step, slot]): (step, slot) for step, slot in np.argwhere(buffer.pairs >= 0)}
    truths, _ = callback.engine.collect_late()
    callback.engine.ledger.late = (dict(truths), set())
    f_and_p = dict(callback.residual._waiting)
    callback.on_rollout_end()
    assert callback.arrived == len(anchored) > 0
    parked = {(step, slot) for number in anchored for step, slot in _episode(buffer, *anchored[number])}
    assert not any(buffer.usable[step, slot] for step, slot in parked)
    late = np.concatenate([rows["advantages"] for rows in buffer.late])
    expected = []
    for number, (step, slot) in anchored.items():
        f, p, _ = f_and_p[number]
        corrected_ = f + min(0.5 / p, 5.0) * (truths[number] - f)
        shift = corrected_ - buffer.given[step, slot]
        expected += [before[at, slot] + 0.72 ** (step - at) * shift for at, _ in _episode(buffer, step, slot)]
    np.testing.assert_allclose(late, expected, rtol=1e-4, atol=1e-6)
    usable, n_late = int(buffer.usable.sum()), len(late)
    drawn = list(buffer.get(16))
    assert sum(len(batch.actions) for batch in drawn) == usable + n_late
    seen = np.concatenate([batch.advantages.numpy() for batch in drawn])
    assert np.isin(late.astype(np.float32), seen).all()
    model.env.close()


def _episode(buffer: Any, step: int, slot: int) -> list[tuple[int, int]]:
    first = step
    while first > 0 and not buffer.episode_starts[first, slot]:
        first -= 1
    return [(at, slot) for at in range(first, step + 1)]


def test_training_that_never_waits_learns_from_every_anchor_in_the_end() -> None:
    bandit = Bandit()
    envs = corrected(
        bandit,
        fitted(bandit),
        num_envs=16,
        anchors=0.3,
        anchor_mode="background",
        late=True,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_real=2,
    )
    venv = sb3.to_vec_env(envs)
    late = sb3.LateAnchors(venv, timeout_s=None)
    ppo(venv).learn(16 * 6 * 6, callback=late)
    issued = envs.unwrapped.engine.stream.added + envs.unwrapped.engine.in_flight
    assert late.missing == 0
    assert 0 < late.arrived <= issued
    assert late.arrived + sum(len(parked.given) for parked in late._parked) + envs.unwrapped.engine.in_flight >= issued
    venv.close()


def test_a_parked_anchor_that_is_lost_is_counted_and_forgotten() -> None:
    crashing = Bandit(crash=2)
    envs = corrected(
        crashing,
        fitted(Bandit()),
        num_envs=16,
        anchors=0.6,
        anchor_mode="background",
        late=True,
        update_every=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    venv = sb3.to_vec_env(envs)
    late = sb3.LateAnchors(venv, timeout_s=None)
    with pytest.warns(UserWarning, match="counts as unknown"):
        ppo(venv).learn(16 * 6 * 5, callback=late)
    assert late.missing > 0
    assert late.arrived > 0
    parked = sum(len(each.given) for each in late._parked)
    assert len(late.residual._waiting) <= parked + envs.unwrapped.engine.in_flight  # type: ignore[union-attr]
    venv.close()


def test_an_episode_that_pays_several_times_is_parked_and_joined_as_one() -> None:
    buffer, model, callback = _collected(reward="improvement")
    before = buffer.advantages.copy()
    anchored = {int(buffer.pairs[step, slot]): (step, slot) for step, slot in np.argwhere(buffer.pairs >= 0)}
    truths, _ = callback.engine.collect_late()
    callback.engine.ledger.late = (dict(truths), set())
    f_and_p = dict(callback.residual._waiting)
    callback.on_rollout_end()
    assert callback.arrived == len(anchored)
    late = np.concatenate([rows["advantages"] for rows in buffer.late])
    parked = sorted({place for step, slot in anchored.values() for place in _episode(buffer, step, slot)})
    assert len(late) == len(parked)  # each step once, however many of its episode's rewards were due
    shifts = dict.fromkeys(parked, 0.0)
    for number, (step, slot) in anchored.items():
        f, p, _ = f_and_p[number]
        shift = f + min(0.5 / p, 5.0) * (truths[number] - f) - buffer.given[step, slot]
        for at, _ in _episode(buffer, step, slot):
            shifts[at, slot] += 0.72 ** (step - at) * shift
    expected = [before[place] + shift for place, shift in shifts.items()]
    np.testing.assert_allclose(np.sort(late), np.sort(expected), rtol=1e-4, atol=1e-6)
    model.env.close()


def settle(anchors: Any, **options: Any) -> list[str]:
    """Train fast on a world model that is sure of itself; returns what was warned of."""
    bandit = Bandit(max_turns=1)
    envs = corrected(bandit, fitted(bandit), num_envs=32, anchors=anchors, update_every=0, seed=0)
    venv = sb3.to_vec_env(envs)
    model = ppo(venv, n_steps=1, batch_size=32, n_epochs=8, learning_rate=0.05, ent_coef=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(32 * 40, callback=sb3.WorldModelCallback(venv, **options))
    venv.close()
    return [str(each.message) for each in caught if "entropy" in str(each.message)]


def test_the_callback_warns_once_with_numbers_when_a_policy_settles_before_pairs_arrive() -> None:
    (said,) = settle(EarlySchedule(2, episodes=32 * 41, share=0.0))
    assert re.search(r"entropy fell from 2\.\d\d to \d\.\d\d nats in \d+ rollouts, in which [012] anchor pairs arrived", said)


def test_the_callback_says_nothing_where_pairs_come_early_or_none_are_wanted() -> None:
    assert settle(EarlySchedule(40, episodes=32 * 41, share=0.9, first=0.05)) == []
    assert settle(0.0) == []
    assert settle(EarlySchedule(2, episodes=32 * 41, share=0.0), least_pairs=0) == []


def test_a_negative_number_of_pairs_is_refused() -> None:
    venv = sb3.to_vec_env(WorldModelVectorEnv("CartPole-v1", Drift(), num_envs=2, anchors=0.0))
    with pytest.raises(ValueError, match="least_pairs must not be negative, got -1"):
        sb3.WorldModelCallback(venv, least_pairs=-1)
    venv.close()
