"""Robot tasks as trials of fixed length with a verdict at the end, what a policy takes in of them, and demonstrations of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorObservationWrapper
from numpy.typing import NDArray

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.data.demonstrations import Collection, Episode, EpisodeFolder, run_episode
from wmrl_gym.envs.manipulation.metaworld import MetaWorld
from wmrl_gym.world_models.sentence_encoders import HashedWords


@dataclass(frozen=True, slots=True)
class Length:
    """How long a trial takes.

    Args:
        steps: actions of the policy.
        action_repeat: steps of the simulator for each of them.
        image_size: pixels of an image's sides.
        frames_seen: at either end of a trial.
    """

    steps: int = 20
    action_repeat: int = 5
    image_size: int = 64
    frames_seen: int = 1


class Scene(gym.ObservationWrapper[Any, Any, Any]):
    """Adds what the simulator knows of hand, objects and target: ``scene``, float32, shape (39,). For policies without eyes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        self._simulator: MetaWorld = env.unwrapped.simulator  # type: ignore[attr-defined]
        self.observation_space = gym.spaces.Dict({**env.observation_space.spaces, "scene": self._simulator.privileged_space})

    def observation(self, observation: Any) -> Any:
        """The observation with the scene."""
        return {**observation, "scene": self._simulator.privileged()}


