"""An instruction as a vector, for policies that read no text."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.world_models.sentences import SentenceEncoder, sentence_encoder

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

    def __init__(self, env: gym.Env[Any, Any], encoder: str | SentenceEncoder = "hashed", *, key: str = "instruction") -> None:
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
