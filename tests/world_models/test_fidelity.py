"""``evaluate`` measures what it says: on models whose errors are known."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from tests.bandit import Bandit, BanditAttempt
from tests.drifting import fitted
from tests.world_models.real_steps import bandit_steps
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.factored import Outcome
from wmrl_gym.world_models import (
    Interface,
    OutcomeModel,
    Prediction,
    WorldModel,
    WorldModelError,
    evaluate,
)

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Walk(WorldModel):
    """Truth: x moves by 1, y by its action; a step pays x, and ends at x = 9. This model errs as it is told."""

    def __init__(self, *, drift: float = 0.0, bias: float = 0.0, noise: float = 0.0, std: float = 0.1, ends: float = 9.0) -> None:
        self.drift, self.bias, self.noise, self.std, self.ends = drift, bias, noise, std, ends

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        return observation

    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        n = len(state)
        after = state + np.stack([np.full(n, 1.0 + self.drift), action[:, 0]], axis=1)
        reward = state[:, 0] + self.bias + self.noise * rng.standard_normal(n)
        no, yes = np.zeros(n, bool), np.ones(n, bool)
        return after, Prediction(after, reward, np.full(n, self.std), after[:, 0] >= self.ends, no, yes, yes)


def walks(episodes: int, *, seed: int = 0) -> Transitions:
    """Real episodes of nine steps."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(episodes):
        x = np.arange(9.0)
        action = rng.standard_normal((9, 1))
        y = rng.standard_normal() + np.concatenate([[0.0], action[:, 0].cumsum()])
        before, after = np.stack([x, y[:-1]], axis=1), np.stack([x + 1, y[1:]], axis=1)
        no = np.zeros(9, bool)
        parts.append(Transitions(before, action, x.copy(), after, x == 8, no, ~no, np.zeros(9, np.int64)))
    return batch.concatenate(parts)


def interface() -> Interface:
    return Interface(SPACE, gym.spaces.Box(-np.inf, np.inf, (1,), np.float64))


def test_a_perfect_model_makes_no_error() -> None:
    report = evaluate(Walk(), walks(20), interface=interface(), horizons=(1, 5, 9, 30))
    assert (report.reward.mae, report.reward.r2, report.reward.rank_correlation) == (0.0, 1.0, 1.0)
    assert report.termination is not None
    assert (report.termination.f1, report.termination.n_real) == (1.0, 20)
    assert report.horizon is not None
    assert report.horizon.steps == (1, 5, 9)  # no episode has thirty
    assert report.horizon.error == pytest.approx((0, 0, 0), abs=1e-12)
    assert all(still > 0.1 for still in report.horizon.still)


def test_bias_and_variance_are_told_apart() -> None:
    report = evaluate(Walk(bias=0.7, noise=0.3), walks(400), interface=interface())
    assert report.reward.bias == pytest.approx(0.7, abs=0.02)
    assert report.reward.variance == pytest.approx(0.09, rel=0.08)
    assert report.reward.mae == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize(("std", "half", "nine"), [(0.3, 0.5, 0.9), (0.1, 0.178, 0.416), (0.9, 0.957, 1.0)])
def test_coverage_says_whether_reward_std_is_right(std: float, half: float, nine: float) -> None:
    calibration = evaluate(Walk(noise=0.3, std=std), walks(400), interface=interface()).calibration
    assert calibration is not None
    assert calibration.n == 3600
    assert (calibration.at(0.5), calibration.at(0.9)) == pytest.approx((half, nine), abs=0.03)


def test_a_model_without_reward_std_has_no_calibration() -> None:
    assert evaluate(Walk(std=np.nan), walks(3), interface=interface()).calibration is None


def test_errors_grow_with_the_horizon_and_never_cross_an_episode() -> None:
    report = evaluate(Walk(drift=0.1), walks(30), interface=interface(), horizons=(1, 2, 4, 8))
    assert report.horizon is not None
    error = np.array(report.horizon.error)
    np.testing.assert_allclose(error / error[0], [1, 2, 4, 8], rtol=1e-9)
    assert report.horizon.starts == 60  # two steps of each episode have eight ahead


