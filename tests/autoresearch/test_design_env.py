"""The design environment: numbers in, numbers out, and the same logic for one rollout and for many."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from tests.autoresearch.small_tasks import BROKEN, QUICK, write_small_task
from wmrl_gym.batch import concatenate, take
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchDesignEnv
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.rules import STATUS_VALUES, STATUSES, VALID, Progress
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("design")
    return [
        write_small_task(root / "numbers", metric="mae", kind="regression", larger_is_better=False, scores=(0.1, 1.0, 5.0)),
        write_small_task(root / "labels", metric="accuracy", kind="multiclass", larger_is_better=True),
    ]


@pytest.fixture(scope="module")
def logic(directories: list[Path], sandbox: Sandbox) -> AutoResearchDesign:
    return AutoResearchDesign(directories, sandbox=sandbox)


def test_an_episode_pays_the_best_of_its_attempts_at_its_end(directories: list[Path], sandbox: Sandbox) -> None:
    env = AutoResearchDesignEnv(directories, sandbox=sandbox, render_mode="ansi")
    observation, info = env.reset(seed=0, options={"task": "labels"})
    assert observation in env.observation_space
    assert info == {"context": 1, "status": -1, "reward_due": False, "reward_valid": True}
    steps = [env.step(action) for action in (QUICK, BROKEN, QUICK)]
    assert [STATUSES[step[4]["status"]] for step in steps] == ["valid", "runtime_error", "valid"]
    assert [step[2] for step in steps] == [False, False, True]
    assert [step[1] for step in steps[:2]] == [0.0, 0.0]
    assert 0.5 <= steps[2][1] <= 1.0
    assert all(step[0] in env.observation_space for step in steps)
    transcript = env.render()
    assert transcript is not None
    assert "Negative values in data passed to MultinomialNB" in transcript


def test_the_observation_says_what_its_names_say(directories: list[Path], sandbox: Sandbox) -> None:
    env = AutoResearchDesignEnv(directories, sandbox=sandbox, max_turns=3)
    names = env.factored.observation_names  # type: ignore[attr-defined]
    assert env.observation_space.shape == (len(names),)
    first, _ = env.reset(seed=0, options={"task": "labels"})
    assert dict(zip(names, first.tolist(), strict=True))["metric_accuracy"] == 1
    observation, *_ = env.step(BROKEN)
    seen = dict(zip(names, observation.tolist(), strict=True))
    assert seen["last_runtime_error"] == 1
    assert seen["last_shown"] == pytest.approx(0.1)
    assert seen["best_shown"] == pytest.approx(0.1)
    assert seen["turn"] == pytest.approx(1 / 3)
    assert seen["last_choice_4"] == pytest.approx(7 / 8)


@given(st.data(), st.integers(1, 7))
def test_advancing_many_rollouts_equals_advancing_each(logic: AutoResearchDesign, data: st.DataObject, count: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    state = Progress(rng.integers(0, 2, count), rng.integers(0, 3, count), *rng.random((3, count)))
    attempt = logic.attempt(state, rng.integers(0, NVEC, (count, len(NVEC))))
    status = rng.integers(0, len(STATUSES), count)
    value = np.where(status == VALID, 0.5 + rng.random(count) / 2, np.nan_to_num(np.array(STATUS_VALUES)[status]))
    shown = np.where(rng.random(count) < 0.2, np.nan, value)
    zeros, known = np.zeros(count), rng.random(count) < 0.8
    outcome = Outcome(status, value, shown, np.full(count, "", dtype=object), known, zeros, zeros)
    after, step = logic.advance(state, attempt, outcome)
    apart = [logic.advance(take(state, [i]), take(attempt, [i]), take(outcome, [i])) for i in range(count)]
    for name in ("observation", "reward", "terminated", "truncated", "reward_due", "reward_valid"):
        np.testing.assert_array_equal(getattr(step, name), np.concatenate([getattr(one[1], name) for one in apart]))
    np.testing.assert_array_equal(step.info["status"], np.concatenate([one[1].info["status"] for one in apart]))
    np.testing.assert_array_equal(after.best, concatenate([one[0] for one in apart]).best)
    assert step.observation.dtype == np.float32
    assert all(row in logic.observation_space for row in step.observation)
    assert step.reward.dtype == np.float64


def test_features_tell_tasks_and_designs_apart(logic: AutoResearchDesign) -> None:
    state = Progress.start(np.array([0, 1, 1]))
    features = logic.features(logic.attempt(state, np.stack([QUICK, QUICK, BROKEN])))
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert len({tuple(row) for row in features.tolist()}) == 3
    assert list(logic.text(logic.attempt(state, np.stack([QUICK] * 3)))) == ["", "", ""]


def test_nothing_is_gated(logic: AutoResearchDesign) -> None:
    attempt = logic.attempt(Progress.start(np.array([0, 1])), np.stack([QUICK, BROKEN]))
    certain, _ = logic.gate(attempt)
    assert not certain.any()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((2, 9), dtype=int), r"shape \(1, 9\), got int64 and \(2, 9\)"),
        (np.zeros((1, 9)), "whole numbers"),
        (np.full((1, 9), 9), "each choice must be at least 0 and below"),
    ],
)
def test_bad_actions_are_refused(logic: AutoResearchDesign, action: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        logic.attempt(Progress.start(np.array([0])), action)


def test_predicted_feedback_reads_like_the_real_one(logic: AutoResearchDesign) -> None:
    attempt = logic.attempt(Progress.start(np.array([1, 1])), np.stack([QUICK, BROKEN]))
    real = logic.execute(attempt)
    predicted = logic.describe(attempt, real)
    for truth, guess in zip(real.feedback, predicted.feedback, strict=True):
        assert guess.splitlines()[:2] == truth.splitlines()[:2]


def test_designs_have_one_second_of_cpu_time_unless_told_otherwise(directories: list[Path]) -> None:
    assert {limits.cpu_s for limits in AutoResearchDesign(directories).limits} == {1.0}
    assert AutoResearchDesign(directories, limits=Limits(wall_s=9.0)).limits[0].wall_s == 9.0


def test_gymnasium_and_stable_baselines_find_nothing_to_warn_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("wmrl/AutoResearchDesign-v0")
        check_env(env.unwrapped)
        check_env_sb3(env.unwrapped)
        env.close()


def test_features_and_descriptors_read_no_file_anew(logic: AutoResearchDesign, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = logic.attempt(Progress.start(np.array([0, 1])), np.zeros((2, len(NVEC)), np.int64))
    before = logic.features(attempt), logic.descriptors(attempt)

    def read(task: object) -> None:
        raise AssertionError(f"{task} was looked at again: a world model asks thousands of times")

    monkeypatch.setattr("wmrl_gym.envs.autoresearch.design_env.profile", read)
    for one, other in zip(before, (logic.features(attempt), logic.descriptors(attempt)), strict=True):
        np.testing.assert_array_equal(one, other)
