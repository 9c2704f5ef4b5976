"""The contextual correction around environments: features, anchors early and late, saving, and models that learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import Drift, Inflated, fitted, inflated
from tests.exploitable import SPIKE, Spiked
from wmrl_gym import wrappers
from wmrl_gym.corrections import ContextualCalibration
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import OutcomeModel, WorldModel
from wmrl_gym.wrappers import vector, world_model_parts
from wmrl_gym.wrappers.vector import OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


def stack(model: WorldModel, bandit: Bandit, *, features: Any = None, residual: bool = False, **options: Any) -> Any:
    settings: dict[str, Any] = {"num_envs": 8, "anchors": 0.25, "update_every": 0, "autoreset_mode": SAME, "seed": 0}
    envs: Any = OnlineDebiasing(WorldModelVectorEnv(bandit, model, **(settings | options)), "contextual", features=features)
    return ResidualCorrection(envs, late=True) if residual else envs


def play(envs: Any, steps: int, *, seed: int = 0, begin: bool = True) -> list[np.ndarray[Any, Any]]:
    if begin:
        envs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    return [envs.step(rng.integers(0, 4, (envs.num_envs, 2)))[1] for _ in range(steps)]


def calibration(envs: Any) -> ContextualCalibration:
    parts = world_model_parts(envs)
    assert parts is not None
    assert parts.debiasing is not None
    assert isinstance(parts.debiasing.calibration, ContextualCalibration)
    return parts.debiasing.calibration


def test_with_nothing_known_rewards_are_the_models_own_bit_for_bit() -> None:
    bandit = Bandit()
    plain = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=8, anchors=0.0, update_every=0, autoreset_mode=SAME, seed=0)
    for one, other in zip(play(plain, 12), play(stack(fitted(bandit), bandit, anchors=0.0), 12), strict=True):
        assert (one == other).all()


def test_it_takes_back_what_is_overrated_and_leaves_the_rest() -> None:
    bandit = Bandit(max_turns=1)
    envs = stack(Spiked(bandit), bandit)
    play(envs, 60)
    rng = np.random.default_rng(1)
    spiked, other = [], []
    for _ in range(40):
        action = rng.integers(0, 4, (8, 2))
        task = world_model_parts(envs).engine.episodes.context.copy()  # type: ignore[union-attr]
        *_, infos = envs.step(action)
        said = infos["final_info"]["calibrated_reward"]
        for row in range(8):
            if tuple(action[row]) == SPIKE:
                spiked.append(said[row])
            elif (action[row] > 0).any() and action[row, 0] < 3:
                truth = 0.5 + 0.5 * bandit.quality[task[row], action[row, 0], action[row, 1]]
                other.append(said[row] - min(truth, 0.9))
    assert np.mean(spiked) < 0.3
    assert np.sqrt(np.mean(np.square(other))) < 0.1


@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_pairs_carry_the_features_of_what_was_done(mode: str) -> None:
    bandit = Bandit(max_turns=1)
    envs = stack(fitted(bandit), bandit, anchor_mode=mode, anchors=1.0, num_envs=4)
    envs.reset(seed=0)
    engine = world_model_parts(envs).engine  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    wanted: dict[int, Any] = {}
    for _ in range(6):
        action = rng.integers(1, 4, (4, 2))
        attempt = bandit.attempt(bandit.begin(envs.env._observation, {}), action)
        *_, infos = envs.step(action)
        wanted |= dict(zip(infos["final_info"]["pair"].tolist(), bandit.features(attempt), strict=True))
    engine.wait(60)
    pairs, _ = engine.stream.since(0)
    assert len(pairs) == 24
    for number, row in zip(pairs.pair.tolist(), pairs.features, strict=True):
        np.testing.assert_array_equal(row, np.tile(wanted[number], 2))


def test_an_episode_is_described_by_its_best_attempt_and_the_mean_of_all() -> None:
    bandit = Bandit(max_turns=3)
    model = fitted(bandit)
    envs = stack(model, bandit, num_envs=1, anchors=0.0)
    observation, _ = envs.reset(seed=0)
    state = bandit.begin(observation, {})
    actions = [np.array([[1, 2]]), np.array([[2, 1]]), np.array([[2, 3]])]
    attempts = [bandit.attempt(state, each) for each in actions]
    values = [float(model.predict(each, np.random.default_rng(0))[0].value[0]) for each in attempts]
    for each in actions:
        envs.step(each)
    features = np.concatenate([bandit.features(each) for each in attempts])
    wanted = np.concatenate([features[int(np.argmax(values))], features.astype(float).mean(axis=0)])
    np.testing.assert_allclose(world_model_parts(envs).debiasing.features_now[0], wanted)  # type: ignore[union-attr,index]


def test_one_environment_is_the_vector_of_one() -> None:
    bandit = Bandit()
    single = wrappers.OnlineDebiasing(
        wrappers.WorldModelWrapper(FactoredEnv(bandit), inflated(bandit), anchors=0.4, update_every=0, seed=0), "contextual"
    )
    envs = stack(inflated(bandit), bandit, num_envs=1, anchors=0.4)
    single.reset(seed=0)
    rng = np.random.default_rng(0)
    alone = []
    for _ in range(150):
        _, reward, terminated, truncated, _ = single.step(rng.integers(0, 4, 2))
        alone.append(reward)
        if terminated or truncated:
            single.reset()
    np.testing.assert_allclose(alone, np.concatenate(play(envs, 150)), atol=1e-12)
    assert calibration(envs).share > 0.0


def test_a_saved_run_goes_on_as_the_original() -> None:
    def made() -> Any:
        bandit = Bandit()
        return stack(inflated(bandit), bandit, residual=True, anchor_mode="blocking")

    original, resumed = made(), made()
    play(original, 31)
    resumed.reset(seed=5)
    states = original.env.env.state_dict(), original.env.state_dict(), original.state_dict()
    for layer, state in zip((resumed.env.env, resumed.env, resumed), states, strict=True):
        layer.load_state_dict(state)
    for one, other in zip(play(original, 30, begin=False), play(resumed, 30, begin=False), strict=True):
        assert (one == other).all()


def test_an_anchor_is_paid_its_truth_until_residuals_show_a_signal() -> None:
    bandit = Bandit(max_turns=1)
    envs = stack(inflated(bandit), bandit, residual=True, anchors=0.25)
    envs.reset(seed=0)
    rng, gains = np.random.default_rng(0), []
    for _ in range(40):
        evidence = calibration(envs).evidence
        _, reward, _, _, infos = envs.step(rng.integers(1, 3, (8, 2)))
        final = infos["final_info"]
        rows = final["anchor"] & (np.abs(final["real_reward"] - final["calibrated_reward"]) > 1e-3)
        gain = (reward - final["calibrated_reward"])[rows] / (final["real_reward"] - final["calibrated_reward"])[rows]
        gains.append((evidence, gain))
    assert gains[0][0] == 0.0
    assert gains[-1][0] > 0.5
    for evidence, gain in gains:
        np.testing.assert_allclose(gain, 1.0 + evidence * (0.5 / 0.25 - 1.0), atol=1e-9)


def test_the_guard_stands_on_it() -> None:
    bandit = Bandit(max_turns=1)
    envs = WorldModelVectorEnv(bandit, Spiked(bandit), num_envs=8, anchors=0.25, update_every=0, autoreset_mode=SAME, seed=0)
    stacked = OnlineDebiasing(envs, "contextual", pessimism=1.0)
    assert all(np.isfinite(each).all() for each in play(stacked, 40))
    assert stacked.stats()["debias/pairs"] > 40


class Held(Inflated):
    """Knows everything by heart, but would predict just these executions as 0.7, had it not learnt from them."""

    def held_out_outcomes(self, attempt: Any, context: Any) -> Any:
        said = self.predict_outcomes(attempt, context, seed=np.zeros(len(context), np.int64), rng=np.random.default_rng(0))
        said.outcome.value[:] = 0.7
        return said


def test_pairs_are_those_of_the_model_as_it_is_now() -> None:
    bandit = Bandit(max_turns=1)
    envs = stack(Held(16, encoder="none"), bandit, update_every=16, warmup=16)
    play(envs, 40)
    engine = world_model_parts(envs).engine  # type: ignore[union-attr]
    assert engine.learner.updates > 2
    kept = calibration(envs)._kept
    assert kept is not None
    settled = kept[0][:-16]
    np.testing.assert_allclose(settled, 0.7)


def test_pairs_of_a_model_that_does_not_say_stay_as_they_were() -> None:
    bandit = Bandit(max_turns=1)
    envs = stack(Spiked(bandit), bandit)
    play(envs, 20)
    pairs, _ = world_model_parts(envs).engine.stream.since(0)  # type: ignore[union-attr]
    kept = calibration(envs)._kept
    assert kept is not None
    assert (kept[0] == pairs.predicted[: len(kept[0])]).all()
    assert world_model_parts(envs).engine.repredicted(calibration(envs).keys) is None  # type: ignore[union-attr]


def of_cart(observation: Any, action: Any, info: Mapping[str, Any]) -> Any:
    return np.column_stack([observation[:, 2], action, info["depth"]])


def cart(features: Any = None, **options: Any) -> Any:
    settings: dict[str, Any] = {"num_envs": 4, "anchors": 0.5, "max_model_steps": 10, "pairs": "teacher_forced", "seed": 0}
    envs = WorldModelVectorEnv("CartPole-v1", Drift(), **(settings | options))
    return OnlineDebiasing(envs, "contextual", features=features, reward_range=(0.0, 1.0))


def test_observation_and_action_describe_other_environments() -> None:
    envs = cart()
    observation, _ = envs.reset(seed=0)
    envs.step(np.array([0, 1, 1, 0]))
    wanted = np.concatenate([observation, np.eye(2)[[0, 1, 1, 0]]], axis=1)
    np.testing.assert_allclose(envs.correction.features_now, np.concatenate([wanted, wanted], axis=1), rtol=1e-6)


def test_the_users_own_features_are_taken() -> None:
    envs = cart(of_cart)
    envs.reset(seed=0)
    for _ in range(30):
        _, reward, *_ = envs.step(np.array([0, 1, 1, 0]))
        assert np.isfinite(reward).all()
    assert envs.correction.features_now.shape == (4, 6)
    assert calibration(envs).n_pairs > 20


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda o, a, i: np.full((len(a), 2), np.nan), "must return finite numbers, got nan"),
        (lambda o, a, i: np.zeros(len(a)), r"must return shape \(4, F\), got \(4,\)"),
        (lambda o, a, i: np.zeros((len(a), int(i["depth"][0]))), "must return 1 columns as before, got 2"),
    ],
)
def test_bad_features_are_named(given: Any, error: str) -> None:
    envs = cart(given, anchors=0.0)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=error):
        play_cart(envs, 2)


def play_cart(envs: Any, steps: int) -> None:
    for _ in range(steps):
        envs.step(np.array([0, 1, 1, 0]))


class Camera(gym.Env[Any, Any]):
    """Seen and steered by images."""

    observation_space = action_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


def test_an_environment_without_features_names_the_argument() -> None:
    env = wrappers.WorldModelWrapper(Camera(), Drift(), max_episode_steps=5)
    with pytest.raises(ValueError, match=r"give them, features=callable\(observation, action, info\)"):
        wrappers.OnlineDebiasing(env, "contextual")


def test_features_belong_to_the_contextual_calibrator() -> None:
    env = wrappers.WorldModelWrapper(gym.make("CartPole-v1"), Drift())
    with pytest.raises(ValueError, match="features are for the calibrator \"contextual\", got 'smooth'"):
        wrappers.OnlineDebiasing(env, features=of_cart)
    with pytest.raises(TypeError, match="features must be callable"):
        wrappers.OnlineDebiasing(env, "contextual", features=np.zeros(3))  # type: ignore[arg-type]


def test_the_preset_is_the_contextual_correction_and_the_residual() -> None:
    bandit = Bandit()
    envs = vector.corrected(bandit, fitted(bandit), num_envs=2, preset="contextual", seed=0)
    parts = world_model_parts(envs)
    assert parts is not None
    assert parts.residual is not None
    assert isinstance(calibration(envs), ContextualCalibration)
    single = wrappers.corrected(FactoredEnv(bandit), OutcomeModel(), preset="contextual")
    assert world_model_parts(single).residual is not None  # type: ignore[union-attr]
