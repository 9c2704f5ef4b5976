"""Episodes as a Minari data set, and real transitions out of one."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.data.demonstrations import Collection, Episode, EpisodeFolder
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.files import OUT, folder_made_anew, writing

if TYPE_CHECKING:
    from minari import MinariDataset


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
    collection, dataset = episodes.collection, None
    # Minari takes its root from the environment and the rest of the path from the data set's id.
    with writing(out, advice=OUT), folder_made_anew(out / dataset_id) as part, _root(part):
        for number, episode in enumerate(episodes):
            buffer = [_buffer(env, episode, number)]
            if dataset is None:
                dataset = _create(dataset_id, buffer, env=env, collection=collection)
            else:
                dataset.update_dataset_from_buffer(buffer)
            facts = {"success": episode.success, "task": episode.task, "instruction": episode.instruction}
            dataset.storage.update_episode_metadata([facts], [number])
            progress(number + 1)
        made = part / dataset_id
        for each in made.iterdir():
            each.rename(part / each.name)
        shutil.rmtree(part / dataset_id.split("/")[0])
    return out / dataset_id


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


OUTCOME_INFO = "outcome"
"""The key of a step's info below which a data set of a factored environment keeps what executing the attempt brought."""
_OUTCOME_FIELDS = tuple(each.name for each in fields(Outcome) if each.name != "feedback")


