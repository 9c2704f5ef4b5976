"""Stepping on after the end of an episode is an error, whoever ended it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class RefuseAfterEnd(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Raises where ``step`` is called after an episode's end: an environment does not know of the time limit around it.

    Args:
        env: any environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self._over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._over = False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if self._over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before step()")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, which then says so itself."""
        self._over = False
        self.env.close()
