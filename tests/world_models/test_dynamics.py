"""``EnsembleDynamics`` out of the box, on environments that it was not written for."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.world_models.real_steps import bandit_steps, random_steps
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.world_models import EnsembleDynamics, Interface, WorldModelError, evaluate
from wmrl_gym.wrappers import WorldModelWrapper

ENVIRONMENTS = (
    "Pendulum-v1",
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "InvertedPendulum-v5",
    "Hopper-v5",
)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_out_of_the_box_it_starts_with_real_episodes_and_then_predicts_better_than_no_change(env_id: str) -> None:
    env = WorldModelWrapper(gym.make(env_id), EnsembleDynamics(), anchors=0.0, seed=0)
    env.action_space.seed(0)
    model = env.model
    assert isinstance(model, EnsembleDynamics)
    real, imagined = 0, 0
    while imagined < 30:
        observation, info = env.reset()
        known, over = model.fitted, False
        assert info["anchor"] == (not known)
        while not over and imagined < 30:
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            over = terminated or truncated
            assert env.observation_space.contains(observation)
            assert np.isfinite(reward)
            real, imagined = real + info["anchor"], imagined + (not info["anchor"])
    assert model.min_transitions <= real == env.last_cost["executions"] < model.min_transitions + 1000
    report = evaluate(model, random_steps(env_id, 400), horizons=(1, 4))
    assert report.horizon is not None
    assert all(error < still for error, still in zip(report.horizon.error, report.horizon.still, strict=True))
    assert report.calibration is not None
    env.close()


def learnt(propagation: Any, env_id: str = "Pendulum-v1") -> EnsembleDynamics:
    model = EnsembleDynamics((32, 32), propagation=propagation, max_gradient_steps=150)
    env = gym.make(env_id)
    model.bind(Interface(env.observation_space, env.action_space))
    model.update(random_steps(env_id, 600), np.random.default_rng(0))
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, EnsembleDynamics]:
    """The three were trained alike, from one seed."""
    return {propagation: learnt(propagation) for propagation in ("ts1", "ts_inf", "mean")}


def rolled(model: EnsembleDynamics, n: int, *, seed: int = 0, steps: int = 3) -> list[Any]:
    rng = np.random.default_rng(seed)
    data = random_steps("Pendulum-v1", 200)
    rows = np.arange(n) % 200
    state = model.begin(batch.take(data.observation, rows), {}, rng)
    told = []
    for _ in range(steps):
        state, prediction = model.step(state, batch.take(data.action, rows), rng)
        told.append(prediction)
    return told


@pytest.mark.parametrize("propagation", ["ts1", "ts_inf", "mean"])
@pytest.mark.parametrize("n", [1, 7, 256, 4097])
def test_any_number_of_rollouts_works(propagation: str, n: int, *, models: dict[str, EnsembleDynamics]) -> None:
    for prediction in rolled(models[propagation], n):
        assert prediction.observation.shape == (n, 3)
        assert np.isfinite(prediction.reward_std).all()
        assert (prediction.reward_std > 0).all()


def test_the_same_generator_gives_the_same_rollouts(models: dict[str, EnsembleDynamics]) -> None:
    for model in models.values():
        for left, right in zip(rolled(model, 50, seed=3), rolled(model, 50, seed=3), strict=True):
            np.testing.assert_array_equal(left.observation, right.observation)
            np.testing.assert_array_equal(left.reward, right.reward)


def test_the_mean_is_what_the_drawn_members_vary_around(models: dict[str, EnsembleDynamics]) -> None:
    data = random_steps("Pendulum-v1", 200)
    row = batch.take(data, [10])
    means = {}
    for name, model in models.items():
        rng = np.random.default_rng(0)
        state = model.begin(np.repeat(row.observation, 4000, axis=0), {}, rng)
        _, told = model.step(state, np.repeat(row.action, 4000, axis=0), rng)
        means[name] = told.observation.mean(axis=0)
        assert (np.ptp(told.observation, axis=0) > 1e-3).all() == (name != "mean")
    np.testing.assert_allclose(means["ts1"], means["mean"], atol=0.02)
    np.testing.assert_allclose(means["ts_inf"], means["mean"], atol=0.02)


def test_invalid_rewards_are_not_learnt_from() -> None:
    data = random_steps("Pendulum-v1", 600)
    broken = np.arange(len(data)) % 2 == 0
    spoilt = Transitions(
        **{name: getattr(data, name) for name in Transitions.__dataclass_fields__}
        | {"reward": np.where(broken, 1e6, data.reward), "reward_valid": ~broken}
    )
    model = EnsembleDynamics((32, 32), max_gradient_steps=150)
    env = gym.make("Pendulum-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    model.update(spoilt, np.random.default_rng(0))
    assert np.abs(rolled(model, 100, steps=1)[0].reward).max() < 100


def test_a_checkpoint_of_another_space_or_none_is_refused(tmp_path: Path, models: dict[str, EnsembleDynamics]) -> None:
    models["ts1"].save(tmp_path / "pendulum")
    model = EnsembleDynamics()
    env = gym.make("CartPole-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    with pytest.raises(WorldModelError, match=r"was trained on observations in Box.*, and the environment has Box"):
        model.load(tmp_path / "pendulum")
    with pytest.raises(WorldModelError, match="no EnsembleDynamics is saved"):
        model.load(tmp_path / "nothing")
    (tmp_path / "pendulum" / "dynamics.json").write_text("{", encoding="utf-8")
    with pytest.raises(WorldModelError, match="is damaged"):
        EnsembleDynamics().load(tmp_path / "pendulum")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Text(5), "text needs a language or outcome model"),
        (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), "encode images as features"),
        (gym.spaces.Discrete(4), "encode it as a Box"),
        (gym.spaces.Dict({"a": gym.spaces.MultiBinary(3)}), r"observation\['a'\] is MultiBinary"),
    ],
)
def test_spaces_that_it_cannot_represent_are_named_with_what_can(space: gym.Space[Any], message: str) -> None:
    with pytest.raises(WorldModelError, match=message):
        EnsembleDynamics().bind(Interface(space, gym.spaces.Discrete(2)))


def test_it_learns_in_background_and_a_checkpoint_says_from_what(tmp_path: Path) -> None:
    model = EnsembleDynamics((16,), capacity=500, max_gradient_steps=20)
    env = gym.make("Pendulum-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    assert (model.span.end, model.learns_in_background) == (0, True)
    data, rng = random_steps("Pendulum-v1", 600), np.random.default_rng(0)
    computed = model.compute_update(data, rng)
    assert not model.fitted  # nothing has changed yet
    assert model.transitions == 0
    assert model.apply_update(computed)["wm/transitions"] == 600
    assert (model.span.first, model.span.end, model.span.kept) == (100, 600, 500)
    model.save(tmp_path)
    assert json.loads((tmp_path / "dynamics.json").read_text())["trained_on"] == model.span.as_json()
    again = EnsembleDynamics()
    again.load(tmp_path)
    assert again.span == model.span


def test_what_was_learnt_is_counted_by_context_and_kept_in_the_checkpoint(tmp_path: Path) -> None:
    model = EnsembleDynamics((16,), capacity=500, max_gradient_steps=20)
    env = gym.make("Pendulum-v1")
    model.bind(Interface(env.observation_space, env.action_space))
    data = random_steps("Pendulum-v1", 600)
    data = replace(data, context=np.repeat([3, 0, 2], [150, 50, 400]))
    model.update(data, np.random.default_rng(0))
    assert model.span.by_context == {"3": 50, "0": 50, "2": 400}  # of the oldest a hundred are gone
    assert sum(model.span.by_context.values()) == model.span.kept
    model.save(tmp_path)
    assert json.loads((tmp_path / "dynamics.json").read_text())["trained_on"]["by_context"] == {"0": 50, "2": 400, "3": 50}
    again = EnsembleDynamics()
    again.load(tmp_path)
    assert again.span == model.span
    again.bind(Interface(env.observation_space, env.action_space))
    again.update(batch.take(data, np.arange(200)), np.random.default_rng(0))
    assert again.span.by_context == {"3": 150, "0": 50, "2": 300}


def test_contexts_of_a_factored_environment_have_their_names(tmp_path: Path) -> None:
    bandit = Bandit()
    data = bandit_steps(bandit, 60)
    model = EnsembleDynamics((16,), min_transitions=20, max_gradient_steps=5)
    model.bind(Interface(bandit.observation_space, bandit.action_space, bandit.reward_range, bandit))
    model.update(data, np.random.default_rng(0))
    counts = np.bincount(data.context)
    expected = {name: int(count) for name, count in zip(bandit.contexts, counts, strict=True) if count}
    assert model.span.by_context == expected
    assert len(expected) > 1
    model.save(tmp_path)
    again = EnsembleDynamics()
    again.load(tmp_path)
    assert again.span.by_context == expected


def test_it_goes_on_predicting_while_it_learns_in_the_background() -> None:
    env = WorldModelWrapper(
        gym.make("Pendulum-v1"),
        EnsembleDynamics((16,), max_gradient_steps=20),
        anchors=0.5,
        update_every=50,
        update_mode="background",
        seed=0,
    )
    env.action_space.seed(0)
    model = env.model
    assert isinstance(model, EnsembleDynamics)
    for _ in range(8):
        env.reset()
        for _ in range(200):
            env.step(env.action_space.sample())
    env.state_dict()  # waits for what is under way
    assert model.span.end > model.min_transitions, "beside the first fit, however slow the background is"
    assert model.span.end <= model.transitions <= env.last_cost["executions"]
    env.close()


def test_learning_aside_changes_nothing_until_it_is_adopted_and_then_equals_an_update() -> None:
    env, first, more = gym.make("Pendulum-v1"), random_steps("Pendulum-v1", 200, seed=1), random_steps("Pendulum-v1", 200, seed=2)
    aside, ahead = (EnsembleDynamics((16,), min_transitions=40, max_gradient_steps=20) for _ in range(2))
    for model in (aside, ahead):
        model.bind(Interface(env.observation_space, env.action_space, (-20.0, 0.0)))
        model.update(first, np.random.default_rng(1))
    observation, action = np.zeros((3, 3), np.float32), np.ones((3, 1), np.float32)

    def said(model: EnsembleDynamics) -> np.ndarray:
        state = model.begin(observation, {}, np.random.default_rng(2))
        return np.asarray(model.step(state, action, np.random.default_rng(3))[1].observation)

    before = said(aside)
    computed = aside.compute_update(more, np.random.default_rng(4))
    np.testing.assert_array_equal(said(aside), before)
    assert aside.apply_update(computed) == ahead.update(more, np.random.default_rng(4))
    np.testing.assert_array_equal(said(aside), said(ahead))
    assert (said(aside) != before).any()


def test_how_sure_it_is_can_be_read_late_copied_and_replaced(models: dict[str, EnsembleDynamics]) -> None:
    for n in (1, 7, 300):  # as many as are asked at once, and more
        told, again = (rolled(models["ts1"], n, steps=1)[0] for _ in range(2))
        copied, changed = pickle.loads(pickle.dumps(told)), replace(told, reward=np.zeros(n))
        for other in (again, copied, changed):
            np.testing.assert_array_equal(other.reward_std, told.reward_std)
            np.testing.assert_array_equal(other.info["disagreement"], told.info["disagreement"])
        np.testing.assert_array_equal(batch.take(told, [n - 1]).reward_std, told.reward_std[[n - 1]])
        assert not changed.reward.any()


@pytest.mark.parametrize("propagation", ["ts1", "ts_inf", "mean"])
def test_a_rollout_is_told_the_same_in_batches_of_any_size(propagation: str, models: dict[str, EnsembleDynamics]) -> None:
    model, data = models[propagation], batch.concatenate([random_steps("Pendulum-v1", 400, seed=seed) for seed in (1, 2, 3)])
    whole = model.begin(data.observation, {}, np.random.default_rng(0))
    _, together = model.step(whole, data.action, np.random.default_rng(1))
    for rows in ([5], [5, 9, 400], np.arange(100), np.arange(3, 600)):
        _, apart = model.step(batch.take(whole, rows), batch.take(data.action, rows), np.random.default_rng(1))
        for name in ("observation", "reward", "reward_std", "terminated"):
            np.testing.assert_allclose(getattr(apart, name), getattr(together, name)[rows], rtol=1e-4, atol=1e-4, err_msg=name)


def test_it_learns_when_a_share_of_what_it_knows_is_new() -> None:
    env, data = gym.make("Pendulum-v1"), random_steps("Pendulum-v1", 400)
    ends: dict[float, list[int]] = {}
    for share in (0.0, 0.5):
        model = EnsembleDynamics((4,), n_members=2, n_elites=1, min_transitions=40, refit_share=share, max_gradient_steps=1)
        model.bind(Interface(env.observation_space, env.action_space))
        ends[share] = [0]
        for start in range(0, 400, 10):
            model.update(batch.take(data, np.arange(start, start + 10)), np.random.default_rng(start))
            ends[share] += [model.span.end] if model.span.end > ends[share][-1] else []
        assert model.transitions == 400
    assert ends == {0.0: list(range(0, 401, 10))[:1] + list(range(40, 401, 10)), 0.5: [0, 40, 60, 90, 140, 210, 320]}


def test_saved_between_two_fits_it_goes_on_the_same(tmp_path: Path) -> None:
    env, data = gym.make("Pendulum-v1"), random_steps("Pendulum-v1", 200)
    model = EnsembleDynamics((4,), n_members=2, n_elites=1, min_transitions=40, capacity=80, max_gradient_steps=2)
    model.bind(Interface(env.observation_space, env.action_space))
    for start, end in ((0, 100), (100, 105), (105, 112)):
        model.update(batch.take(data, np.arange(start, end)), np.random.default_rng(end))
    assert (model.span.end, model.transitions) == (100, 112)
    model.save(tmp_path)
    again = EnsembleDynamics()
    again.bind(Interface(env.observation_space, env.action_space))
    again.load(tmp_path)
    assert (again.span, again.transitions, again.refit_share) == (model.span, 112, 0.2)
    told = []
    for each in (model, again):
        measures = each.update(batch.take(data, np.arange(112, 120)), np.random.default_rng(7))
        assert (each.span.first, each.span.end) == (40, 120)
        state = each.begin(data.observation[:5], {}, np.random.default_rng(1))
        told.append((measures, each.step(state, data.action[:5], np.random.default_rng(2))[1].observation))
    assert told[0][0] == told[1][0]
    np.testing.assert_array_equal(told[0][1], told[1][1])


def test_what_arrives_between_two_fits_is_kept_in_few_parts() -> None:
    model = EnsembleDynamics((4,), n_members=2, n_elites=1, min_transitions=2, refit_share=1e9, max_gradient_steps=1)
    env, data = gym.make("Pendulum-v1"), random_steps("Pendulum-v1", 203)
    model.bind(Interface(env.observation_space, env.action_space))
    for row in range(3, 203):
        model.update(batch.take(data, [0, 1, 2] if row == 3 else [row]), np.random.default_rng(row))
    replay = model._replay
    assert len(replay) == 202
    assert len(replay.newer) <= 8, "each part is longer than the next"
    assert replay.everything is not None
    np.testing.assert_array_equal(replay.everything.reward[3:], data.reward[4:203].astype(np.float32))