class MinariEpisodes:
    """The episodes of a Minari data set, each as :class:`~wmrl_gym.data.transitions.Transitions`.

    A data set may hold more observations than steps, or not; infos may be there, or not: ``context`` and ``reward_valid`` are
    read from them. What a factored environment's attempts brought is read from ``infos["outcome"]``, a dict of the fields of
    :class:`~wmrl_gym.factored.Outcome`, with a row for each step.

    Args:
        source: a data set's folder, or the id of one below ``MINARI_DATASETS_PATH``.
        factored: the environment's parts, where it is factored: its bookkeeping is replayed, so that each step has its attempt.

    Raises:
        DependencyNotInstalled: Minari is missing.
        ValueError: there is no such data set.
    """

    def __init__(self, source: str | Path, *, factored: Factored[Any, Any] | None = None) -> None:
        self.source = str(source)
        self.dataset = _open(source)
        self.factored = factored
        self.observation_space: gym.Space[Any] = self.dataset.observation_space
        self.action_space: gym.Space[Any] = self.dataset.action_space

    def __len__(self) -> int:
        return int(self.dataset.total_episodes)

    def __iter__(self) -> Iterator[Transitions]:
        return (self.read(number) for number in range(len(self)))

    @property
    def steps(self) -> int:
        """Steps in all episodes."""
        return int(self.dataset.total_steps)

    def make_env(self) -> gym.Env[Any, Any]:
        """The environment that the episodes are of.

        Raises:
            ValueError: the data set does not say which.
        """
        if self.dataset.env_spec is None:
            raise ValueError(f"the data set {self.source} does not say which environment it is of")
        return gym.make(self.dataset.env_spec)

    def read(self, number: int) -> Transitions:
        """One episode.

        Raises:
            IndexError: there is no such episode.
            ValueError: the episode is cut off or lacks its last observation, or is of a factored environment and does not hold
                what its attempts brought.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"episode {number} of {self.source}, which has {len(self)}")
        with readable(f"{self.source}, episode {number},"):
            episode = self.dataset[number]
            n, infos = len(episode.rewards), episode.infos or {}
            observations = _batched(self.observation_space, episode.observations)
        if (held := batch.size(observations)) != n + 1:
            raise ValueError(
                f"episode {number} of {self.source} has {held} observations for {n} steps, and {n + 1} are needed: the last one, "
                "at which it ended, is missing; record the observation that the last step returned as well"
            )
        before, after = np.arange(n), np.arange(1, n + 1)
        reward = np.asarray(episode.rewards, np.float64)
        valid = np.isfinite(reward) & self._facts(infos, "reward_valid", np.ones(n, bool), number)
        context = self._facts(infos, "context", np.zeros(n, np.int64), number)
        actions = _batched(self.action_space, episode.actions)
        transitions = Transitions(
            observation=batch.take(observations, before),
            action=actions,
            reward=np.where(valid, reward, 0.0),
            next_observation=batch.take(observations, after),
            terminated=np.asarray(episode.terminations, bool),
            truncated=np.asarray(episode.truncations, bool),
            reward_valid=valid,
            context=context,
        )
        return transitions if self.factored is None else self._with_attempts(transitions, infos, number)

    def _facts(self, infos: dict[str, Any], key: str, default: NDArray[Any], number: int) -> NDArray[Any]:
        """What the infos of each step say under ``key``, in the form of ``default``."""
        told = _steps(infos.get(key), len(default), default=default)
        if told.dtype.kind not in "biu" or told.shape != default.shape:
            raise ValueError(
                f"episode {number} of {self.source} has infos[{key!r}] of {told.dtype} and shape {told.shape}, expected "
                f"{default.dtype} and {default.shape}: rename that key of the data set, which means something else there"
            )
        return told.astype(default.dtype)

    def read_many(self, numbers: Sequence[int]) -> Transitions:
        """Several episodes, one after the other."""
        return batch.concatenate([self.read(number) for number in numbers])

    def _with_attempts(self, transitions: Transitions, infos: dict[str, Any], number: int) -> Transitions:
        factored, n = self.factored, len(transitions)
        assert factored is not None
        told = infos.get(OUTCOME_INFO)
        if told is None:
            raise ValueError(
                f"episode {number} of {self.source} does not hold what its attempts brought: infos[{OUTCOME_INFO!r}] is missing"
            )
        feedback = np.array([_text(each) for each in _steps(told["feedback"], n, default=None)], dtype=object)
        given = {name: _steps(told[name], n, default=None) for name in _OUTCOME_FIELDS if name in told}
        outcome = Outcome(**given, feedback=feedback)
        state = factored.begin(batch.take(transitions.observation, [0]), {"context": transitions.context[:1]})
        attempts = []
        for row in range(n):
            attempts.append(factored.attempt(state, batch.take(transitions.action, [row])))
            state, _ = factored.advance(state, attempts[-1], batch.take(outcome, [row]))
        fields = {name: getattr(transitions, name) for name in Transitions.__dataclass_fields__}
        return Transitions(**fields | {"attempt": batch.concatenate(attempts), "outcome": outcome})


def _open(source: str | Path) -> MinariDataset:
    try:
        import minari
    except ImportError as error:
        raise DependencyNotInstalled(f"minari is not installed, run `pip install 'wmrl-gym[minari]'` ({error})") from error
    folder = Path(source)
    if (folder / "data").is_dir():
        with readable(source):
            return minari.MinariDataset(folder / "data")
    if folder.is_dir():
        raise ValueError(f"{folder} is not a Minari data set: it holds no folder `data`")
    try:
        return minari.load_dataset(str(source))
    except (OSError, ValueError) as error:
        raise ValueError(f"there is no Minari data set {source}, neither as a folder nor by this id: {error}") from error


@contextmanager
def readable(source: str | Path) -> Iterator[None]:
    """Turn a failure to read in the block into an error that names the data set and says what to do.

    Raises:
        ValueError: in place of the error of the library that reads.
    """
    try:
        yield
    except _DAMAGED as error:
        raise ValueError(
            f"the data set {source} cannot be read, as after a download or a collection that was cut off: get it or collect it "
            f"again ({type(error).__name__}: {error})"
        ) from error


_DAMAGED = (OSError, KeyError, IndexError, AttributeError, TypeError, RuntimeError, AssertionError)
"""What Minari and h5py raise on files that are cut off or hold other things than they should."""


def _batched(space: gym.Space[Any], value: Any) -> Any:
    """What Minari read as a batch of samples of ``space``."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _batched(part, value[key]) for key, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_batched(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, gym.spaces.Text):
        return tuple(_text(each) for each in value)
    samples = list(value)
    empty: Any = create_empty_array(space, n=len(samples))
    return concatenate(space, samples, empty)


def _steps(values: Any, n: int, *, default: Any) -> Any:
    """Infos of n steps; where there is one more, the first is the reset's."""
    if values is None:
        return default
    array: NDArray[Any] = np.asarray(values)
    return array[1:] if len(array) == n + 1 else array


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
