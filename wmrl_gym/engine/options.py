"""How an engine imagines, and what it has spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from wmrl_gym.engine.uncertainty import UncertaintyKind
from wmrl_gym.world_models import PairKind

AnchorMode = Literal["blocking", "background"]
StartFrom = Literal["real", "buffer"]
UpdateMode = Literal["blocking", "background"]
Horizon: TypeAlias = int | Callable[[int], int] | None
"""Steps of an imagined episode: a number, a function of how many real transitions there have been, or None for no limit."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine imagines.

    Args:
        num_slots: rollouts imagined at once.
        anchor_mode: whether anchor episodes are the real ones ("blocking") or run behind imagined ones ("background").
        pairs: how an anchor's prediction is made: from each real observation, or rolled on from the episode's start.
        update_every: real transitions between two updates of the world model; 0 never updates it.
        update_mode: whether an update holds up the step that it falls due at ("blocking"), or runs on a thread of its own, where
            the model allows it, and is adopted at the first step after it has finished ("background"), which no seed decides.
        max_model_steps: an imagined episode is truncated after so many steps; decided when it starts.
        start_states: imagined episodes start at a real reset, or ("buffer") at an observation that really occurred. Anchors, and
            episodes whose seed or options are given, start at a real reset in any case.
        max_episode_steps: the environment's own time limit; None is none.
        max_in_flight: background episodes waiting or running; one more waits for one of them.
        buffer_capacity: real transitions kept.
        uncertainty: what a schedule by uncertainty is told of a start, see
            :class:`~wmrl_gym.engine.uncertainty.StartUncertainty`.
        seed: of everything drawn here until ``reset(seed=...)`` gives another; None draws one.
    """

    num_slots: int = 1
    anchor_mode: AnchorMode = "blocking"
    pairs: PairKind = "open_loop"
    update_every: int = 32
    update_mode: UpdateMode = "blocking"
    max_model_steps: Horizon = None
    start_states: StartFrom = "real"
    max_episode_steps: int | None = None
    max_in_flight: int = 64
    buffer_capacity: int = 100_000
    uncertainty: UncertaintyKind = "model"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.anchor_mode not in ("blocking", "background"):
            raise ValueError(f'anchor_mode must be "blocking" or "background", got {self.anchor_mode!r}')
        if self.pairs not in ("teacher_forced", "open_loop"):
            raise ValueError(f'pairs must be "teacher_forced" or "open_loop", got {self.pairs!r}')
        if self.update_every < 0:
            raise ValueError(f"update_every must be 0 (never) or more, got {self.update_every}")
        if self.update_mode not in ("blocking", "background"):
            raise ValueError(f'update_mode must be "blocking" or "background", got {self.update_mode!r}')
        if isinstance(self.max_model_steps, int) and self.max_model_steps < 1:
            raise ValueError(f"max_model_steps must be at least 1, got {self.max_model_steps}")
        if self.start_states not in ("real", "buffer"):
            raise ValueError(f'start_states must be "real" or "buffer", got {self.start_states!r}')
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, got {self.max_in_flight}")

    def step_limit(self, transitions: int) -> float:
        """The fewest steps after which an imagined episode is truncated that starts after so many real transitions.

        Raises:
            ValueError: a schedule answers less than 1.
        """
        steps = self.max_model_steps(transitions) if callable(self.max_model_steps) else self.max_model_steps
        if steps is not None and steps < 1:
            raise ValueError(f"max_model_steps must be at least 1, and the schedule says {steps} at {transitions} transitions")
        limits = [limit for limit in (steps, self.max_episode_steps) if limit is not None]
        return min(limits, default=np.inf)


@dataclass(slots=True)
class Cost:
    """What has been spent so far.

    Args:
        executions: real steps.
        real_cpu_s: CPU seconds of real execution.
        real_wall_s: seconds that real execution ran, summed over everything that ran side by side.
        predict_s: seconds inside the world model's ``step`` and ``begin``.
        wait_s: seconds that stepping stood still for real execution.
        update_s: seconds inside the world model's ``update``; in the background, of the thread that it runs on.
        imagined: steps that the world model answered.
    """

    executions: int = 0
    real_cpu_s: float = 0.0
    real_wall_s: float = 0.0
    predict_s: float = 0.0
    wait_s: float = 0.0
    update_s: float = 0.0
    imagined: int = 0
