"""Real transitions out of a Minari data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Factored, Outcome

if TYPE_CHECKING:
    from minari import MinariDataset

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
            ValueError: the episode is of a factored environment, and does not hold what its attempts brought.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"episode {number} of {self.source}, which has {len(self)}")
        episode = self.dataset[number]
        n, infos = len(episode.rewards), episode.infos or {}
        observations = _batched(self.observation_space, episode.observations)
        before, after = np.arange(n), np.arange(1, n + 1)
        reward = np.asarray(episode.rewards, np.float64)
        valid = np.isfinite(reward) & _steps(infos.get("reward_valid"), n, default=np.ones(n, bool)).astype(bool)
        context = _steps(infos.get("context"), n, default=np.zeros(n, np.int64)).astype(np.int64)
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
        return minari.MinariDataset(folder / "data")
    if folder.is_dir():
        raise ValueError(f"{folder} is not a Minari data set: it holds no folder `data`")
    try:
        return minari.load_dataset(str(source))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"there is no Minari data set {source}, neither as a folder nor by this id: {error}") from error


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
