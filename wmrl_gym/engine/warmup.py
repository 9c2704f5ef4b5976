"""Random actions, really executed, for a model that knows nothing yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np

from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.randomness import mix


def execute_random(
    real: RealExecution, *, executions: int, seconds: float, seed: int, take: Callable[[list[RealStep]], int]
) -> None:
    """Run episodes of random actions side by side, until so many steps were executed or the time is over.

    Args:
        real: what executes them.
        executions: steps.
        seconds: at most.
        seed: of starts and actions.
        take: takes an episode's steps in, and returns how many there have been in all.
    """
    began, done, episode = time.monotonic(), 0, 0
    pending: list[Future[list[RealStep]]] = []
    while done < executions and time.monotonic() - began < seconds:
        while len(pending) < real.max_real:
            # An episode without an end is cut: the first alone may be all that was asked for.
            own = int(mix(seed, 2, np.array(episode)))
            actions = islice(_random_actions(real, own, until=began + seconds), executions)
            pending.append(real.submit(own, None, actions))
            episode += 1
        done = take(pending.pop(0).result())
    for future in pending:
        take(future.result())


def _random_actions(real: RealExecution, seed: int, *, until: float) -> Iterator[Any]:
    space = deepcopy(real.interface.action_space)
    space.seed(seed % 2**31)
    while time.monotonic() < until:
        yield space.sample()
