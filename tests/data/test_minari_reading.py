"""Minari data sets as transitions."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from tests.bandit import Bandit
from tests.minari_sets import factored_episodes, random_episodes, write
from wmrl_gym.data.minari import MinariEpisodes


def test_an_episode_is_read_step_by_step(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    buffers = random_episodes(env, 3)
    episodes = MinariEpisodes(write(tmp_path, "wmrl/cartpole-v0", env, buffers))
    assert (len(episodes), episodes.steps) == (3, sum(len(buffer) for buffer in buffers))
    for buffer, read in zip(buffers, episodes, strict=True):
        np.testing.assert_array_equal(read.observation, buffer.observations[:-1])
        np.testing.assert_array_equal(read.next_observation, buffer.observations[1:])
        np.testing.assert_array_equal(read.action, buffer.actions)
        np.testing.assert_array_equal(read.reward, buffer.rewards)
        assert read.terminated.tolist() == buffer.terminations
        assert read.reward_valid.all()
        assert read.observation.dtype == np.float32
    assert len(episodes.read_many([2, 0])) == len(buffers[2]) + len(buffers[0])
    assert episodes.make_env().spec.id == "CartPole-v1"  # type: ignore[union-attr]


def test_an_id_below_the_environment_variable_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gym.make("CartPole-v1")
    write(tmp_path, "wmrl/cartpole-v0", env, random_episodes(env, 1))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert len(MinariEpisodes("wmrl/cartpole-v0")) == 1


def test_texts_stay_texts(tmp_path: Path) -> None:
    text = gym.spaces.Text(20, charset="abc é\n")
    space = gym.spaces.Dict({"said": text, "turn": gym.spaces.Discrete(4)})
    buffer = EpisodeBuffer(
        id=0,
        observations={"said": ["", "a é", "b\nc"], "turn": np.array([0, 1, 2])},
        actions=["aa", ""],
        rewards=[0.0, float("nan")],
        terminations=[False, True],
        truncations=[False, False],
        infos={"context": [5, 5, 5]},
    )
    with pytest.warns(UserWarning, match="(?i)env"):
        folder = write(tmp_path, "wmrl/text-v0", None, [buffer], observation_space=space, action_space=text)
    read = MinariEpisodes(folder).read(0)
    assert read.next_observation["said"] == ("a é", "b\nc")
    assert read.action == ("aa", "")
    assert read.next_observation["turn"].tolist() == [1, 2]
    assert read.context.tolist() == [5, 5]
    assert (read.reward_valid.tolist(), read.reward.tolist()) == ([True, False], [0.0, 0.0])


def test_attempts_of_a_factored_environment_are_replayed(tmp_path: Path) -> None:
    bandit = Bandit(lose=1)
    buffers, attempts = factored_episodes(bandit, 6)
    folder = _without_env(tmp_path, bandit, buffers)
    episodes = MinariEpisodes(folder, factored=bandit)
    for read, tried, buffer in zip(episodes, attempts, buffers, strict=True):
        np.testing.assert_array_equal(read.attempt.task, tried.task)
        np.testing.assert_array_equal(read.attempt.design, tried.design)
        assert read.outcome is not None
        assert buffer.infos is not None
        np.testing.assert_array_equal(read.outcome.value, buffer.infos["outcome"]["value"])
        np.testing.assert_array_equal(read.reward_valid, read.outcome.known)
    assert not all(read.reward_valid.all() for read in episodes)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    bandit = Bandit()
    buffer, _ = factored_episodes(bandit, 1)
    assert buffer[0].infos is not None
    del buffer[0].infos["outcome"]
    episodes = MinariEpisodes(_without_env(tmp_path, bandit, buffer), factored=bandit)
    with pytest.raises(ValueError, match=r"episode 0 of .* infos\['outcome'\] is missing"):
        episodes.read(0)
    with pytest.raises(IndexError, match="which has 1"):
        episodes.read(1)
    with pytest.raises(ValueError, match="does not say which environment"):
        episodes.make_env()
    with pytest.raises(ValueError, match="holds no folder `data`"):
        MinariEpisodes(tmp_path)
    with pytest.raises(ValueError, match="there is no Minari data set wmrl/nothing-v0"):
        MinariEpisodes("wmrl/nothing-v0")


def _without_env(root: Path, bandit: Bandit, buffers: list[EpisodeBuffer]) -> Path:
    spaces = {"observation_space": bandit.observation_space, "action_space": bandit.action_space}
    with pytest.warns(UserWarning, match="(?i)env"):
        return write(root, "wmrl/bandit-v0", None, buffers, **spaces)
