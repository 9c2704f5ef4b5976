"""Real steps whose reward a model judges: for rewards that are dearer than the steps, such as a person's verdict on a robot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.engine.engine import Engine, EngineStep
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.world_models import Observed, RewardModel, WorldModel
from wmrl_gym.world_models.check import check_prediction

Replaces = Literal["step", "reward"]
"""What a model stands in for: whole steps, or the reward of real ones."""


class JudgedEngine(Engine):
    """Takes every step for real; a model says what it is worth, except in anchor episodes, whose own reward counts.

    A model that pays at the end of an episode only is compared with all that the anchor's episode paid. Only anchors' transitions
    are kept to learn from: of the others the true reward is unknown.
    """

    def __init__(self, real: RealExecution, model: RewardModel, *, schedule: Schedule, options: EngineOptions) -> None:
        self._earned = np.zeros(options.num_slots)
        self._known = np.ones(options.num_slots, bool)
        super().__init__(real, model, schedule=schedule, options=options)

    def reset(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Start the next episodes, one in each of ``slots``, all of them real."""
        self._earned[slots], self._known[slots] = 0.0, True
        return super().reset(slots, seeds, options)

    def step(self, slots: NDArray[np.int64], actions: Any) -> EngineStep:
        """One real step of each of ``slots``."""
        started = time.perf_counter()
        real = self.real.step(slots, actions)
        self.cost.wait_s += time.perf_counter() - started
        self.episodes.steps[slots] += 1
        late = self.episodes.steps[slots] >= self.episodes.limit[slots]
        truncated = real.step.truncated | (late & ~real.step.terminated)
        result = self._judged(slots, actions, Observed(real.step.observation, real.step.terminated, truncated))
        self._take_real(slots, real, result)
        over = result.terminated | result.truncated
        self.episodes.opened[slots[over]] = False
        self.learn()
        return result

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "earned": self._earned.copy(), "known": self._known.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._earned, self._known = state["earned"].copy(), state["known"].copy()

    @property
    def by_depth(self) -> bool:
        """States are real at any depth."""
        return False

    def _decide(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> NDArray[np.int64]:
        drawn = super()._decide(slots, seeds, options)
        self.episodes.opened[slots] = True
        return drawn

    def _judged(self, slots: NDArray[np.int64], actions: Any, observed: Observed) -> EngineStep:
        started = time.perf_counter()
        assert isinstance(self.model, RewardModel)
        state, prediction = self.model.judge(batch.take(self._state, slots), actions, observed, self.rng)
        self.cost.predict_s += time.perf_counter() - started
        self._state = batch.put(self._state, slots, state)
        check_prediction(prediction, self.real.interface.observation_space, len(slots))
        self._prediction = prediction
        return self._from_prediction(slots, prediction)

    def _take_real(self, slots: NDArray[np.int64], real: RealStep, result: EngineStep) -> None:
        """Give the anchors their own rewards, and send their pairs and transitions on."""
        self.cost.executions += len(slots)
        self.cost.real_cpu_s += real.cpu_s
        self.cost.real_wall_s += real.wall_s
        self._earned[slots] += real.step.reward
        self._known[slots] &= real.step.reward_valid
        rows = np.flatnonzero(self.episodes.anchor[slots])
        if not len(rows):
            return
        at, info, prediction = slots[rows], result.info, self._prediction
        self.buffer.add(batch.take(real.transitions, rows))
        due, known = prediction.reward_due[rows], self._known[at]
        truth = self._earned[at].copy()
        result.reward[rows] = np.where(due & known, truth, 0.0)
        info["real_reward"][rows] = np.where(due & known, truth, np.nan)
        info["reward_valid"][rows] = known
        both = due & known & prediction.reward_valid[rows] & self.model.fitted
        self._pair_up(at[both], rows[both], prediction, truth[both], info)
        self.ledger.unknown += int((due & ~known).sum())
        self._earned[at[due]], self._known[at[due]] = 0.0, True
        over = result.terminated[rows] | result.truncated[rows]
        for steps in self.episodes.steps[at[over]].tolist():
            self.ledger.spend(steps)


def engine_of(replaces: str, real: RealExecution, model: WorldModel, *, schedule: Schedule, options: EngineOptions) -> Engine:
    """The engine for a model that replaces whole steps, or the reward only.

    Raises:
        TypeError: the model is of the other kind.
        ValueError: another value of ``replaces``, or options that need imagined steps.
    """
    if replaces not in ("step", "reward"):
        raise ValueError(f'replaces must be "step" or "reward", got {replaces!r}')
    if isinstance(model, RewardModel) != (replaces == "reward"):
        needed = "reward" if isinstance(model, RewardModel) else "step"
        raise TypeError(f'{type(model).__name__} needs replaces="{needed}", got {replaces!r}')
    if not isinstance(model, RewardModel):
        return Engine(real, model, schedule=schedule, options=options)
    if options.anchor_mode != "blocking" or options.start_states != "real":
        raise ValueError(
            'replaces="reward" takes real steps, so anchor_mode must be "blocking" and start_states "real", '
            f"got {options.anchor_mode!r} and {options.start_states!r}"
        )
    # Images are large, and what was learnt from is not needed again.
    return JudgedEngine(real, model, schedule=schedule, options=replace(options, buffer_capacity=2_000))
