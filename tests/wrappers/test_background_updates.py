"""A model that learns in the background: episodes go on while it does, and what it learnt is adopted between steps."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from wmrl_gym.data import Transitions
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


class Gated(OutcomeModel):
    """Learns aside only when it is let; what it is given is noted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(8, encoder="none", min_executions=6, **options)
        self.let, self.began = threading.Event(), threading.Event()
        self.hold = False
        self.given: list[Transitions] = []

    def compute_update(self, transitions: Transitions, rng: np.random.Generator) -> Any:
        self.given.append(transitions)
        self.began.set()
        if self.hold:
            assert self.let.wait(30)
        return super().compute_update(transitions, rng)


def envs_of(model: OutcomeModel, bandit: Bandit | None = None, **options: Any) -> WorldModelVectorEnv:
    chosen = {"num_envs": 4, "anchors": 0.5, "warmup": 12, "update_every": 4, "update_mode": "background", "seed": 0} | options
    return WorldModelVectorEnv(bandit or Bandit(), model, **chosen)  # type: ignore[arg-type]


def run(envs: Any, steps: int, seed: int = 0) -> None:
    envs.action_space.seed(seed)
    for _ in range(steps):
        envs.step(envs.action_space.sample())


def test_steps_do_not_wait_for_an_update_and_adopt_it_when_it_is_done() -> None:
    model = Gated()
    envs = envs_of(model)
    envs.reset(seed=0)
    model.began.clear()
    model.hold = True
    learnt = model.executions
    for _ in range(40):
        run(envs, 1)
        if model.began.wait(0.0):
            break
    run(envs, 20)  # the update is held all the while
    assert model.executions == learnt
    assert len(model.given) == 2, "one at a time"
    model.hold = False
    model.let.set()
    envs.engine.learner.settle()
    assert model.executions > learnt
    assert envs.stats()["wm/executions"] == model.executions
    assert envs.last_cost["update_s"] > 0
    model.began.clear()
    run(envs, 40)
    assert model.began.wait(30), "then the next begins"
    assert len(model.given) > 2
    envs.close()


def test_each_real_transition_is_learnt_from_once_and_no_autoreset_or_lost_step_ever() -> None:
    bandit = Bandit(lose=2)
    model = Gated()
    envs = envs_of(model, bandit)
    envs.reset(seed=0)
    run(envs, 60)
    envs.engine.update_model()
    learnt = sum(len(each) for each in model.given)
    assert learnt == envs.engine.buffer.added == envs.last_cost["executions"]
    everything = envs.engine.buffer.everything()
    assert everything is not None
    turn = np.rint(everything.observation[:, 3] * 3)
    after = np.rint(everything.next_observation[:, 3] * 3)
    np.testing.assert_array_equal(after, turn + 1)  # an autoreset step would lead back to turn 0
    lost = ~everything.outcome.known  # type: ignore[union-attr]
    assert lost.any()
    gated, _ = bandit.gate(everything.attempt)
    assert model.executions == int((~lost & ~gated).sum())
    assert model.evidence is not None
    assert model.evidence.outcome.known.all()
    envs.close()


def test_saving_waits_for_the_update_so_that_the_checkpoint_is_whole() -> None:
    model = Gated()
    envs = envs_of(model)
    envs.reset(seed=0)
    run(envs, 30)
    envs.state_dict()
    assert envs.engine.learner.in_background
    assert not envs.engine.learner.running
    envs.close()


def test_a_single_environment_learns_in_background_too() -> None:
    model = Gated()
    env = WorldModelWrapper(FactoredEnv(Bandit()), model, anchors=0.5, update_every=3, update_mode="background", seed=0)
    env.action_space.seed(0)
    for _ in range(30):
        env.reset()
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    env.engine.update_model()
    assert model.executions > 20
    env.close()


def test_what_fails_aside_is_raised_where_the_environment_is_stepped() -> None:
    class Broken(Gated):
        def compute_update(self, transitions: Transitions, rng: np.random.Generator) -> Any:
            if self.fitted:
                raise ArithmeticError("cannot learn")
            return super().compute_update(transitions, rng)

    envs = envs_of(Broken())
    envs.reset(seed=0)

    def run_and_adopt() -> None:
        run(envs, 40)
        envs.engine.learner.settle()

    with pytest.raises(ArithmeticError, match="cannot learn"):
        run_and_adopt()
    envs.close()


def test_a_model_that_cannot_learn_aside_learns_as_ever() -> None:
    class AtOnce(Gated):
        learns_in_background = False

    model = AtOnce()
    envs = envs_of(model)
    envs.reset(seed=0)
    run(envs, 20)
    assert not envs.engine.learner.in_background
    assert model.executions > 0
    envs.close()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match='update_mode must be "blocking" or "background"'):
        WorldModelWrapper(gym.make("CartPole-v1"), OutcomeModel(), update_mode="never")  # type: ignore[arg-type]
