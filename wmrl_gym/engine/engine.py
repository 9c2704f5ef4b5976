"""Imagined rollouts with real anchors: what every world-model environment, single or vector, is made of."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.engine.episodes import NO_LIMIT
from wmrl_gym.engine.execution import RealStep
from wmrl_gym.engine.info import NO_PAIR, StepInfo
from wmrl_gym.engine.run import Run
from wmrl_gym.engine.starts import probe
from wmrl_gym.factored import Step
from wmrl_gym.randomness import mix
from wmrl_gym.samples import take_samples
from wmrl_gym.world_models import Prediction

_LONG = 1_000
"""Steps after which a real episode without a limit is worth a warning."""


class Engine(Run):
    """Steps many episodes at once: imagined ones in a world model, anchors for real.

    Every episode is decided at its start to be imagined or an anchor. A blocking anchor *is* the real episode, and the model
    predicts it on the side. A background anchor is imagined like any other, and its actions are then executed from the same
    start; the pairs arrive late. Either way ``stream`` gets the pairs and ``buffer`` the real transitions.

    Args:
        real: real execution.
        model: the world model, bound to the environment.
        schedule: which episodes are anchors.
        options: everything else; ``pairs`` and ``max_episode_steps`` as they are for this model and environment.

    Raises:
        ValueError: starts from the buffer or teacher forcing are asked for, and the environment is factored.
    """

    def reset(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> tuple[Any, StepInfo]:
        """Start the next episodes, one in each of ``slots``."""
        self.poll()
        self._submit_recorded(slots)  # a limit outside may have cut these short
        episodes = self.episodes
        explicit = np.array([seed is not None or options is not None for seed in seeds])
        unbranched = explicit | episodes.is_real[slots]
        start_seeds = self._decide(slots, seeds, options)
        episodes.limit[slots] = min(self.options.step_limit(self.buffer.added), NO_LIMIT)

        def reset(rows: NDArray[np.int64]) -> tuple[Any, StepInfo]:
            return self.real.start(slots[rows], start_seeds[rows], options=options, keep=episodes.is_real[slots[rows]])

        if self.ledger.starts is None:
            real = np.ones(len(slots), bool)
            observation, info = reset(np.arange(len(slots)))
        else:
            real = unbranched | episodes.anchor[slots] | (len(self.buffer) == 0)
            observation, info = self.ledger.starts.mixed(episodes.group[slots], real=real, reset=reset, rng=self.rng)
        info.imagined = self.options.imagined_info
        episodes.context[slots], episodes.at_reset[slots] = info["context"], real
        recorded = episodes.anchor[slots] & ~episodes.is_real[slots]
        if recorded.any() or self.recorder.active:
            header = episodes.header(slots, start_seeds)
            replayable = (unbranched | (self.ledger.starts is None)) & ~episodes.anchor[slots]
            self.recorder.begin(slots, header, options=options, replayable=replayable, recorded=recorded)
        with self.cost.timing("predict_s"):
            state = self.model.begin(observation, info, self.rng)
        if self._state is None:  # the other slots cannot be stepped before they are reset, so any state will do
            self._state = batch.take(state, np.zeros(self.options.num_slots, np.int64))
        whole = len(slots) == self.options.num_slots
        self._state = state if whole else batch.put(self._state, slots, state)
        if self.descriptions is not None:
            self.descriptions.begin(slots, observation)
        episodes.changed()
        episodes.put_info(info, slots)
        return observation, info

    def step(self, slots: NDArray[np.int64], actions: Any) -> Step:
        """One step of each of ``slots``, in the model or for real; its info is a :class:`~wmrl_gym.engine.info.StepInfo`."""
        if self._background.in_flight:
            self.poll()
        at = slice(None) if len(slots) == self.options.num_slots else slots
        prediction = self._imagine(at, len(slots), actions)
        self.episodes.steps[at] += 1
        result = self._from_prediction(at, len(slots), prediction)
        if np.count_nonzero(self.episodes.is_real):
            rows = np.flatnonzero(self.episodes.is_real[slots])
            if len(rows):
                result = self._execute(slots, rows, actions, prediction, result)
        if self.descriptions is not None:
            self.descriptions.seen(slots, result.observation, result.reward_due & result.reward_valid)
        if self.recorder.active:
            self._record(slots, actions, prediction, result)
        if self.ledger.uncertainty is not None:
            due = prediction.reward_due & prediction.reward_valid
            self.ledger.uncertainty.predicted(self.episodes.context[slots[due]], prediction.reward_std[due])
        self.learn()
        return result

    def _decide(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> NDArray[np.int64]:
        """Number the next episodes, decide which are anchors, and give the seeds of their starts."""
        drawn = self.episodes.begin(slots, seeds)
        fitted, now = self.model.fitted, self.episodes
        now.predicted[slots] = fitted
        self.ledger.alarm.begin(slots)
        if fitted:
            now.choose(slots, self._of_starts(slots, drawn, options))
        else:
            # A model that has not been fitted predicts nothing: its episodes are real, whatever the schedule says.
            now.anchor[slots], now.propensity[slots] = True, 1.0
            if self.options.max_model_steps is not None:
                self._warn_endless("this first episode is real, since the model knows nothing yet")
        now.is_real[slots] = now.anchor[slots] & (self.options.anchor_mode == "blocking" or not fitted)
        return drawn

    def _warn_endless(self, why: str) -> None:
        """Say once that a real episode without a limit may never end, so that nothing is imagined after it."""
        if self._endless:
            self._endless = False
            warnings.warn(
                f"{why}, and the environment has no time limit: should its episodes not end by themselves, nothing will ever be "
                "imagined. Give them one: max_episode_steps=..., or gymnasium.wrappers.TimeLimit below the world model",
                stacklevel=2,
            )

    def _of_starts(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], options: Mapping[str, Any] | None
    ) -> NDArray[np.float64] | None:
        """How uncertain each of the starts is, for a schedule that wants to know: float64, shape (n,)."""
        if self.ledger.uncertainty is None:
            return None
        observation, info = self.real.start(slots, seeds, options=options, keep=np.zeros(len(slots), bool))
        own = int(mix(self.seed, 3, self.episodes.number[slots[:1]])[0])
        with self.cost.timing("predict_s"):
            probed = probe(self.model, observation, info, space=self.real.interface.action_space, seed=own)
        return self.ledger.uncertainty.of(info["context"], probed)

    def _imagine(self, at: NDArray[np.int64] | slice, n: int, actions: Any) -> Prediction:
        whole, cost = isinstance(at, slice), self.ledger.cost
        began = time.perf_counter()
        before = self._state if whole else batch.take(self._state, _rows(at))
        state, prediction = self.model.step(before, actions, self.rng)
        cost.predict_s += time.perf_counter() - began
        cost.imagined += n
        self._state = state if whole else batch.put(self._state, _rows(at), state)
        if self.descriptions is not None:
            self.describe_step(np.arange(n) if whole else _rows(at), actions, states=(before, state))
        self._check(prediction, n)
        return prediction

    def _from_prediction(self, at: NDArray[np.int64] | slice, n: int, prediction: Prediction) -> Step:
        """What imagined steps return; the prediction's own arrays stand in it, to be copied before they are written."""
        due, truncated = prediction.reward_due & prediction.reward_valid, prediction.truncated
        late = self.episodes.steps[at] >= self.episodes.limit[at]
        if np.count_nonzero(late):
            truncated = truncated | (late & ~prediction.terminated)
        info = StepInfo(n, prediction.info, imagined=self.options.imagined_info)
        self.episodes.put_info(info, at)
        info["reward_due"], info["reward_valid"] = prediction.reward_due, prediction.reward_valid
        paying = np.count_nonzero(due)
        if paying == n:
            reward = prediction.reward.astype(np.float64)
            info["wm_reward"] = np.asarray(prediction.reward, np.float64)
            info["wm_reward_std"] = np.asarray(prediction.reward_std, np.float64)
        else:
            reward = np.where(due, prediction.reward, 0.0)
            if paying:
                info["wm_reward"] = np.where(due, prediction.reward, np.nan)
                info["wm_reward_std"] = np.where(due, prediction.reward_std, np.nan)
        return Step(
            prediction.observation,
            reward,
            prediction.terminated,
            truncated,
            prediction.reward_due,
            prediction.reward_valid,
            info,
        )

    def _execute(
        self, slots: NDArray[np.int64], rows: NDArray[np.int64], actions: Any, prediction: Prediction, result: Step
    ) -> Step:
        """Run the blocking anchors at ``rows`` for real; what they return replaces what was imagined."""
        with self.cost.timing("wait_s"):
            real = self.real.step(slots[rows], take_samples(self.real.interface.action_space, actions, rows))
        self.ledger.charge(real)
        result = writable(result, batch.put(result.observation, rows, real.step.observation))
        step, info, at = real.step, result.info, slots[rows]
        counted = self._put_real(rows, at, real, result)
        # A model that knows nothing, or that predicts that the episode is over, has predicted no reward.
        both = counted & prediction.reward_due[rows] & prediction.reward_valid[rows] & self.model.fitted
        if self.options.pairs == "open_loop":
            both &= ~self.episodes.imagined_over[at]
            self.episodes.imagined_over[at] |= prediction.terminated[rows]
        if both.any():
            info["pair"][rows[both]] = self.pair_up(at[both], prediction, rows[both], step.reward[both])
        self.ledger.unknown += int((~step.reward_valid).sum())
        ended = result.terminated[rows] | result.truncated[rows]
        self.episodes.is_real[at[ended]] = False
        if ended.any():
            self.ledger.ended(at[ended])
        if self.options.pairs == "teacher_forced":
            with self.cost.timing("predict_s"):
                known = StepInfo(len(rows), {**step.info, "context": self.episodes.context[at]})
                self._state = batch.put(self._state, at, self.model.begin(step.observation, known, self.rng))
        return result

    def _put_real(self, rows: NDArray[np.int64], at: NDArray[np.int64], real: RealStep, result: Step) -> NDArray[np.bool_]:
        """Replace imagined results by those of real steps; returns which of these pay a known reward: bool, shape (n,)."""
        step, info = real.step, result.info
        counted = step.reward_valid & step.reward_due
        result.reward[rows] = np.where(counted, step.reward, 0.0)
        result.terminated[rows], result.truncated[rows] = step.terminated, step.truncated
        taken = self.episodes.steps[at]
        if self.options.max_episode_steps is not None:
            result.truncated[rows] |= (taken >= self.options.max_episode_steps) & ~step.terminated
        elif taken.max() == _LONG:
            self._warn_endless(f"a real episode has gone on for {_LONG:,} steps")
        put_own(info, rows, real)  # type: ignore[arg-type]
        result.reward_due[rows], result.reward_valid[rows] = step.reward_due, step.reward_valid
        info["real_reward"][rows] = np.where(counted, step.reward, np.nan)
        return counted

    def _record(self, slots: NDArray[np.int64], actions: Any, prediction: Prediction, result: Step) -> None:
        """Keep what was done, and submit the background anchors whose imagined episode has ended."""
        pairs = self.recorder.pairs(slots, prediction.reward_due & prediction.reward_valid)
        pair = np.full(len(slots), NO_PAIR, np.int64)
        if pairs.any():
            pair[pairs] = self.ledger.numbers(int(pairs.sum()))
            result.info["pair"][pairs] = pair[pairs]
            self.keep_attempts(pair[pairs], slots[pairs])
        self.recorder.step(slots, actions, prediction, pair, features=self.features_of(slots))
        over = result.terminated | result.truncated
        if over.any():
            self._submit_recorded(slots[over])

    def _submit_recorded(self, slots: NDArray[np.int64]) -> None:
        if self.recorder.active:
            for recording in self.recorder.ended(slots):
                if recording.actions:
                    with self.cost.timing("wait_s"):
                        self._background.submit(recording)


def _rows(at: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    assert not isinstance(at, slice)
    return at


def writable(step: Step, observation: Any) -> Step:
    """A step with copies of what a prediction holds, and another observation."""
    info = step.info
    for key, column in info.items():
        info[key] = deepcopy(column)
    ended, cut = step.terminated.copy(), step.truncated.copy()
    return Step(observation, step.reward, ended, cut, info["reward_due"], info["reward_valid"], info)


def put_own(info: StepInfo, rows: NDArray[np.int64], real: RealStep) -> None:
    """The environment's own info of real steps, in the place of what was predicted of it."""
    for key, column in real.step.info.items():
        if key in info:
            info[key][rows] = column
    own = {key: column for key, column in real.step.info.items() if key not in info}
    for at, row in enumerate(rows.tolist()):
        info.set_own(row, real.own[at] if real.own else {key: column[at] for key, column in own.items()})
