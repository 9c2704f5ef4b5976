"""Background anchors of a vector environment: the imagined actions, executed, in bounds, and told when they fail."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit, truth
from tests.drifting import fitted
from tests.wrappers.test_world_model_vector_env import steps
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.vector import (
    WorldModelVectorEnv,
)
from wmrl_gym.wrappers.vector.corrections import VectorStepInfo


@pytest.fixture
def bandit() -> Bandit:
    return Bandit()


def test_background_anchors_execute_the_imagined_actions_from_the_same_start(bandit: Bandit) -> None:
    model = fitted(bandit)
    envs = WorldModelVectorEnv(
        bandit,
        model,
        num_envs=4,
        anchors=1.0,
        anchor_mode="background",
        autoreset_mode=AutoresetMode.SAME_STEP,
        update_every=0,
        max_real=2,
    )
    observation, _ = envs.reset(seed=1)
    tasks = observation[:, :3].argmax(axis=1)
    actions = np.random.default_rng(3).integers(0, 4, (3, 4, 2))
    for turn in range(3):
        _, reward, *_, infos = envs.step(actions[turn])
    rows = VectorStepInfo(infos, np.ones(4, bool))
    assert np.isnan(rows["real_reward"]).all()
    np.testing.assert_array_equal(reward, rows["wm_reward"])
    assert envs.engine.wait(60)
    pairs, _ = envs.engine.stream.since(0)
    expected = {int(rows["pair"][slot]): truth(bandit, tasks[slot], actions[:, slot]) for slot in range(4)}
    assert dict(zip(pairs.pair.tolist(), pairs.real.tolist(), strict=True)) == pytest.approx(expected)
    envs.close()


def test_the_fit_does_not_depend_on_the_order_of_arrival() -> None:
    from wmrl_gym.corrections import OnlineCalibration

    rng = np.random.default_rng(0)
    predicted, real, context = rng.random(60), rng.random(60), rng.integers(0, 3, 60)
    at = np.linspace(0, 1, 11)
    fits = []
    for order in (np.arange(60), rng.permutation(60)):
        f = OnlineCalibration()
        for row in order:
            f.push(predicted[[row]], real[[row]], context=context[[row]])
        fits.append(f.predict(at, context=np.zeros(11, np.int64)))
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-6)


def test_the_number_of_background_anchors_in_flight_is_bounded(bandit: Bandit) -> None:
    envs = WorldModelVectorEnv(
        bandit,
        fitted(bandit),
        num_envs=16,
        anchors=1.0,
        anchor_mode="background",
        max_in_flight=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        update_every=0,
    )
    envs.reset(seed=0)
    for _ in steps(envs, 12):
        assert envs.engine.in_flight <= 2
    envs.close()


def test_a_crash_behind_the_scenes_is_unknown_and_warns() -> None:
    crashing = Bandit(crash=2)
    model = fitted(Bandit())
    envs = WorldModelVectorEnv(
        crashing, model, num_envs=2, anchors=1.0, anchor_mode="background", autoreset_mode=AutoresetMode.SAME_STEP, update_every=0
    )
    envs.reset(seed=0)

    def finish_an_episode() -> None:
        for _ in range(3):
            envs.step(np.array([[2, 1], [1, 1]]))
        assert envs.engine.wait(60)

    with pytest.warns(UserWarning, match=r"counts as unknown.*the executor crashed"):
        finish_an_episode()
    assert diagnostics(envs)["anchors/unknown"] == 1
    assert envs.engine.stream.added == 1
    envs.close()
