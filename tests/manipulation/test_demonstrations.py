"""Episodes are kept whole, collecting goes on where it stopped, and others can read what was written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.manipulation.clips import SENTENCES, Bars, demonstrations
from wmrl_gym.cli import main
from wmrl_gym.data.demonstrations import Collection, CollectionError, EpisodeFolder, run_episode
from wmrl_gym.data.lerobot import write_lerobot
from wmrl_gym.data.minari import write_minari

COLLECTION = Collection("bars", {"length": 8}, "expert", 0, 20, {"numpy": np.__version__})


@pytest.fixture
def folder(tmp_path: Path) -> EpisodeFolder:
    kept = EpisodeFolder(tmp_path / "kept", COLLECTION)
    for episode in [*demonstrations(3), *demonstrations(5, good=False)[3:]]:
        kept.add(episode)
    return kept


def test_episodes_come_back_as_they_were(folder: EpisodeFolder) -> None:
    for kept, made in zip(folder, demonstrations(3), strict=False):
        assert (kept.observation["image"] == made.observation["image"]).all()
        assert kept.observation["instruction"].tolist() == [made.instruction] * (len(made) + 1)
        assert (kept.action == made.action).all()
        assert (kept.reward == made.reward).all()
        assert (kept.seed, kept.success, kept.task, len(kept)) == (made.seed, made.success, made.task, len(made))


def test_failed_episodes_are_kept_and_marked(folder: EpisodeFolder) -> None:
    assert [episode.success for episode in folder] == [True, True, True, False, False]
    won = sum(rate[0] for rate in folder.success_rates().values())
    assert (won, sum(rate[1] for rate in folder.success_rates().values())) == (3, 5)


def test_a_folder_of_another_collection_is_refused(folder: EpisodeFolder) -> None:
    other = Collection("bars", {"length": 9}, "expert", 0, 20, {"numpy": np.__version__})
    with pytest.raises(CollectionError, match=r"another collection \(options: {'length': 8}, not {'length': 9}\)"):
        EpisodeFolder(folder.path, other)
    with pytest.raises(CollectionError, match="holds no episodes"):
        EpisodeFolder(folder.path / "episodes")
    assert len(EpisodeFolder(folder.path)) == 5


def test_plain_environments_can_be_recorded_too(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    episode = run_episode(env, lambda env, observation: int(observation[2] > 0), seed=1)
    kept = EpisodeFolder(tmp_path, Collection("CartPole-v1", {}, "random", 0, 50, {}))
    kept.add(episode)
    (again,) = kept
    assert again.observation.shape == (len(again) + 1, 4)
    assert again.action.shape == (len(again),)
    assert again.terminated
    assert not again.success


def test_minari_reads_what_was_written(folder: EpisodeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    env = Bars()
    write_minari(folder, env, tmp_path / "minari", dataset_id="wmrl/bars-expert-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    dataset = minari.load_dataset("wmrl/bars-expert-v0")
    assert dataset.total_episodes == 5
    assert dataset.observation_space["image"] == env.observation_space["image"]
    for kept, made in zip(dataset.iterate_episodes(), folder, strict=True):
        assert (np.asarray(kept.observations["image"]) == made.observation["image"]).all()
        assert list(kept.observations["instruction"]) == made.observation["instruction"].tolist()
        assert (kept.actions == made.action).all()
        assert (kept.rewards == made.reward).all()
        assert kept.terminations[-1] == made.terminated
    facts = list(dataset.storage.get_episode_metadata(range(5)))
    assert [bool(fact["success"]) for fact in facts] == [True, True, True, False, False]
    assert [int(fact["seed"]) for fact in facts] == [episode.seed for episode in folder]


def test_a_lerobot_data_set_holds_every_frame_and_its_place(folder: EpisodeFolder, tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow.parquet as pq
    from PIL import Image

    root = write_lerobot(folder, tmp_path / "lerobot", robot_type="bars")
    info = json.loads((root / "meta/info.json").read_text())
    episodes = list(folder)
    frames = sum(len(episode) for episode in episodes)
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["fps"]) == ("v3.0", 5, frames, 20)
    assert info["features"]["observation.images.image"] == {
        "dtype": "image",
        "shape": [32, 32, 3],
        "names": ["height", "width", "channels"],
    }
    table = pq.read_table(root / info["data_path"].format(chunk_index=0, file_index=0)).to_pandas()
    assert set(table.columns) == set(info["features"])
    assert table["index"].tolist() == list(range(frames))
    tasks = pd.read_parquet(root / "meta/tasks.parquet")
    assert set(tasks.index) == set(SENTENCES)
    rows = pd.read_parquet(root / "meta/episodes/chunk-000/file-000.parquet")
    assert rows["success"].tolist() == [episode.success for episode in episodes]
    for row, episode in zip(rows.itertuples(), episodes, strict=True):
        part = table.iloc[row.dataset_from_index : row.dataset_to_index]
        assert len(part) == row.length == len(episode)
        assert tasks.index[part["task_index"].iloc[0]] == episode.instruction == row.tasks[0]
        for at, frame in enumerate(part["observation.images.image"]):
            image = np.asarray(Image.open(io.BytesIO(frame["bytes"])))
            assert (image == episode.observation["image"][at]).all()
        assert np.allclose(part["action"], episode.action[:, 0])
        assert part["next.success"].iloc[-1] == episode.success
        assert np.allclose(part["timestamp"], np.arange(len(part)) / 20)


def test_lerobot_statistics_are_those_of_the_frames(folder: EpisodeFolder, tmp_path: Path) -> None:
    root = write_lerobot(folder, tmp_path / "lerobot")
    stats = json.loads((root / "meta/stats.json").read_text())
    images = np.concatenate([episode.observation["image"][: len(episode)] for episode in folder]) / 255.0
    told = stats["observation.images.image"]
    np.testing.assert_allclose(np.array(told["mean"]).ravel(), images.mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(np.array(told["std"]).ravel(), images.std((0, 1, 2)), atol=1e-6)
    assert np.array(told["mean"]).shape == (3, 1, 1)
    assert told["count"] == [len(images)]
    assert stats["next.reward"]["max"] == [1.0]


def test_other_folders_are_not_overwritten(folder: EpisodeFolder, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="no LeRobot data set"):
        write_lerobot(folder, tmp_path / "precious")


def collect(*arguments: str, out: Path) -> int:
    return main(["collect", *arguments, "--out", str(out)])


@pytest.mark.needs_gl
def test_collect_records_experts_in_both_formats_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("wmrl/VLAManipulation-v0", "--task", "drawer-open,reach", "--expert", "--set", "image_size=16")
    assert collect(*arguments, "--episodes", "1", out=tmp_path) == 0
    files = sorted((tmp_path / "episodes").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    assert collect(*arguments, "--episodes", "2", "--format", "minari,lerobot", out=tmp_path) == 0
    assert [file.stat().st_mtime_ns for file in files] == before
    said = capsys.readouterr().out
    assert "drawer-open" in said
    assert "100%" in said
    episodes = list(EpisodeFolder(tmp_path))
    assert [episode.task for episode in episodes] == ["drawer-open", "reach"] * 2
    assert all(episode.success for episode in episodes)
    assert (tmp_path / "lerobot/meta/info.json").is_file()
    assert list((tmp_path / "minari/wmrl").iterdir())
    assert set(EpisodeFolder(tmp_path).collection.versions) >= {"mujoco", "metaworld"}


def test_a_data_set_of_many_tasks_is_named_by_their_number_for_names_of_files_are_short(tmp_path: Path) -> None:
    tasks = "reach,button-press,drawer-close,plate-slide,handle-press"
    assert collect("wmrl/VLAManipulationState-v0", "--task", tasks, "--expert", "--episodes", "1", out=tmp_path) == 0
    assert (tmp_path / "minari/wmrl/VLAManipulationState-5-tasks-expert-v0").is_dir()


def test_collect_records_any_environment_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    assert collect("CartPole-v1", "--episodes", "3", "--name", "cartpole/random-v0", out=tmp_path) == 0
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    dataset = minari.load_dataset("cartpole/random-v0")
    assert dataset.total_episodes == 3
    assert dataset.recover_environment().spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1", "--expert"), "ships no scripted expert"),
        (("CartPole-v1", "--format", "rlds"), "--format must be among minari, lerobot, got rlds"),
        (("CartPole-v1", "--episodes", "0"), "at least 1, got 0"),
        (("CartPole-v1", "--set", "x"), "KEY=VALUE"),
        (("wmrl/VLAManipulation-v0", "--task", "drawer"), "the closest are drawer-open"),
        (("wmrl/Nowhere-v0",), "doesn't exist"),
    ],
)
def test_collect_says_what_is_wrong(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(*arguments, out=tmp_path) == 2
    said: Any = " ".join(capsys.readouterr().err.split())
    assert message in said
