"""``check_world_model`` names every broken promise, and finds nothing where there is none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel, Prediction, WorldModelError, check, check_world_model


def test_models_that_keep_the_contract_pass() -> None:
    bandit = Bandit()
    assert check_world_model(fitted(bandit), FactoredEnv(bandit)) == []
    assert check_world_model(OutcomeModel(encoder="none"), FactoredEnv(bandit)) == []
    assert check_world_model(Drift(step=0.001), gym.make("CartPole-v1")) == []


def test_an_ensemble_keeps_the_contract_before_and_after_it_has_learnt() -> None:
    from wmrl_gym.wrappers.vector import WorldModelVectorEnv

    model = EnsembleDynamics()
    envs = WorldModelVectorEnv("CartPole-v1", model, num_envs=1, seed=0)
    assert check_world_model(model, gym.make("CartPole-v1")) == []
    envs.warm_up(600)
    assert model.fitted
    assert check_world_model(model, gym.make("CartPole-v1")) == []
    envs.close()


class Impure(Drift):
    calls = 0

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        self.calls += 1
        self.pays = float(self.calls)
        return super().step(state, action, rng)


class Sociable(Drift):
    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        self.by = 0.001 * len(state)
        return super().step(state, action, rng)


class Spoiling(Drift):
    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        after, prediction = super().step(state, action, rng)
        state += 0.01
        return after, prediction


class Unseeded(Drift):
    drawn = 0

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        self.drawn += 1
        return observation + np.float32(1e-3 * self.drawn)


class Forgetful(Drift):
    def save(self, path: Any) -> None:
        pass

    def load(self, path: Any) -> None:
        self.pays += 1.0


class Fixed(Drift):
    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        if len(state) > 8:
            raise ValueError("this network has 8 heads")
        return super().step(state, action, rng)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Drift(step=9.0), "a batch of 1: predicted observation of rollout 0 is outside its space"),
        (Impure(step=0.001), "the same step twice: reward differ"),
        (Spoiling(step=0.001), "the same step twice: observation differ"),
        (Unseeded(step=0.001), "the same seed twice: observation differ"),
        (Sociable(), "a rollout alone and in company: observation differ"),
        (Forgetful(step=0.001), "save and load: reward differ"),
        (Fixed(step=0.001), "a batch of 256: ValueError: this network has 8 heads"),
    ],
)
def test_each_broken_promise_has_its_sentence(model: Any, message: str) -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(WorldModelError, match="breaks the contract"):
        check_world_model(model, env)
    assert any(sentence.startswith(message) for sentence in check_world_model(model, env, raise_=False))


def test_all_broken_promises_are_named_at_once() -> None:
    class Bad(Fixed, Sociable):
        pass

    broken = check_world_model(Bad(), gym.make("CartPole-v1"), raise_=False)
    assert len(broken) >= 2
    assert np.array([isinstance(sentence, str) for sentence in broken]).all()


def test_checking_step_by_step_builds_each_space_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    plain = check.batch_space

    def counted(space: Any, n: int) -> Any:
        built.append(n)
        return plain(space, n)

    monkeypatch.setattr(check, "batch_space", counted)
    space = gym.spaces.Dict({"said": gym.spaces.Text(8), "at": gym.spaces.Discrete(5)})
    checked, no = check.PredictionCheck(space), np.zeros(3, bool)
    for _ in range(4):
        told = {"said": ("a", "b", "c"), "at": np.array([0, 1, 4])}
        checked(Prediction(told, np.zeros(3), np.zeros(3), no, no, ~no, ~no), 3)
    assert built == [3, 3], "one for the text, one for the number"
    with pytest.raises(WorldModelError, match=r"observation\['at'\] of rollout 2 is outside"):
        checked(Prediction(told | {"at": np.array([0, 1, 5])}, np.zeros(3), np.zeros(3), no, no, ~no, ~no), 3)
