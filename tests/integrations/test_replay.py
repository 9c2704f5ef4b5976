"""Off-policy algorithms replay predictions under the calibration of now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN, SAC

from tests.bandit import Bandit
from tests.drifting import Drift
from tests.exploitable import Spiked
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.data.demonstrations import run_episode
from wmrl_gym.integrations import sb3
from wmrl_gym.integrations.sb3.replay import draw_where
from wmrl_gym.world_models import Prediction
from wmrl_gym.wrappers.vector import OnlineDebiasing, ResidualCorrection, WorldModelVectorEnv, corrected

SAME = AutoresetMode.SAME_STEP
OPTIONS: dict[str, Any] = {"learning_starts": 16, "batch_size": 16, "buffer_size": 400, "seed": 0, "device": "cpu"}


class Line(gym.Env[Any, Any]):
    """Move along a line for five steps; a step pays 1 less the distance from 0, a little more at ends."""

    observation_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    action_space: Any = gym.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + np.asarray(action, np.float32).reshape(-1), -2, 2).astype(np.float32)
        self.steps += 1
        return self.at, 1.0 - float(np.abs(self.at[0])), False, self.steps == 5, {}


class Steps(Line):
    """The same with three actions."""

    action_space = gym.spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        return super().step(np.array([0.5 * (int(action) - 1)], np.float32))


class Overrated(Drift):
    """Knows the line, and pays 0.5 too much; the rewards of some steps it cannot tell."""

    def __init__(self, *, discrete: bool, silent: float = 0.0) -> None:
        super().__init__()
        self.discrete, self.silent = discrete, silent

    def step(self, state: Any, action: Any, rng: np.random.Generator) -> tuple[Any, Prediction]:
        moved = 0.5 * (np.asarray(action)[:, None] - 1.0) if self.discrete else np.asarray(action)
        after = np.clip(state + moved, -2, 2).astype(np.float32)
        n = len(after)
        yes, no = np.ones(n, bool), np.zeros(n, bool)
        valid = rng.random(n) >= self.silent
        return after, Prediction(after, 1.5 - np.abs(after[:, 0]).astype(float), np.full(n, 0.1), no, no, yes, valid)


def stack(kind: Any, *, residual: bool = False, silent: float = 0.0, **options: Any) -> Any:
    model = Overrated(discrete=kind is Steps, silent=silent)
    settings = {"num_envs": 4, "anchors": 0.25, "max_model_steps": 5, "pairs": "open_loop", "autoreset_mode": SAME, "seed": 0}
    envs: Any = WorldModelVectorEnv(kind, model, **(settings | options))
    envs = OnlineDebiasing(envs, reward_range=(-1.0, 1.5))
    return ResidualCorrection(envs, late="anchor_mode" in options) if residual else envs


@pytest.mark.parametrize(("algorithm", "kind"), [(SAC, Line), (DQN, Steps)])
def test_sampled_rewards_are_what_the_wrappers_would_pay_now(algorithm: Any, kind: Any) -> None:
    venv = sb3.to_vec_env(stack(kind))
    model = algorithm("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(300)
    buffer = model.replay_buffer
    f = venv.envs.correction.calibration
    steps, slots = (grid.ravel() for grid in np.meshgrid(np.arange(buffer.pos), np.arange(4), indexing="ij"))
    rewards = buffer.rewards_at(steps, slots)
    raw, real = buffer.kept["wm_reward"][steps, slots], buffer.kept["real_reward"][steps, slots]
    imagined = np.isnan(real)
    depths = venv.envs.correction.contexts(buffer.kept["context"][steps, slots], buffer.kept["depth"][steps, slots])
    np.testing.assert_allclose(rewards[imagined], f.predict(raw[imagined], context=depths[imagined]), rtol=1e-5)
    np.testing.assert_allclose(rewards[~imagined], real[~imagined], rtol=1e-5)
    # What was paid at the time was too much; now f knows.
    truth = raw - 0.5
    early = imagined & (steps < 10)
    assert np.abs(buffer.rewards[steps, slots] - truth)[early].mean() > 0.15
    assert np.abs(rewards - truth)[early].mean() < 0.1
    sample = buffer.sample(64)
    assert sample.rewards.shape == sample.dones.shape == (64, 1)
    assert set(np.round(sample.rewards.numpy().ravel(), 4)) <= set(np.round(rewards, 4))
    venv.close()


def test_the_residual_form_is_relabelled_too() -> None:
    venv = sb3.to_vec_env(stack(Line, residual=True))
    model = SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(200)
    buffer: Any = model.replay_buffer
    step, slot = (where[-1:] for where in np.nonzero(np.isfinite(buffer.kept["real_reward"][: buffer.pos])))
    row = {name: values[step, slot] for name, values in buffer.kept.items()}
    f = venv.envs.env.correction.calibrated(row["wm_reward"], row["wm_reward_std"], row["context"], row["depth"]).value
    gain = venv.envs.correction.gain(row["propensity"])
    np.testing.assert_allclose(buffer.rewards_at(step, slot), f + gain * (row["real_reward"] - f), rtol=1e-5)
    venv.close()


def test_steps_of_unknown_reward_are_never_sampled() -> None:
    venv = sb3.to_vec_env(stack(Line, silent=0.5, anchors=0.0))
    model = SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(200)
    buffer: Any = model.replay_buffer
    unknown = ~buffer.kept["reward_valid"][: buffer.pos]
    assert 0.3 < unknown.mean() < 0.7
    seen = buffer.observations[: buffer.pos][unknown].ravel()
    drawn = buffer.sample(2000).observations.numpy().ravel()
    assert not np.isin(drawn, seen[~np.isin(seen, buffer.observations[: buffer.pos][~unknown])]).any()
    buffer.kept["reward_valid"][:] = False
    with pytest.raises(RuntimeError, match="not one step in the buffer has a known reward"):
        buffer.sample(1)
    venv.close()


@pytest.mark.parametrize("residual", [False, True])
def test_late_truths_are_taken_over_as_they_arrive(residual: bool) -> None:
    venv = sb3.to_vec_env(stack(Line, residual=residual, anchor_mode="background", max_real=2))
    model = SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(200)
    buffer: Any = model.replay_buffer
    anchored = buffer.kept["pair"][: buffer.pos] >= 0
    assert anchored.any()
    buffer.engine.wait(60)
    buffer.settle()
    step, slot = np.nonzero(anchored)
    ended = ~np.isin(buffer.kept["pair"][step, slot], list(buffer._where))
    real, raw = buffer.kept["real_reward"][step, slot][ended], buffer.kept["wm_reward"][step, slot][ended]
    np.testing.assert_allclose(real, raw - 0.5, atol=1e-5)
    assert len(buffer._where) <= 4 * 5  # of episodes still under way
    if residual:
        assert len(venv.envs.correction._waiting) <= 4 * 5
    venv.close()


def test_a_full_buffer_forgets_the_pairs_it_wrote_over() -> None:
    venv = sb3.to_vec_env(stack(Line, anchors=1.0, anchor_mode="background"))
    model = SAC("MlpPolicy", venv, **(OPTIONS | {"buffer_size": 40}), **sb3.relabelled(venv)).learn(400)
    buffer: Any = model.replay_buffer
    assert buffer.full
    assert len(buffer._where) <= 40
    buffer.engine.wait(60)
    buffer.settle()
    assert all(buffer.kept["pair"][at] == number for number, at in buffer._where.items())
    venv.close()


def test_bootstrapping_goes_on_after_a_time_limit_and_dict_observations_work() -> None:
    class Named(Line):
        observation_space: Any = gym.spaces.Dict({"at": Line.observation_space})

        def reset(self, **options: Any) -> Any:
            seen, info = super().reset(**options)
            return {"at": seen}, info

        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action)
            return {"at": seen}, *rest

    class NamedModel(Overrated):
        def step(self, state: Any, action: Any, rng: Any) -> Any:
            after, prediction = super().step(state["at"], action, rng)
            told = {"at": prediction.observation}
            rest = (prediction.reward, prediction.reward_std, prediction.terminated, prediction.truncated)
            return {"at": after}, Prediction(told, *rest, prediction.reward_due, prediction.reward_valid)

    envs = WorldModelVectorEnv(Named, NamedModel(discrete=False), num_envs=3, anchors=0.2, max_model_steps=5, autoreset_mode=SAME)
    venv = sb3.to_vec_env(OnlineDebiasing(envs))
    model = SAC("MultiInputPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(90)
    buffer: Any = model.replay_buffer
    assert isinstance(buffer, sb3.RelabelledDictReplayBuffer)
    assert buffer.dones[: buffer.pos].sum() > 0
    assert (buffer.sample(200).dones == 0).all()
    venv.close()


def test_the_same_seed_gives_the_same_training() -> None:
    def train() -> Any:
        venv = sb3.to_vec_env(stack(Steps))
        model = DQN("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(120)
        venv.close()
        return model.policy.q_net.q_net[0].weight.detach().numpy()

    np.testing.assert_array_equal(train(), train())


def test_environments_without_a_world_model_are_replayed_as_they_are() -> None:
    venv = sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=2))
    model = DQN("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv)).learn(60)
    assert (model.replay_buffer.sample(32).rewards == 1).all()  # type: ignore[union-attr]
    venv.close()


def test_a_memory_saving_buffer_and_another_environment_are_refused() -> None:
    venv = sb3.to_vec_env(stack(Line))
    choices = sb3.relabelled(venv)
    choices["replay_buffer_kwargs"] |= {"handle_timeout_termination": False}
    with pytest.raises(ValueError, match="optimize_memory_usage must be False"):
        SAC("MlpPolicy", venv, **OPTIONS, **choices, optimize_memory_usage=True)
    other = sb3.to_vec_env(stack(Line))
    with pytest.raises(RuntimeError, match="belongs to another VecEnv"):
        SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(other)).learn(40)
    venv.close()
    other.close()


def test_a_guard_below_holds_replayed_rewards_down() -> None:
    bandit = Bandit(max_turns=1)
    envs = corrected(bandit, Spiked(bandit), num_envs=8, anchors=0.2, update_every=0, autoreset_mode=SAME)
    guarded = OnlineDebiasing(envs.unwrapped, pessimism=1.0)
    guarded.correction.guard.learn(np.linspace(0.1, 0.8, 200), np.linspace(0.1, 0.8, 200))  # type: ignore[union-attr]
    said = guarded.correction.calibrated(np.array([0.97]), np.array([0.05]), np.zeros(1, np.int64), np.ones(1, np.int64))  # type: ignore[attr-defined]
    assert said.unconfirmed.all()
    assert said.value[0] < 0.9
    envs.close()


def walked(count: int = 12, *, kind: Any = Line) -> Transitions:
    """Recorded steps, each with a reward that nobody predicts; that of the first is not known."""
    env = kind()
    episode = run_episode(env, lambda env, _: env.action_space.sample(), seed=0)
    steps = batch.concatenate([episode.transitions()] * count)
    valid = np.arange(len(steps)) > 0
    return replace(steps, reward=np.where(valid, 100.0 + np.arange(len(steps)), -1.0), reward_valid=valid)


@pytest.mark.parametrize(("algorithm", "kind"), [(SAC, Line), (DQN, Steps)])
def test_a_share_of_each_sample_is_real_transitions(algorithm: Any, kind: Any) -> None:
    envs = stack(kind, anchors=0.0, start_states="buffer")
    steps = walked(kind=kind)
    envs.unwrapped.learn_from(steps)
    venv = sb3.to_vec_env(envs)
    model = algorithm("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv, real_share=0.25)).learn(60)
    sample = model.replay_buffer.sample(40)
    real = sample.rewards[:, 0].numpy() >= 100
    assert real.sum() == 10
    at = sample.rewards[real, 0].numpy().astype(int) - 100
    np.testing.assert_array_equal(sample.observations[real].numpy(), steps.observation[at])
    np.testing.assert_array_equal(sample.next_observations[real].numpy(), steps.next_observation[at])
    scale = 2.0 if kind is Line else 1  # SB3 has actions in [-1, 1], and those of the line go to 0.5
    acted = sample.actions[real].numpy().reshape(len(at), -1)
    np.testing.assert_allclose(acted, scale * steps.action[at].reshape(len(at), -1), atol=1e-6)
    assert (sample.dones[real] == 0).all()  # a time limit ended them
    venv.close()


def test_the_share_follows_the_anchors_that_arrive_and_waits_for_the_first() -> None:
    envs = stack(Line, anchors=0.0)
    venv = sb3.to_vec_env(envs)
    model = SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv, real_share=0.5)).learn(40)
    buffer: Any = model.replay_buffer
    assert len(buffer.sample(10).rewards) == 10
    assert buffer.real.sample(10, np.random.default_rng(0)) is None
    envs.unwrapped.engine.buffer.add(walked())
    assert (buffer.sample(10).rewards >= 100).sum() == 5
    envs.unwrapped.engine.buffer.add(replace(walked(), reward=np.full(60, 1000.0), reward_valid=np.ones(60, bool)))
    assert (buffer.sample(200).rewards == 1000).any()
    venv.close()


def test_a_real_share_that_cannot_be_is_refused() -> None:
    venv = sb3.to_vec_env(stack(Line))
    with pytest.raises(ValueError, match=r"real_share must lie in \[0, 1\], got 1.5"):
        SAC("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv, real_share=1.5))
    plain = sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match="needs an environment with a world model"):
        DQN("MlpPolicy", plain, **OPTIONS, **sb3.relabelled(plain, real_share=0.5))
    venv.close()
    plain.close()


@pytest.mark.parametrize(("algorithm", "kind"), [(SAC, Line), (DQN, Steps)])
def test_replayed_rewards_know_what_was_done(algorithm: Any, kind: Any) -> None:
    settings: dict[str, Any] = {"num_envs": 4, "anchors": 0.5, "max_model_steps": 5, "autoreset_mode": SAME, "seed": 0}
    envs: Any = WorldModelVectorEnv(kind, Overrated(discrete=kind is Steps), pairs="open_loop", **settings)
    venv = sb3.to_vec_env(OnlineDebiasing(envs, "contextual", reward_range=(-1.0, 1.5)))
    model = algorithm("MlpPolicy", venv, **OPTIONS, **sb3.relabelled(venv))
    model.learn(60)
    buffer: Any = model.replay_buffer
    step, slot = np.nonzero(~np.isfinite(buffer.kept["real_reward"][:10]))
    row = {name: buffer.kept[name][step, slot] for name in ("wm_reward", "wm_reward_std", "context", "depth")}
    done = buffer.features[step, slot].astype(float)
    width = 2 if algorithm is SAC else 4
    assert done.shape == (len(step), 2 * width)
    assert np.isfinite(done).all()
    buffer.debiasing.calibration.share = 0.5  # whatever the pairs say, so that features matter
    wanted = buffer.debiasing.calibrated(*row.values(), features=done).value
    np.testing.assert_allclose(buffer.rewards_at(step, slot), wanted, rtol=1e-6)
    assert not np.allclose(buffer.debiasing.calibrated(*row.values()).value, wanted, atol=1e-9)


@pytest.mark.parametrize("share", [0.9, 0.01, 0.0])
def test_drawing_looks_at_few_rows_however_large_the_buffer_is(share: float) -> None:
    size, asked = 1_000_000, []
    usable = np.random.default_rng(1).random(size) < share

    def says(rows: Any) -> Any:
        asked.append(len(rows))
        return usable[rows]

    drawn = draw_where(says, size, 256, np.random.default_rng(0))
    assert len(drawn) == (256 if share else 0)
    assert usable[drawn].all()
    if share > 0.5:
        assert sum(asked) < 400
    rows = np.arange(6) % 2 == 0
    often = np.bincount(draw_where(rows.__getitem__, 6, 3000, np.random.default_rng(0)), minlength=6)
    assert (often[1::2] == 0).all()
    assert (often[::2] > 900).all(), "each with the same chance"
    assert len(draw_where(rows.__getitem__, 0, 5, np.random.default_rng(0))) == 0


def test_an_emptied_buffer_has_nothing_to_sample() -> None:
    venv = sb3.to_vec_env(stack(Steps))
    model = DQN("MlpPolicy", venv, **sb3.relabelled(venv), **OPTIONS).learn(40)
    buffer: Any = model.replay_buffer
    assert len(buffer.sample(8).rewards) == 8
    buffer.reset()
    with pytest.raises(RuntimeError, match="not one step in the buffer has a known reward"):
        buffer.sample(8)
