"""What is written for LeRobot is read back by the schema that LeRobot makes of ``meta/info.json``, whatever the observation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import gymnasium as gym
import numpy as np
import pytest

from wmrl_gym.data.demonstrations import Collection, EpisodeFolder, run_episode
from wmrl_gym.data.lerobot import write_lerobot

Box = gym.spaces.Box


class Anything(gym.Env[Any, Any]):
    """Twelve steps of samples."""

    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 0.5, False, self.steps >= 12, {}


def schema(features: dict[str, Any]) -> datasets.Features:
    """As LeRobot makes it: by the shape of each feature."""
    made: dict[str, Any] = {}
    for name, feature in features.items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        if dtype == "image":
            made[name] = datasets.Image()
        elif shape == (1,):
            made[name] = datasets.Value(dtype)
        elif len(shape) == 1:
            made[name] = datasets.Sequence(length=shape[0], feature=datasets.Value(dtype))
        else:
            made[name] = getattr(datasets, f"Array{len(shape)}D")(shape=shape, dtype=dtype)
    return datasets.Features(made)


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 1.0, (5,), np.float32),
        Box(-1.0, 1.0, (1,), np.float32),
        Box(-1.0, 1.0, (4, 3), np.float32),
        Box(-1.0, 1.0, (2, 3, 4), np.float64),
        Box(0, 255, (16, 16, 1), np.uint8),
        Box(0, 255, (16, 16, 3), np.uint8),
        Box(0, 255, (16, 16, 6), np.uint8),
        Box(0, 255, (2, 8, 8, 3), np.uint8),
        gym.spaces.Discrete(5),
        gym.spaces.MultiBinary((2, 3)),
    ],
    ids=str,
)
def test_features_of_any_shape_are_read_back(tmp_path: Path, space: gym.Space[Any]) -> None:
    datasets.disable_progress_bars()
    env = Anything(space)
    env.action_space.seed(0)
    folder = EpisodeFolder(tmp_path / "episodes", Collection("anything", {}, "random", 0, 30, {}))
    for seed in range(3):
        folder.add(run_episode(env, lambda env, observation: env.action_space.sample(), seed=seed))
    root = write_lerobot(folder, tmp_path / "set")
    features = json.loads((root / "meta" / "info.json").read_text())["features"]
    files = [str(path) for path in (root / "data").rglob("*.parquet")]
    table = datasets.Dataset.from_parquet(files, features=schema(features), cache_dir=str(tmp_path / "cache"))
    (name,) = (name for name in features if name.startswith("observation"))
    written = np.concatenate([np.asarray(episode.observation)[: len(episode)] for episode in folder])
    read = np.stack([np.asarray(row[name]) for row in table])
    np.testing.assert_array_equal(read.reshape(written.shape), written)
    assert read.shape[1:] == (written.shape[1:] if written.shape[1:] != (1,) else ())
