"""The doubt about a reward is the doubt about the attempt that it is paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bandit import Bandit
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.factored import Outcome
from wmrl_gym.world_models import Interface
from wmrl_gym.world_models.attempts import AttemptModel, PredictedOutcomes


class Told(AttemptModel):
    """Predicts what it is told, attempt by attempt: value, what is shown of it, and the standard deviation."""

    def __init__(self, *told: tuple[float, float, float]) -> None:
        self.left = list(told)

    def predict_outcomes(self, attempt: Any, context: NDArray[np.int64], *, seed: Any, rng: Any) -> PredictedOutcomes:
        value, shown, std = (np.array([each]) for each in self.left.pop(0))
        status = np.array([self.factored.statuses.index("valid")])
        none = np.zeros(1)
        outcome = Outcome(status, value, shown, np.array([""], dtype=object), np.array([True]), none, none)
        return PredictedOutcomes(outcome, std)


def last_step(model: Told, factored: Any, actions: list[Any]) -> Any:
    model.bind(Interface(factored.observation_space, factored.action_space, factored.reward_range, factored))
    observation, info = factored.start(np.arange(1))
    rng = np.random.default_rng(0)
    state = model.begin(observation, info, rng)
    for action in actions:
        state, prediction = model.step(state, action, rng)
    return prediction


@pytest.mark.parametrize(
    ("reward", "paid", "std"),
    [("final", 0.6, 0.25), ("best_test", 0.9, 0.5)],
)
def test_the_reward_and_its_doubt_are_of_the_same_attempt(reward: Any, paid: float, std: float) -> None:
    text = AutoResearchText("diabetes", max_turns=3, reward=reward)
    told = Told((0.9, 0.6, 0.5), (0.6, 0.8, 0.25), (0.7, 0.7, 0.125))
    prediction = last_step(told, text, [(f"```python\nx = {number}\n```",) for number in range(3)])
    assert prediction.reward.tolist() == [paid]
    assert prediction.reward_std.tolist() == [std]


def test_an_attempt_without_a_shown_value_is_not_what_is_paid() -> None:
    text = AutoResearchText("diabetes", max_turns=2)
    prediction = last_step(
        Told((0.6, 0.6, 0.25), (0.9, np.nan, 0.5)), text, [("```python\nx = 1\n```",), ("```python\nx = 2\n```",)]
    )
    assert (prediction.reward.tolist(), prediction.reward_std.tolist()) == ([0.6], [0.25])


def test_where_nothing_is_said_the_highest_value_is_paid() -> None:
    assert Bandit().chosen_by == "value"
