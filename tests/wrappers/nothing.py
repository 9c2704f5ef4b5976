"""A world model that predicts that nothing moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from wmrl_gym.world_models import Prediction, WorldModel


class Nothing(WorldModel):
    """Every step pays 1, and nothing ends."""

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        """The state is the observation."""
        return observation

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        """The same again."""
        n = len(state)
        yes, no = np.ones(n, bool), np.zeros(n, bool)
        return state, Prediction(state.copy(), np.ones(n), np.full(n, np.nan), no, no.copy(), yes, yes.copy())
