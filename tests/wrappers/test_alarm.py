"""What a run says of its world model: that it harms, and that it costs more than it saves."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.exploitable import Spiked, exploit
from wmrl_gym.engine import ledger
from wmrl_gym.engine.alarm import HarmAlarm
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers import WorldModelWrapper, diagnostics
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

HARMS = "the world model seems to harm"


@pytest.mark.parametrize("anchor_mode", ["blocking", "background"])
def test_an_exploited_model_rings_once_and_the_numbers_say_why(anchor_mode: str) -> None:
    with pytest.warns(UserWarning, match=HARMS) as caught:
        true, _, said = exploit(pessimism=None, anchors=0.03, corrected=False, steps=120, anchor_mode=anchor_mode)
    assert len(caught) == 1
    assert "fallen while the predicted ones have risen" in str(caught[0].message)
    assert true < 0.2
    assert said["anchors/harm"] == 1.0
    assert said["anchors/real_last"] < said["anchors/real_first"] - 0.1
    assert said["anchors/predicted_last"] > said["anchors/predicted_first"] + 0.1


@pytest.mark.parametrize("anchor_mode", ["blocking", "background"])
def test_a_harmless_model_does_not_ring(anchor_mode: str) -> None:
    true, _, said = exploit(pessimism=None, anchors=0.03, corrected=False, steps=120, spike=0.1, anchor_mode=anchor_mode)
    assert true > 0.6, "the policy has learnt"
    assert said["anchors/harm"] == 0.0
    assert said["anchors/real_last"] > said["anchors/real_first"]


def test_noise_rings_it_in_few_of_many_runs() -> None:
    rng = np.random.default_rng(0)
    rang = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(100):
            alarm, rings = HarmAlarm(1, group_size=1), set()
            for group, (real, error) in enumerate(rng.standard_normal((600, 2)).tolist()):
                alarm.measured(real, real + 0.5 * error, group=group, propensity=0.1)
                rings.add(alarm.harms)
            rang += 1.0 in rings
    assert rang <= 3


def fed(alarm: HarmAlarm, real: Any, predicted: Any, *, first: int = 0) -> None:
    for at, (truth, told) in enumerate(zip(real, predicted, strict=True)):
        alarm.measured(float(truth), float(told), group=first + at, propensity=0.5)


def test_it_rings_where_anchors_end_below_the_first_ones_whatever_was_predicted() -> None:
    rng, alarm = np.random.default_rng(0), HarmAlarm(1, group_size=1)
    real = np.r_[np.full(100, 1.0), np.full(100, 0.4)] + 0.1 * rng.standard_normal(200)
    with pytest.warns(UserWarning, match="below those of the first ones"):
        fed(alarm, real, real)
    assert alarm.harms == 1.0


def test_it_keeps_little_however_long_a_run_is() -> None:
    rng, alarm = np.random.default_rng(0), HarmAlarm(1, group_size=1)
    fed(alarm, rng.random(10_000), rng.random(10_000))
    state = alarm.state_dict()
    assert state["count"] == 10_000
    assert len(state["sums"]) <= 64
    assert alarm.stats()["anchors/real_first"] == pytest.approx(0.5, abs=0.02)


def test_before_there_are_enough_anchors_nothing_is_known() -> None:
    alarm = HarmAlarm(1, group_size=1)
    fed(alarm, np.ones(39), np.ones(39))
    assert all(np.isnan(value) for value in alarm.stats().values())
    fed(alarm, [1.0], [1.0], first=39)
    assert alarm.stats()["anchors/harm"] == 0.0


def test_the_members_of_a_group_are_one_measurement() -> None:
    alarm = HarmAlarm(4, group_size=4)
    for group in range(50):
        for member in range(4):
            alarm.measured(float(member), 0.0, group=group, propensity=0.5)
    assert alarm.state_dict()["count"] == 50
    assert alarm.stats()["anchors/real_last"] == 1.5


def test_an_episode_that_began_before_the_first_fit_is_no_measurement() -> None:
    model = EnsembleDynamics((8,), n_members=2, n_elites=2, min_transitions=60, max_gradient_steps=2)
    env = WorldModelWrapper(gym.make("Pendulum-v1", max_episode_steps=100), model, anchors=1.0, update_every=20, seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        env.reset()
        for _ in range(100):
            env.step(env.action_space.sample())
    assert env.engine.stream.added > 200, "the first episode made pairs as well, from its fit on"
    assert env.engine.ledger.alarm.state_dict()["count"] == 2
    env.close()


def alarmed(steps: int, *, state: dict[str, Any] | None = None) -> tuple[Any, dict[str, float]]:
    bandit = Bandit(max_turns=2)
    envs = WorldModelVectorEnv(
        bandit, Spiked(bandit), num_envs=8, anchors=0.5, update_every=0, autoreset_mode=AutoresetMode.SAME_STEP, seed=3
    )
    envs.reset(seed=3)
    if state is not None:
        envs.load_state_dict(state)
    actions = np.random.default_rng(5).integers(0, 4, (60, 8, 2))
    begun = envs.engine.ledger.alarm.state_dict()["count"]
    for action in actions[0 if state is None else 30 :][:steps]:
        envs.step(action)
    said = {name: value for name, value in diagnostics(envs).items() if name.startswith("anchors/")}
    kept = envs.state_dict()
    assert envs.engine.ledger.alarm.state_dict()["count"] > begun
    envs.close()
    return kept, said


def test_saved_and_resumed_it_says_the_same() -> None:
    _, whole = alarmed(60)
    half, _ = alarmed(30)
    _, resumed = alarmed(30, state=half)
    assert np.isfinite(whole["anchors/real_first"])
    np.testing.assert_equal(resumed, whole)


def test_a_run_says_once_that_imagining_costs_more_than_it_saves() -> None:
    env = WorldModelWrapper(gym.make("Pendulum-v1"), EnsembleDynamics((8,), max_gradient_steps=2), anchors=1.0, seed=0)
    env.action_space.seed(0)
    assert np.isnan(diagnostics(env)["cost/saved_s"])
    env.reset()
    for _ in range(99):
        env.step(env.action_space.sample())
    cost = env.engine.ledger.cost
    cost.imagined, cost.predict_s, cost.update_s, cost.real_wall_s = 20_000, 130.0, 40.0, 0.5
    with pytest.warns(
        UserWarning, match=r"imagining has cost 70 s more .* for 20,001 predictions and 40 s to learn; it pays from 8"
    ):
        env.step(env.action_space.sample())
    assert diagnostics(env)["cost/saved_s"] < 0
    env.step(env.action_space.sample())  # says it no more
    cost.real_wall_s = 1e6
    assert diagnostics(env)["cost/saved_s"] > 0
    env.close()


def test_late_truths_that_nobody_collects_are_the_newest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_LATE", 6)
    bandit = Bandit(max_turns=1)
    envs = WorldModelVectorEnv(
        bandit,
        Spiked(bandit),
        num_envs=4,
        anchors=1.0,
        anchor_mode="background",
        update_every=0,
        autoreset_mode=AutoresetMode.SAME_STEP,
        seed=0,
    )
    envs.reset(seed=0)
    envs.engine.collect_late()  # and whoever began has gone
    for _ in range(20):
        envs.step(np.full((4, 2), 1))
        envs.engine.wait(60)
    assert envs.engine.stream.added == 80
    truths, _ = envs.engine.collect_late()
    assert 6 <= len(truths) <= 12
    assert min(truths) >= 80 - 12
    assert max(truths) == 79
    envs.close()