def test_steps_that_do_not_follow_on_each_other_make_no_rollouts() -> None:
    data = walks(30)
    shuffled = batch.take(data, np.random.default_rng(0).permutation(len(data)))
    told = evaluate(Walk(), shuffled, interface=interface(), horizons=(9,))
    assert told.horizon is None
    assert told.reward.n == len(data)


def test_missed_and_invented_ends_are_counted() -> None:
    termination = evaluate(Walk(ends=8.0), walks(10), interface=interface()).termination
    assert termination is not None
    assert (termination.n_real, termination.n_predicted, termination.n_both) == (10, 20, 10)
    assert (termination.precision, termination.recall, termination.f1) == (0.5, 1.0, pytest.approx(2 / 3))


def test_ranks_are_compared_within_groups_only() -> None:
    class Reversed(Walk):
        """Right about every second group, and the wrong way round in the others."""

        def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
            after, told = super().step(state, action, rng)
            odd = np.floor(state[:, 0]) % 2 == 1
            return after, replace(told, reward=np.where(odd, -state[:, 1], state[:, 1]) + 100 * state[:, 0])

    data = walks(50)
    data = replace(data, reward=data.observation[:, 1])
    told = evaluate(Reversed(), data, interface=interface(), groups=np.floor(data.observation[:, 0]).astype(np.int64))
    assert told.reward.n_groups == 9
    assert told.reward.rank_correlation == pytest.approx((5 - 4) / 9)


def test_invalid_rewards_are_left_out() -> None:
    data = walks(4)
    broken = np.arange(len(data)) % 3 == 0
    data = replace(data, reward=np.where(broken, -1e9, data.reward), reward_valid=~broken)
    report = evaluate(Walk(), data, interface=interface())
    assert (report.reward.n, report.reward.mae) == (24, 0.0)


class Truth(WorldModel):
    """Executes."""

    def __init__(self, bandit: Bandit) -> None:
        self.bandit = bandit

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        assert self.interface is not None
        assert self.interface.factored is not None
        return self.interface.factored.begin(observation, info)

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        assert self.interface is not None
        factored = self.interface.factored
        assert factored is not None
        attempt = factored.attempt(state, action)
        after, step = factored.advance(state, attempt, self.outcome(attempt))
        flags = (step.terminated, step.truncated, step.reward_due, step.reward_valid)
        return after, Prediction(step.observation, step.reward, np.full(len(step.reward), 0.01), *flags, step.info)

    def outcome(self, attempt: Any) -> Outcome:
        return self.bandit.execute(attempt)


class Complaining(Bandit):
    """Failures name an exception, by the second part of the design."""

    def execute(self, attempt: BanditAttempt) -> Outcome:
        outcome = super().execute(attempt)
        names: NDArray[np.object_] = np.array(["ValueError", "KeyError", "sklearn.NotFittedError", "TypeError"], dtype=object)
        said = np.array([f"Traceback\n{name}: it broke" for name in names[attempt.design[:, 1]]], dtype=object)
        return replace(outcome, feedback=np.where(outcome.status == 1, said, "score: 0.5"))


def bound(bandit: Bandit) -> Interface:
    return Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit)


def test_every_attempt_is_compared_though_only_the_last_is_paid() -> None:
    bandit = Bandit(max_turns=3)
    data = bandit_steps(bandit, 40)
    assert (data.reward > 0).sum() <= 40
    assert data.outcome is not None
    executed = ~bandit.gate(data.attempt)[0]
    report = evaluate(Truth(bandit), data, interface=bound(bandit))
    assert (report.reward.n, report.reward.mae) == (executed.sum(), 0.0)
    assert report.termination is report.horizon is None
    assert report.status is not None
    assert report.status.accuracy == 1.0
    assert report.status.confusion.sum() == executed.sum()
    np.testing.assert_array_equal(report.status.confusion.sum(axis=1), np.bincount(data.outcome.status[executed], minlength=3))


