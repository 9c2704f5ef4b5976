"""Episodes as a Minari data set."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from wmrl_gym.data.demonstrations import Collection, Episode, EpisodeFolder


def write_minari(
    episodes: EpisodeFolder,
    env: gym.Env[Any, Any],
    out: str | Path,
    *,
    dataset_id: str,
    progress: Callable[[int], None] = lambda done: None,
) -> Path:
    """Write every episode of a folder as a Minari data set, failed ones included.

    Each episode's metadata say its ``seed``, ``success``, ``task`` and ``instruction``.

    Args:
        episodes: to write.
        env: that they were collected in: its spaces and its specification go into the data set.
        out: folder of data sets; to be read with ``MINARI_DATASETS_PATH`` set to it.
        dataset_id: of this one, such as ``"wmrl/drawer-open-v0"``; one of this name that is there is replaced.
        progress: told after each episode how many are done.

    Returns:
        The data set's folder.

    Raises:
        DependencyNotInstalled: Minari is missing.
        ValueError: there are no episodes.
    """
    if find_spec("minari") is None:
        raise DependencyNotInstalled("minari is not installed, run `pip install 'wmrl-gym[minari]'`")
    if not len(episodes):
        raise ValueError(f"there are no episodes in {episodes.path}")
    out = Path(out).absolute()
    folder = out / dataset_id
    shutil.rmtree(folder, ignore_errors=True)
    collection, dataset = episodes.collection, None
    with _root(out):
        for number, episode in enumerate(episodes):
            buffer = [_buffer(env, episode, number)]
            if dataset is None:
                dataset = _create(dataset_id, buffer, env=env, collection=collection)
            else:
                dataset.update_dataset_from_buffer(buffer)
            facts = {"success": episode.success, "task": episode.task, "instruction": episode.instruction}
            dataset.storage.update_episode_metadata([facts], [number])
            progress(number + 1)
    return folder


def _create(dataset_id: str, buffer: list[Any], *, env: gym.Env[Any, Any], collection: Collection) -> Any:
    import minari

    requirements = [f"{package}=={version}" for package, version in collection.versions.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an author and a permanent link that nobody knows here
        return minari.create_dataset_from_buffers(
            dataset_id,
            buffer=buffer,
            env=env.spec,
            eval_env=env.spec,
            observation_space=_plain(env.observation_space),
            action_space=_plain(env.action_space),
            algorithm_name=collection.policy,
            requirements=requirements,
            description=f"{collection.policy} episodes of {collection.env_id}, successes and failures",
            data_format="hdf5",
            jpeg_encoding=False,  # images as they are
        )


@contextmanager
def _root(folder: Path) -> Iterator[None]:
    """Minari keeps data sets where this variable says, and takes no argument for it."""
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def _buffer(env: gym.Env[Any, Any], episode: Episode, number: int) -> Any:
    from minari.data_collector import EpisodeBuffer

    length = len(episode)
    ends: NDArray[np.bool_] = np.arange(length) == length - 1
    return EpisodeBuffer(
        id=number,
        seed=episode.seed,
        observations=_listed(episode.observation),
        actions=_listed(episode.action),
        rewards=list(episode.reward),
        terminations=list(ends & episode.terminated),
        truncations=list(ends & episode.truncated),
        infos=_listed(episode.info) if episode.info else None,
    )


def _listed(value: Any) -> Any:
    """Batches as Minari takes them: arrays, and lists of str."""
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [str(text) for text in value] if value.dtype.kind in "US" else value


def _plain(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space in Gymnasium's own types, which is all that Minari can write down."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _plain(part) for key, part in space.items()})
    if isinstance(space, gym.spaces.Text):
        charset = "".join(sorted(set(space.characters) | {chr(code) for code in range(32, 127)} | {"\n"}))
        return gym.spaces.Text(space.max_length, min_length=space.min_length, charset=charset)
    return space
