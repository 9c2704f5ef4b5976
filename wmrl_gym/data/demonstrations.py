"""Whole episodes of real environments on disk, to be exported to the formats that others read."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Text
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from wmrl_gym.batch import concatenate as concatenate_batches
from wmrl_gym.batch import take
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Outcome
from wmrl_gym.files import OUT, write_json, write_whole, writing

Act = Callable[[gym.Env[Any, Any], Any], Any]
"""A policy: what to do in an environment that was observed."""

_DOCUMENT, _EPISODES = "collection.json", "episodes"


class CollectionError(RuntimeError):
    """A folder holds another collection, or none."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One real episode of T steps.

    Args:
        observation: batch of T + 1 observations; texts are arrays of str.
        action: batch of T actions.
        reward: float64, shape (T,).
        terminated: whether the environment ended it.
        truncated: whether a time limit did.
        success: whether ``info["is_success"]`` was ever true; False too where the environment does not say.
        task: what ``info["task"]`` named; "" where the environment has one task only.
        instruction: the sentence in its observations; "" where there is none.
        seed: that it was reset with.
        info: of a factored environment's T steps the ``context``, ``reward_valid`` and ``outcome`` (a dict of the fields of
            :class:`~wmrl_gym.factored.Outcome`), as arrays; elsewhere empty.
    """

    observation: Any
    action: Any
    reward: NDArray[np.float64]
    terminated: bool
    truncated: bool
    success: bool
    task: str
    instruction: str
    seed: int
    info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    def transitions(self, *, context: int = 0) -> Transitions:
        """Its steps, for a world model to learn from.

        Args:
            context: which of the environment's tasks it is of.

        Raises:
            ValueError: of a factored environment, whose bookkeeping has to be replayed.
        """
        if self.info:
            raise ValueError("an episode of a factored environment: MinariEpisodes(source, factored=...) reads its transitions")
        n = len(self)
        ends, yes = np.arange(n) == n - 1, np.ones(n, bool)
        return Transitions(
            take(self.observation, np.arange(n)),
            self.action,
            self.reward,
            take(self.observation, np.arange(1, n + 1)),
            ends & self.terminated,
            ends & self.truncated,
            yes,
            np.full(n, context, np.int64),
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """What a folder of episodes holds.

    Args:
        env_id: of the environment.
        options: what it was made with.
        policy: who acted, "random" or "expert".
        seed: of the first episode; the others count up from it.
        frames_per_second: of the environment.
        versions: of the packages that simulated.
    """

    env_id: str
    options: dict[str, Any]
    policy: str
    seed: int
    frames_per_second: int
    versions: dict[str, str]


def run_episode(env: gym.Env[Any, Any], act: Act, *, seed: int, options: dict[str, Any] | None = None) -> Episode:
    """Play one episode.

    Args:
        env: any environment.
        act: decides.
        seed: of the reset.
        options: of the reset.
    """
    observation, info = env.reset(seed=seed, options=options)
    observations, actions, rewards = [observation], [], []
    terminated = truncated = success = False
    told: list[tuple[Outcome, dict[str, Any]]] = []
    while not (terminated or truncated):
        action = act(env, observation)
        observation, reward, terminated, truncated, after = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        success |= bool(after.get("is_success", False))
        outcome = getattr(env.unwrapped, "last_outcome", None)
        if outcome is not None:
            told.append((outcome, after))
    batch = _batch(env.observation_space, observations)
    spoken = batch.get("instruction") if isinstance(batch, dict) else None
    return Episode(
        observation=batch,
        action=_batch(env.action_space, actions),
        reward=np.array(rewards),
        terminated=bool(terminated),
        truncated=bool(truncated),
        success=success,
        task=str(info.get("task", "")),
        instruction="" if spoken is None else str(spoken[0]),
        seed=seed,
        info=_info(told),
    )


def _info(told: list[tuple[Outcome, dict[str, Any]]]) -> dict[str, Any]:
    """The outcomes and infos of a factored environment's steps."""
    if not told:
        return {}
    outcome = concatenate_batches([each for each, _ in told])
    fields_ = {each.name: getattr(outcome, each.name) for each in fields(Outcome)}
    return {
        "context": np.array([int(info["context"]) for _, info in told]),
        "reward_valid": np.array([bool(info["reward_valid"]) for _, info in told]),
        "outcome": fields_ | {"feedback": np.array([str(text) for text in outcome.feedback])},
    }


