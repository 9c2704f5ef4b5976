"""Real steps whose reward a model predicts: for rewards that cost more than the steps, such as a person's verdict on a robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.engine.engine import Engine, put_own, writable
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.engine.info import StepInfo
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.factored import Step
from wmrl_gym.world_models import Observed, Prediction, RewardModel, WorldModel


class RewardEngine(Engine):
    """Takes every step for real; a model says what it is worth, except in anchor episodes, whose own reward counts.

    A model that pays at the end of an episode only is compared with all that the anchor's episode paid. Only anchors' transitions
    are kept to learn from: of the others the true reward is unknown.
    """

    def __init__(self, real: RealExecution, model: RewardModel, *, schedule: Schedule, options: EngineOptions) -> None:
        self._earned = np.zeros(options.num_slots)
        self._known = np.ones(options.num_slots, bool)
        super().__init__(real, model, schedule=schedule, options=options)

    def reset(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> tuple[Any, StepInfo]:
        """Start the next episodes, one in each of ``slots``, all of them real."""
        self._earned[slots], self._known[slots] = 0.0, True
        return super().reset(slots, seeds, options)

    def step(self, slots: NDArray[np.int64], actions: Any) -> Step:
        """One real step of each of ``slots``."""
        with self.cost.timing("wait_s"):
            real = self.real.step(slots, actions)
        self.episodes.steps[slots] += 1
        late = self.episodes.steps[slots] >= self.episodes.limit[slots]
        truncated = real.step.truncated | (late & ~real.step.terminated)
        prediction = self._judge(slots, actions, Observed(real.step.observation, real.step.terminated, truncated))
        result = self._from_prediction(slots, len(slots), prediction)
        result = writable(result, result.observation)
        put_own(result.info, np.arange(len(slots)), real)  # type: ignore[arg-type]
        self._take_real(slots, real, prediction, result)
        if self.descriptions is not None:
            self.descriptions.seen(slots, result.observation, prediction.reward_due & prediction.reward_valid)
        over = result.terminated | result.truncated
        self.episodes.is_real[slots[over]] = False
        self.learn()
        return result

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "earned": self._earned.copy(), "known": self._known.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._earned, self._known = state["earned"].copy(), state["known"].copy()

    @property
    def by_depth(self) -> bool:
        """No: states are real at any depth."""
        return False

    def _decide(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> NDArray[np.int64]:
        drawn = super()._decide(slots, seeds, options)
        self.episodes.is_real[slots] = True
        return drawn

    def _judge(self, slots: NDArray[np.int64], actions: Any, observed: Observed) -> Prediction:
        assert isinstance(self.model, RewardModel)
        before = batch.take(self._state, slots)
        with self.cost.timing("predict_s"):
            state, prediction = self.model.judge(before, actions, observed, self.rng)
        self._state = batch.put(self._state, slots, state)
        if self.descriptions is not None:
            # The step is counted already.
            self.describe_step(slots, actions, states=(before, state), depth=self.episodes.steps[slots])
        self._check(prediction, len(slots))
        return prediction

    def _take_real(self, slots: NDArray[np.int64], real: RealStep, prediction: Prediction, result: Step) -> None:
        """Give the anchors their own rewards, and send their pairs and transitions on."""
        self.cost.executions += len(slots)
        self.cost.real_cpu_s += real.cpu_s
        self.cost.real_wall_s += real.wall_s
        self._earned[slots] += real.step.reward
        self._known[slots] &= real.step.reward_valid
        lost = ~real.usable
        result.reward_valid[lost], result.reward[lost] = False, 0.0
        rows = np.flatnonzero(self.episodes.anchor[slots])
        if not len(rows):
            return
        at, info = slots[rows], result.info
        self.buffer.add(batch.take(real.transitions, np.flatnonzero((self.episodes.anchor[slots])[real.usable])))
        due, known = prediction.reward_due[rows], self._known[at]
        truth = self._earned[at].copy()
        result.reward[rows] = np.where(due & known, truth, 0.0)
        info["real_reward"][rows] = np.where(due & known, truth, np.nan)
        result.reward_valid[rows] = known
        both = due & known & prediction.reward_valid[rows] & self.model.fitted
        if both.any():
            info["pair"][rows[both]] = self.pair_up(at[both], prediction, rows[both], truth[both])
        self.ledger.unknown += int((due & ~known).sum())
        self._earned[at[due]], self._known[at[due]] = 0.0, True
        over = result.terminated[rows] | result.truncated[rows]
        if over.any():
            self.ledger.ended(at[over])


def engine_of(real: RealExecution, model: WorldModel, *, schedule: Schedule, options: EngineOptions) -> Engine:
    """The engine for a model that replaces whole steps, or the reward only.

    Raises:
        TypeError: the model is of the other kind.
        ValueError: options that need imagined steps.
    """
    replaces = options.replaces
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
    return RewardEngine(real, model, schedule=schedule, options=replace(options, buffer_capacity=2_000))
