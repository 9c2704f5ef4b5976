"""InverseVarianceDenoising in its three modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import fitted
from tests.exploitable import Spiked
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import Prediction
from wmrl_gym.wrappers import InverseVarianceDenoising as Single
from wmrl_gym.wrappers import OnlineDebiasing as SingleDebiasing
from wmrl_gym.wrappers import OrderError, WorldModelWrapper
from wmrl_gym.wrappers.vector import InverseVarianceDenoising, OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


class Uneven(Spiked):
    """Noise that depends on the design's first part, and says so."""

    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        self.noise = 0.0
        after, prediction = super().step(state, action, rng)
        loud = np.asarray(action)[:, 0] == 2
        prediction.reward_std[:] = np.where(loud, 0.2, 0.02)
        prediction.reward[:] = np.clip(prediction.reward + prediction.reward_std * rng.standard_normal(len(loud)), 0, 1)
        return after, prediction


def vector(model: Any, bandit: Bandit, **options: Any) -> WorldModelVectorEnv:
    settings = {"num_envs": 32, "anchors": 0.2, "update_every": 0, "autoreset_mode": SAME, "max_real": 2} | options
    return WorldModelVectorEnv(bandit, model, **settings)


def play(envs: Any, steps: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random valid designs; every step's reward and final info."""
    rng = np.random.default_rng(seed)
    told: dict[str, list[Any]] = {"reward": [], "weight": [], "anchor": [], "wm_reward": [], "real_reward": [], "action": []}
    for _ in range(steps):
        action = np.stack([rng.integers(1, 3, envs.num_envs), rng.integers(0, 4, envs.num_envs)], axis=1)
        _, reward, *_, infos = envs.step(action)
        for name in ("weight", "anchor", "wm_reward", "real_reward"):
            told[name].append(infos["final_info"][name].copy())
        told["reward"].append(reward)
        told["action"].append(action[:, 0])
    return {name: np.concatenate(values) for name, values in told.items()}


@pytest.mark.parametrize("method", ["delta", "bootstrap"])
def test_the_gradient_mode_weighs_anchors_more_the_noisier_the_model(method: Any) -> None:
    weights = []
    for noise in (0.0, 0.15):
        bandit = Bandit(max_turns=1)
        envs = InverseVarianceDenoising(vector(Spiked(bandit, noise=noise), bandit), "gradient", method=method)
        envs.reset(seed=0)
        told = play(envs, 60)
        late = slice(-320, None)
        assert (told["weight"][late][~told["anchor"][late]] == 1).all()
        weights.append(told["weight"][late][told["anchor"][late]].mean())
        assert envs.stats()["denoise/weight"] == pytest.approx(weights[-1], rel=0.3)
        envs.close()
    assert weights[0] == pytest.approx(1.0, abs=0.25)
    assert weights[1] > 1.3


def test_the_gradient_mode_measures_what_calibration_leaves() -> None:
    bandit = Bandit(max_turns=1)
    envs = InverseVarianceDenoising(OnlineDebiasing(vector(Spiked(bandit, noise=0.15), bandit)), "gradient")
    envs.reset(seed=0)
    play(envs, 60)
    assert envs.stats()["denoise/slope"] < 0.9
    assert 0.6 < envs.stats()["denoise/weight"] < 1.5
    envs.close()


def test_the_reward_mode_brings_noisy_predictions_nearer_to_the_truth_and_leaves_weights_and_anchors() -> None:
    errors = {}
    for name in ("raw", "shrunk"):
        bandit = Bandit(max_turns=1)
        below: Any = vector(Uneven(bandit), bandit)
        envs = InverseVarianceDenoising(below, "reward") if name == "shrunk" else below
        envs.reset(seed=0)
        told = play(envs, 60)
        real = np.isfinite(told["real_reward"])
        np.testing.assert_array_equal(told["reward"][real], told["real_reward"][real])
        assert (told["weight"] == 1).all()
        centre = told["reward"][~real].mean()
        loud = ~real & (told["action"] == 2)
        errors[name] = float(((told["reward"][loud] - centre) ** 2).mean())
        envs.close()
    assert errors["shrunk"] < 0.5 * errors["raw"]


def test_after_debiasing_the_reward_mode_stays_inside_the_range_and_moves_loud_predictions_only_towards_their_group() -> None:
    bandit = Bandit(max_turns=1)
    envs = InverseVarianceDenoising(OnlineDebiasing(vector(Uneven(bandit), bandit)), "reward")
    envs.reset(seed=0)
    told = play(envs, 60)
    assert ((told["reward"] >= 0) & (told["reward"] <= 1)).all()
    assert envs.stats()["denoise/shrinkage"] != 1.0
    envs.close()


@pytest.mark.parametrize("mode", ["paper", "gradient", "reward"])
def test_single_and_vector_do_the_same(mode: Any) -> None:
    bandit = Bandit(max_turns=1)
    model = fitted(Bandit(max_turns=1), 60)
    model.bind(WorldModelVectorEnv(bandit, model, num_envs=1).engine.real.interface)
    one: Any = Single(SingleDebiasing(WorldModelWrapper(FactoredEnv(bandit), model, anchors=0.4, update_every=0)), mode)
    many = InverseVarianceDenoising(OnlineDebiasing(vector(model, bandit, num_envs=1, anchors=0.4)), mode)
    one.reset(seed=2)
    many.reset(seed=2)
    rng = np.random.default_rng(1)
    for _ in range(60):
        action = rng.integers(1, 3, (1, 2))
        _, reward, *_, info = one.step(action[0])
        _, rewards, *_, infos = many.step(action)
        assert reward == rewards[0]
        assert info["weight"] == infos["final_info"]["weight"][0]
        one.reset()
    assert one.stats() == pytest.approx(many.stats(), nan_ok=True)
    many.close()


@pytest.mark.parametrize("mode", ["paper", "gradient", "reward"])
def test_every_mode_resumes_as_if_never_stopped(mode: Any) -> None:
    def make() -> tuple[Any, Any, Any]:
        bandit = Bandit(max_turns=1)
        envs = vector(Uneven(bandit), bandit, group_size=4)
        debiased = OnlineDebiasing(envs)
        return envs, debiased, InverseVarianceDenoising(debiased, mode)

    first, second = make(), make()
    first[-1].reset(seed=1)
    second[-1].reset(seed=8)
    play(first[-1], 30)
    for source, target in zip(first, second, strict=True):
        target.load_state_dict(source.state_dict())
    expected, actual = play(first[-1], 10, seed=4), play(second[-1], 10, seed=4)
    for name, value in expected.items():
        np.testing.assert_array_equal(value, actual[name])
    for envs in (first[-1], second[-1]):
        envs.close()


def test_late_truths_concern_weights_and_not_the_reward_mode() -> None:
    bandit = Bandit(max_turns=1)
    background = {"anchor_mode": "background"}
    with pytest.raises(OrderError, match="LateAnchors"):
        InverseVarianceDenoising(vector(Spiked(bandit), bandit, **background), "gradient")
    InverseVarianceDenoising(vector(Spiked(bandit), bandit, **background), "gradient", late=True).close()
    InverseVarianceDenoising(vector(Spiked(bandit), bandit, **background), "reward").close()


def test_unknown_modes_methods_and_orders_are_refused() -> None:
    bandit = Bandit(max_turns=1)
    envs = vector(Spiked(bandit), bandit)
    with pytest.raises(ValueError, match="mode must be one of 'paper', 'gradient', 'reward', got 'magic'"):
        InverseVarianceDenoising(envs, "magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for mode \"gradient\", got mode 'paper'"):
        InverseVarianceDenoising(envs, method="bootstrap")
    with pytest.raises(OrderError, match="is there twice"):
        InverseVarianceDenoising(InverseVarianceDenoising(envs, "reward"), "gradient")
    with pytest.raises(OrderError, match="must stand below"):
        ResidualCorrection(InverseVarianceDenoising(OnlineDebiasing(envs), "reward"))
    envs.close()


def test_a_reset_with_a_seed_does_not_mix_groups_of_two_runs() -> None:
    bandit = Bandit(max_turns=1)
    envs = InverseVarianceDenoising(vector(Spiked(bandit), bandit, num_envs=4, anchors=1.0, group_size=8))
    envs.reset(seed=0)
    envs.step(np.ones((4, 2), int))  # half of a group
    envs.reset(seed=0)
    envs.step(np.ones((4, 2), int))  # the same half, of another run
    assert envs.correction.weight.n_groups == 0
    assert sorted(len(members) for members in envs.correction._partial.values()) == [4, 4]
    envs.close()