class Trial(gym.Wrapper[Any, Any, Any, Any]):
    """An episode of fixed length; whether the task is done when it ends is its reward, paid then, and the only one.

    That success does not end it, or it would be known without a verdict. The observation says how much time has passed (``time``:
    float32, shape (1,), in [0, 1]), since what pays depends on it. Its ``image`` is a new one in the first and last few frames
    only, which are all that a verdict goes by, and the last new one between them: drawing is most of what a step costs.

    Args:
        env: a manipulation environment without cameras, with sparse reward, that success does not end.
        length: of a trial.
        seeing: whether there are images at all.
    """

    def __init__(self, env: gym.Env[Any, Any], length: Length, *, seeing: bool) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        more: dict[str, gym.Space[Any]] = {"time": gym.spaces.Box(0.0, 1.0, (1,), np.float32)}
        if seeing:
            more["image"] = gym.spaces.Box(0, 255, (length.image_size, length.image_size, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({**env.observation_space.spaces, **more})
        self.length, self.seeing = length, seeing
        self._simulator: MetaWorld = env.unwrapped.simulator  # type: ignore[attr-defined]
        self._step = 0
        self._image: NDArray[np.uint8] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a trial."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._step = 0
        return self._completed(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the last one terminates, with the verdict."""
        observation, _, _, _, info = self.env.step(action)
        self._step += 1
        over = self._step >= self.length.steps
        return self._completed(observation), float(over and info["is_success"]), over, False, info

    def _completed(self, observation: Any) -> Any:
        observation = {**observation, "time": np.array([self._step / self.length.steps], np.float32)}
        if not self.seeing:
            return observation
        ends = self.length.frames_seen
        if self._step < ends or self._step > self.length.steps - ends:
            self._image = self._simulator.image("corner2")
        return {**observation, "image": self._image}


@dataclass(frozen=True, slots=True)
class TrialMaker:
    """Makes trials of a task; picklable.

    Args:
        task: its name.
        length: of a trial.
        seeing: whether images are drawn.
    """

    task: str
    length: Length
    seeing: bool = True

    def __call__(self) -> gym.Env[Any, Any]:
        return Trial(make_env(self.task, self.length, seeing=False), self.length, seeing=self.seeing)


def make_env(task: str | Sequence[str], length: Length, *, seeing: bool = True) -> gym.Env[Any, Any]:
    """What a trial is made of; its reward says in each step whether the task is done."""
    env = gym.make(
        "wmrl/VLAManipulation-v0",
        task=task,
        image_size=length.image_size,
        cameras="corner2" if seeing else (),
        phrasing="plain",
        terminate_on_success=False,
        action_repeat=length.action_repeat,
        max_episode_steps=length.steps + 1,  # a trial ends first, by its own count
    )
    return Scene(env)


@dataclass(frozen=True, slots=True)
class Senses:
    """What a policy takes in: robot state, scene, time and sentence as one vector, each number of ordinary size.

    Args:
        mean: float32, shape (54,), or (57,) if ``towards``. Of state, scene and time in demonstrations.
        scale: float32, of the same shape. Their standard deviations.
        towards: whether it takes in too where the target lies as seen from the hand.
        words: numbers of a sentence's vector.
    """

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    towards: bool = False
    words: int = 32

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, towards: bool = False) -> Senses:
        """Those for which demonstrated states and times have mean 0 and standard deviation 1."""
        seen = np.concatenate([_felt(timed(episode), towards) for episode in episodes])
        return cls(seen.mean(0), np.maximum(seen.std(0), 0.02), towards)

    @property
    def space(self) -> gym.spaces.Box:
        """Of what is taken in."""
        return gym.spaces.Box(-10.0, 10.0, (len(self.mean) + self.words,), np.float32)

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[np.float32]:
        """What is taken in of n observations: float32, shape (n, size)."""
        told = np.stack([_told(str(sentence), self.words) for sentence in observation["instruction"]])
        felt = (_felt(observation, self.towards) - self.mean) / self.scale
        return np.clip(np.concatenate([felt, told], axis=1), -10.0, 10.0).astype(np.float32)


class Perceive(VectorObservationWrapper):
    """Observations as :class:`Senses` take them in; what stands below it still sees images."""

    def __init__(self, envs: VectorEnv[Any, Any, NDArray[Any]], senses: Senses) -> None:
        super().__init__(envs)
        self.senses = senses
        self.single_observation_space = senses.space
        self.observation_space = gym.vector.utils.batch_space(senses.space, envs.num_envs)

    def observations(self, observations: Any) -> NDArray[np.float32]:
        """Of all environments."""
        return self.senses(observations)


def demonstrate(tasks: Sequence[str], length: Length, *, each: int, seed: int, folder: Path) -> list[Episode]:
    """Experts show each task ``each`` times; kept in ``folder``, so that it is done once."""
    options = {"task": list(tasks), "steps": length.steps, "repeat": length.action_repeat, "size": length.image_size}
    first = 10_000 * (seed + 1)
    kept = EpisodeFolder(folder, Collection("wmrl/VLAManipulation-v0", options, "expert", first, 0, {}))
    wanted = {first + number: tasks[number % len(tasks)] for number in range(each * len(tasks))}
    if not all(kept.has(number) for number in wanted):
        env = gym.wrappers.TimeLimit(make_env(tasks, length), length.steps)
        for number, task in wanted.items():
            if not kept.has(number):
                kept.add(run_episode(env, expert, seed=number, options={"task": task}))
        env.close()
    return list(kept)


def until_done(episode: Episode) -> Episode:
    """A demonstration up to the step that first did it, with which a progress model takes it to be complete."""
    done = np.flatnonzero(episode.reward > 0)
    last = int(done[0]) + 1 if len(done) else len(episode)
    observation = {key: value[: last + 1] for key, value in episode.observation.items()}
    return replace(episode, observation=observation, action=episode.action[:last], reward=episode.reward[:last])


def timed(episode: Episode) -> dict[str, Any]:
    """The observations of a demonstration as a trial shows them."""
    time = np.linspace(0.0, 1.0, len(episode) + 1, dtype=np.float32)[:, None]
    return {**episode.observation, "time": time}


@cache
def _told(sentence: str, words: int) -> NDArray[np.float32]:
    return 4.0 * HashedWords(words)([sentence])[0]  # of length 4, so that its numbers are about as large as the others


def _felt(observation: Mapping[str, Any], towards: bool) -> NDArray[np.float32]:
    parts = [observation[name] for name in ("state", "scene", "time")]
    if towards:
        scene = parts[1]
        parts.append(scene[:, -3:] - scene[:, :3])  # the target and the hand
    return np.concatenate(parts, axis=1, dtype=np.float32)


def expert(env: gym.Env[Any, Any], observation: Any) -> Any:
    """What the task's scripted expert does."""
    return env.unwrapped.expert_action()  # type: ignore[attr-defined]