def test_what_infrastructure_lost_is_left_out() -> None:
    bandit = Bandit(lose=2)
    data = bandit_steps(bandit, 40)
    assert data.outcome is not None
    assert not data.outcome.known.all()
    report = evaluate(Truth(bandit), data, interface=bound(bandit))
    assert report.reward.n == (data.outcome.known & ~bandit.gate(data.attempt)[0]).sum()
    assert report.reward.unknown == 0.0


def test_a_model_that_does_not_answer_is_not_scored_but_counted() -> None:
    class Silent(Truth):
        def outcome(self, attempt: Any) -> Outcome:
            outcome = super().outcome(attempt)
            return replace(outcome, known=outcome.known & (attempt.design[:, 0] != 1))

    bandit = Bandit()
    report = evaluate(Silent(bandit), bandit_steps(bandit, 60), interface=bound(bandit))
    assert report.reward.mae == 0.0
    assert 0.1 < report.reward.unknown < 0.4


def test_predicted_exceptions_are_compared_by_name() -> None:
    class Guess(Truth):
        def outcome(self, attempt: Any) -> Outcome:
            outcome = super().outcome(attempt)
            return replace(outcome, feedback=np.where(outcome.status == 1, "KeyError: a guess", ""))

    bandit = Complaining()
    data = bandit_steps(bandit, 100)
    assert data.outcome is not None
    failed = data.outcome.status == 1
    status = evaluate(Guess(bandit), data, interface=bound(bandit)).status
    assert status is not None
    assert status.n_error_types == failed.sum()
    assert status.error_type_accuracy == pytest.approx((data.attempt.design[failed, 1] == 1).mean())
    exact = evaluate(Truth(bandit), data, interface=bound(bandit)).status
    assert exact is not None
    assert exact.error_type_accuracy == 1.0


def test_an_outcome_model_is_better_than_chance_on_attempts_it_never_saw() -> None:
    bandit = Bandit()
    model = fitted(bandit, 150)
    report = evaluate(model, bandit_steps(bandit, 60, seed=9), interface=bound(bandit))
    assert report.model == "OutcomeModel"
    assert report.reward.r2 > 0.3
    assert report.reward.n_groups == 3
    assert report.reward.rank_correlation > 0.3
    assert model.interface is not None
    assert model.interface.factored is bandit


def test_the_report_prints_draws_and_is_json(tmp_path: Path) -> None:
    bandit = Complaining()
    reports = {
        "factored": evaluate(fitted(bandit), bandit_steps(bandit, 20), interface=bound(bandit)),
        "dynamics": evaluate(Walk(drift=0.1, noise=0.1), walks(5), interface=interface(), horizons=(1, 2)),
    }
    expected = {"factored": ("status accuracy", "really"), "dynamics": ("termination F1", "observation, 2 ahead")}
    for name, report in reports.items():
        console = Console(file=StringIO(), width=120)
        report.show(console)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert all(words in said for words in (*expected[name], "rank correlation", "coverage at 90%"))
        assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["reward"]["n"] == report.reward.n
        path = tmp_path / "plots" / f"{name}.png"
        report.plot(path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_named() -> None:
    data = walks(2)
    with pytest.raises(WorldModelError, match="not bound to an environment: pass interface"):
        evaluate(Walk(), data)
    with pytest.raises(ValueError, match="no real steps"):
        evaluate(Walk(), batch.take(data, []), interface=interface())
    with pytest.raises(ValueError, match="each of the 18 steps, got 3"):
        evaluate(Walk(), data, interface=interface(), groups=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"each at least 1, got \(0, 2\)"):
        evaluate(Walk(), data, interface=interface(), horizons=(0, 2))
    bandit = Bandit()
    with pytest.raises(WorldModelError, match="learnt nothing yet"):
        evaluate(OutcomeModel(8, encoder="none"), bandit_steps(bandit, 2), interface=bound(bandit))
    with pytest.raises(WorldModelError, match="these hold none"):
        evaluate(fitted(bandit), replace(bandit_steps(bandit, 2), attempt=None), interface=bound(bandit))
    unanswered = replace(data, reward_valid=np.zeros(len(data), bool))
    with pytest.raises(WorldModelError, match="none of the 18 steps has a real reward to compare with"):
        evaluate(Walk(), unanswered, interface=interface())