class EpisodeFolder:
    """Episodes in a folder, a file each, so that collecting goes on where it stopped.

    Args:
        path: the folder; it is made where it is missing.
        collection: what it is to hold; None takes what it holds.

    Raises:
        CollectionError: it holds something else, or (without ``collection``) nothing.
    """

    def __init__(self, path: str | Path, collection: Collection | None = None) -> None:
        self.path = Path(path)
        document = self.path / _DOCUMENT
        try:
            found: dict[str, Any] | None = json.loads(document.read_text(encoding="utf-8")) if document.is_file() else None
            if found is not None:
                Collection(**found)
        except (ValueError, TypeError, RecursionError) as error:
            raise CollectionError(f"{document} is damaged ({error}): remove it, and say anew what was collected") from error
        if collection is None:
            if found is None:
                raise CollectionError(f"{self.path} holds no episodes: {_DOCUMENT} is missing")
            self.collection = Collection(**found)
            return
        wanted = json.loads(json.dumps(asdict(collection)))
        differing = [] if found is None else sorted(key for key in wanted if found.get(key) != wanted[key])
        if found is not None and differing:
            described = ", ".join(f"{key}: {found[key]!r}, not {wanted[key]!r}" for key in differing)
            raise CollectionError(f"{self.path} holds another collection ({described}): choose another folder")
        self.collection = collection
        with writing(self.path, advice=OUT):
            (self.path / _EPISODES).mkdir(parents=True, exist_ok=True)
            write_json(document, wanted)

    def __len__(self) -> int:
        return len(self._files())

    def __iter__(self) -> Iterator[Episode]:
        return (self.load(file) for file in self._files())

    def has(self, seed: int) -> bool:
        """Whether the episode of this seed is there."""
        return self._file(seed).is_file()

    def add(self, episode: Episode) -> None:
        """Keep an episode; it is there whole or not at all."""
        batches = {"observation": episode.observation, "action": episode.action, "info": episode.info}
        arrays = {at: leaf for name, value in batches.items() for at, leaf in _flat(name, value).items()}
        arrays["reward"] = episode.reward
        facts = {name: getattr(episode, name) for name in ("terminated", "truncated", "success", "task", "instruction", "seed")}

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(file, **{"facts": np.array(json.dumps(facts)), **arrays})  # type: ignore[arg-type]

        write_whole(self._file(episode.seed), write)

    def load(self, file: Path) -> Episode:
        """Read one episode's file.

        Raises:
            CollectionError: it is damaged.
        """
        with _reading(file) as (facts, stored):
            arrays = {name: stored[name] for name in stored.files if name != "facts"}
        info = _nested(arrays, "info")
        return Episode(_nested(arrays, "observation"), _nested(arrays, "action"), arrays["reward"], **facts, info=info)

    def success_rates(self) -> dict[str, tuple[int, int]]:
        """(successes, episodes) of each task."""
        counts: dict[str, tuple[int, int]] = {}
        for file in self._files():
            with _reading(file) as (facts, _):
                pass
            won, total = counts.get(facts["task"], (0, 0))
            counts[facts["task"]] = (won + bool(facts["success"]), total + 1)
        return counts

    def _file(self, seed: int) -> Path:
        return self.path / _EPISODES / f"seed-{seed:08d}.npz"

    def _files(self) -> list[Path]:
        return sorted((self.path / _EPISODES).glob("seed-*.npz"))


@contextmanager
def _reading(file: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """An episode's facts and its arrays, which the block reads."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            yield json.loads(str(stored["facts"])), stored
    except (OSError, ValueError, LookupError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise CollectionError(f"{file} is damaged ({error!r}): remove it, and collect again what is missing then") from error


def _batch(space: gym.Space[Any], items: list[Any]) -> Any:
    """Samples of ``space`` as a batch in which texts are arrays of str."""
    if isinstance(space, Dict):
        return {key: _batch(sub, [item[key] for item in items]) for key, sub in space.items()}
    if isinstance(space, Text):
        return np.array([str(item) for item in items])
    empty: Any = create_empty_array(space, n=len(items))
    return concatenate(space, items, empty)


def _flat(name: str, value: Any) -> dict[str, NDArray[Any]]:
    if isinstance(value, Mapping):
        return {at: leaf for key, part in value.items() for at, leaf in _flat(f"{name}/{key}", part).items()}
    return {name: np.asarray(value)}


def _nested(arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    if name in arrays:
        return arrays[name]
    nested: dict[str, Any] = {}
    for path, value in arrays.items():
        if path.startswith(f"{name}/"):
            *parents, leaf = path.removeprefix(f"{name}/").split("/")
            at = nested
            for parent in parents:
                at = at.setdefault(parent, {})
            at[leaf] = value
    return nested
