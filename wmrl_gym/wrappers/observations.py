"""Wrappers of observations that policies need: an instruction as a vector, images stacked on the channel axis."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.world_models.sentence_encoders import SentenceEmbedder, sentence_encoder

_REMEMBERED = 10_000  # sentences


class EncodeInstruction(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Replaces a text in a Dict observation by its vector: float32, of length 1. Each sentence is encoded once.

    Args:
        env: an environment with a Dict observation that has a text.
        encoder: "hashed" (no weights), the name or folder of a transformer, or an encoder of your own.
        key: of the text.

    Raises:
        TypeError: there is no text under ``key``.

    >>> import wmrl_gym
    >>> env = EncodeInstruction(gym.make("wmrl/VLAManipulation-v0", task="drawer-open", image_size=64))
    >>> env.observation_space["instruction"]
    Box(-1.0, 1.0, (64,), float32)
    >>> env.close()
    """

    def __init__(self, env: gym.Env[Any, Any], encoder: str | SentenceEmbedder = "hashed", *, key: str = "instruction") -> None:
        gym.utils.RecordConstructorArgs.__init__(self, encoder=encoder, key=key)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Dict) or not isinstance(space.spaces.get(key), gym.spaces.Text):
            raise TypeError(f"EncodeInstruction needs a Dict observation with a text under {key!r}, got {space}")
        self.encoder = sentence_encoder(encoder)
        self.key = key
        self._known: dict[str, NDArray[np.float32]] = {}
        vector = gym.spaces.Box(-1.0, 1.0, (self.encoder.size,), np.float32)
        self.observation_space = gym.spaces.Dict({**space.spaces, key: vector})

    def observation(self, observation: Any) -> Any:
        """The observation with a vector in the sentence's place."""
        sentence = observation[self.key]
        if sentence not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[sentence] = np.clip(self.encoder([sentence])[0], -1.0, 1.0)
        return {**observation, self.key: self._known[sentence].copy()}


class StackImages(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Stacks the newest ``count`` images of a Dict observation on the channel axis, oldest first: (H, W, 3 * count).

    Gymnasium's own stacking makes a fourth axis, which SB3's image policies refuse. An episode starts with copies of its
    first image.

    Args:
        env: an environment with a Dict observation.
        count: images in a stack.
        keys: of the images; None takes all three-dimensional uint8 boxes.

    Raises:
        ValueError: a count below 2, or no such images.

    >>> import wmrl_gym
    >>> env = StackImages(gym.make("wmrl/VLAManipulation-v0", task="drawer-open", image_size=64), 4)
    >>> env.observation_space["image"].shape
    (64, 64, 12)
    >>> env.close()
    """

    def __init__(self, env: gym.Env[Any, Any], count: int = 3, *, keys: tuple[str, ...] | None = None) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, count=count, keys=keys)
        gym.Wrapper.__init__(self, env)
        if count < 2:
            raise ValueError(f"count must be at least 2, got {count}")
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}
        images = {key: part for key, part in parts.items() if isinstance(part, gym.spaces.Box) and _is_image(part)}
        self.keys = tuple(images) if keys is None else keys
        if not self.keys or not set(self.keys) <= set(images):
            raise ValueError(f"expected images under {keys or 'any key'}, got images under {sorted(images)} of {space}")
        self.count = count
        self._frames: dict[str, deque[NDArray[np.uint8]]] = {key: deque(maxlen=count) for key in self.keys}
        stacked = {
            key: gym.spaces.Box(
                np.concatenate([images[key].low] * count, axis=-1),
                np.concatenate([images[key].high] * count, axis=-1),
                dtype=np.uint8,
            )
            for key in self.keys
        }
        self.observation_space = gym.spaces.Dict({**parts, **stacked})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, with copies of its first image."""
        observation, info = self.env.reset(seed=seed, options=options)
        for key, frames in self._frames.items():
            frames.extend([observation[key]] * self.count)
        return self._stacked(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, with the images of the steps before."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        for key, frames in self._frames.items():
            frames.append(observation[key])
        return self._stacked(observation), reward, terminated, truncated, info

    def _stacked(self, observation: Any) -> Any:
        return {**observation, **{key: np.concatenate(list(frames), axis=-1) for key, frames in self._frames.items()}}


def _is_image(space: gym.spaces.Box) -> bool:
    return len(space.shape) == 3 and space.dtype == np.uint8
