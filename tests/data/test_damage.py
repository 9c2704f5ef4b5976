"""Data sets that are cut off or somebody else's are named, with what to do; two commands with one folder take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest

from tests.minari_sets import random_episodes, write
from wmrl_gym.cli import main
from wmrl_gym.data.demonstrations import Collection, CollectionError, EpisodeFolder, run_episode
from wmrl_gym.data.minari import MinariEpisodes


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    env = gym.make("CartPole-v1")
    return write(tmp_path, "wmrl/cartpole-v0", env, random_episodes(env, 4))


def test_a_data_set_that_was_cut_off_is_named(cartpole: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = cartpole / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:-20_000])
    with pytest.raises(ValueError, match=r"cartpole-v0.* cannot be read, as after a download or a collection that was cut off"):
        MinariEpisodes(cartpole).read(0)
    assert main(["fit", str(cartpole), "--out", str(tmp_path / "fit")]) == 2
    assert "get it or collect it again" in capsys.readouterr().err


def test_an_episode_without_its_last_observation_is_named(cartpole: Path) -> None:
    with h5py.File(cartpole / "data" / "main_data.hdf5", "a") as stored:
        observations = stored["episode_2"]["observations"][:-1]
        del stored["episode_2"]["observations"]
        stored["episode_2"]["observations"] = observations
    episodes = MinariEpisodes(cartpole)
    assert len(episodes.read(1)) > 0
    n = len(observations)
    with pytest.raises(ValueError, match=f"episode 2 of .* has {n} observations for {n} steps, and {n + 1} are needed"):
        episodes.read(2)


def test_an_info_that_means_something_else_is_named(cartpole: Path) -> None:
    with h5py.File(cartpole / "data" / "main_data.hdf5", "a") as stored:
        n = len(stored["episode_0"]["rewards"])
        stored["episode_0"].create_group("infos")["context"] = np.array([b"kitchen"] * n)
    with pytest.raises(ValueError, match=r"episode 0 of .* has infos\['context'\] of .*: rename that key"):
        MinariEpisodes(cartpole).read(0)


def test_a_damaged_episode_of_a_collection_is_named(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    folder = EpisodeFolder(tmp_path, Collection("CartPole-v1", {}, "random", 0, 30, {}))
    folder.add(run_episode(env, lambda env, observation: 0, seed=3))
    (file,) = folder._files()
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(CollectionError, match=r"seed-00000003.npz is damaged .*: remove it"):
        list(folder)
    with pytest.raises(CollectionError, match="is damaged"):
        folder.success_rates()
    (tmp_path / "collection.json").write_text("{")
    with pytest.raises(CollectionError, match=r"collection.json is damaged"):
        EpisodeFolder(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(cartpole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["collect", "CartPole-v1"], ["fit", str(cartpole)], ["demo"]):
        assert main([*command, "--out", "/proc/nobody"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"wmrl {command[0]}: cannot write /proc/nobody: ")
        assert said.endswith("choose another folder with --out\n")


def test_two_commands_with_one_folder_take_turns(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wmrl_gym.cli", "collect", "CartPole-v1", "--episodes", "12", "--out", str(tmp_path / "out")]
    command += ["--format", "minari,lerobot"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    dataset = minari.MinariDataset(tmp_path / "out" / "minari" / "wmrl" / "CartPole-v1-random-v0" / "data")
    assert dataset.total_episodes == 12
    info = json.loads((tmp_path / "out" / "lerobot" / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (12, dataset.total_steps)
    left = {path.name for path in (tmp_path / "out").rglob("*") if ".part" in path.name or ".old" in path.name}
    assert left == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:CartPole-v1"], "No module named 'no_such_module'"),
        (["CartPole-v1", "--set", "gravity=1"], "unexpected keyword argument 'gravity'"),
        (["CartPole-v1", "--task", "drawer-open"], "unexpected keyword argument 'task'"),
        (["CartPole-v1", "--name", "mine"], "--name must end with a version, such as -v0, got 'mine'"),
    ],
)
def test_what_cannot_be_collected_is_one_line(
    arguments: list[str], message: str, *, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", *arguments, "--episodes", "1", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
