"""Real transitions: what world models learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.batch import Ring
from wmrl_gym.factored import Outcome


@dataclass(frozen=True, slots=True)
class Transitions:
    """A batch of N really executed steps. Autoreset steps are never among them.

    Args:
        observation: batch of the observations acted upon.
        action: batch of actions.
        reward: float64, shape (N,). A placeholder where ``reward_valid`` is False.
        next_observation: batch; the true final observation where the episode ended.
        terminated: bool, shape (N,).
        truncated: bool, shape (N,).
        reward_valid: bool, shape (N,).
        context: int64, shape (N,). Which task; 0 where the environment has one only.
        attempt: batch of attempts, for factored environments.
        outcome: their outcomes, for factored environments.
    """

    observation: Any
    action: Any
    reward: NDArray[np.float64]
    next_observation: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    reward_valid: NDArray[np.bool_]
    context: NDArray[np.int64]
    attempt: Any = None
    outcome: Outcome | None = None

    def __len__(self) -> int:
        return len(self.reward)


class TransitionBuffer(Ring[Transitions]):
    """The newest ``capacity`` real transitions, in order of arrival.

    Args:
        capacity: the most transitions kept; the oldest go first.
    """

    def since(self, cursor: int) -> Transitions | None:
        """The transitions that were added after ``added`` stood at ``cursor``; None where there are none.

        Raises:
            ValueError: the cursor lies in the future.
        """
        return self.newer(cursor)
