"""Imagined rollouts with real anchors: what every world-model environment, single or vector, is made of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.corrections.stream import Pairs
from wmrl_gym.data import Transitions
from wmrl_gym.engine.background import NO_PAIR, BackgroundAnchors, Recording
from wmrl_gym.engine.episodes import Episodes, Schedule
from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.engine.learner import Learner
from wmrl_gym.engine.ledger import Late, Ledger
from wmrl_gym.engine.options import Cost, EngineOptions
from wmrl_gym.engine.prior import checked_prior
from wmrl_gym.engine.uncertainty import probe
from wmrl_gym.engine.verification import Verification
from wmrl_gym.engine.warmup import execute_random
from wmrl_gym.randomness import mix
from wmrl_gym.slots import sample_at, take_samples
from wmrl_gym.world_models import Prediction, WorldModel
from wmrl_gym.world_models.check import check_prediction


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What one step of n slots returns; info are arrays of n rows."""

    observation: Any
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info: dict[str, NDArray[Any]]


class Engine:
    """Steps slots in a world model, and the anchors among them for real.

    Every episode is decided at its start to be imagined or an anchor. A blocking anchor *is* the real episode, and the model
    predicts it on the side. A background anchor is imagined like any other, and its actions are then executed from the same
    start; the pairs arrive late. Either way ``stream`` gets the pairs and ``buffer`` the real transitions.

    Args:
        real: real execution.
        model: the world model, bound to the environment.
        schedule: which episodes are anchors.
        options: everything else.

    Raises:
        ValueError: starts from the buffer or teacher forcing are asked for, and the environment is factored.
    """

    def __init__(self, real: RealExecution, model: WorldModel, *, schedule: Schedule, options: EngineOptions) -> None:
        self.real = real
        self.model = model
        self.options = options
        self.episodes = Episodes(schedule, num_slots=options.num_slots)
        self.ledger = Ledger(real.interface, episodes=self.episodes, options=options)
        self.stream, self.buffer = self.ledger.stream, self.ledger.buffer
        aside = options.update_mode == "background" and model.learns_in_background
        self.learner = Learner(model, self.buffer, every=options.update_every, aside=aside)
        self.verification: Verification | None = None
        self._behind = BackgroundAnchors(real, max_in_flight=options.max_in_flight)
        if options.pairs == "teacher_forced" and real.interface.factored is not None:
            raise ValueError(
                'pairs="teacher_forced" needs observations that say all about the state; a factored environment keeps a state of '
                'its own: pairs="open_loop"'
            )
        self._state: Any = None
        # Without a seed no two runs are alike, as everywhere in Gymnasium.
        self.reseed(int(np.random.SeedSequence().generate_state(1)[0] >> 1) if options.seed is None else options.seed)

    def reseed(self, seed: int) -> None:
        """Begin the run anew from ``seed``: episode numbers, starts, anchor choices. What was learnt stays."""
        self.seed = int(seed)
        self.rng = np.random.default_rng([self.seed, 0])
        self.episodes.reseed(self.seed)
        if self.ledger.starts is not None:
            self.ledger.starts.forget_last()

    @property
    def cost(self) -> Cost:
        """What has been spent so far."""
        return self.ledger.cost

    @property
    def unknown(self) -> int:
        """Real episodes or steps whose grade infrastructure lost."""
        return self.ledger.unknown

    def reset(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Start the next episodes, one in each of ``slots``."""
        self.poll()
        explicit = np.array([seed is not None or options is not None for seed in seeds])
        unbranched = explicit | self.episodes.opened[slots]
        start_seeds = self._decide(slots, seeds, options)
        self.episodes.limit[slots] = self.options.step_limit(self.buffer.added)

        def reset(rows: NDArray[np.int64]) -> tuple[Any, dict[str, NDArray[Any]]]:
            return self.real.start(slots[rows], start_seeds[rows], options=options, keep=self.episodes.opened[slots[rows]])

        if self.ledger.starts is None:
            observation, info = reset(np.arange(len(slots)))
        else:
            real = unbranched | self.episodes.anchor[slots]
            observation, info = self.ledger.starts.mixed(self.episodes.group[slots], real=real, reset=reset, rng=self.rng)
        self.episodes.context[slots] = info["context"]
        if self.verification is not None:
            replayable = self._replayable(slots, unbranched)
            self.verification.log.begin(slots, self.episodes.header(slots, start_seeds), options=options, replayable=replayable)
        for row in np.flatnonzero(self.episodes.anchor[slots] & ~self.episodes.opened[slots]):
            self._behind.record(int(slots[row]), self._recording(int(slots[row]), int(start_seeds[row]), options))
        started = time.perf_counter()
        state = self.model.begin(observation, info, self.rng)
        self.cost.predict_s += time.perf_counter() - started
        if self._state is None:  # the other slots cannot be stepped before they are reset, so any state will do
            self._state = batch.take(state, np.zeros(self.options.num_slots, np.int64))
        whole = len(slots) == self.options.num_slots
        self._state = state if whole else batch.put(self._state, slots, state)
        return observation, info | self.episodes.info(slots)

    def step(self, slots: NDArray[np.int64], actions: Any) -> EngineStep:
        """One step of each of ``slots``, in the model or for real."""
        self.poll()
        prediction = self._imagine(slots, actions)
        self.episodes.steps[slots] += 1
        result = self._from_prediction(slots, prediction)
        rows = np.flatnonzero(self.episodes.opened[slots])
        if len(rows):
            result = self._execute(slots, rows, actions, prediction, result)
        if self._behind.recordings:
            self._record(slots, actions, prediction, result)
        if self.verification is not None:
            self.verification.log.step(slots, actions, prediction)
        if self.ledger.uncertainty is not None:
            due = prediction.reward_due & prediction.reward_valid
            self.ledger.uncertainty.predicted(self.episodes.context[slots[due]], prediction.reward_std[due])
        self.learn()
        return result

    @property
    def measures(self) -> dict[str, float]:
        """What the model said of its last update."""
        return self.learner.measures

    def learn(self) -> None:
        """Update the model if enough real transitions are new; a model that knows nothing is not waited with."""
        self.learner.learn(self.rng)
        self.cost.update_s += self.learner.spent()

    def update_model(self) -> None:
        """Update the model on the real transitions that it has not seen, and wait for that."""
        self.learner.update(self.rng)
        self.cost.update_s += self.learner.spent()

    def learn_from(self, recorded: Transitions) -> None:
        """Take in real steps that were recorded elsewhere: the model is fitted to them, and branched rollouts start at them too.

        They count as real transitions, but neither as executed nor as anchors: nobody asked the model before they were known.
        """
        prior = checked_prior(recorded, self.model, self.real.interface, starts=self.ledger.starts is not None)
        if not len(prior):
            return
        self.learner.learn_from(prior, self.rng)
        self.cost.update_s += self.learner.spent()
        self.ledger.start_at(prior)

    def warm_up(self, executions: int, *, seconds: float = np.inf) -> int:
        """Run random actions for real, side by side, until so many steps were executed, and fit the model on them.

        Returns:
            The number of steps executed: at least ``executions``, unless ``seconds`` ran out.
        """
        began, before = time.monotonic(), self.buffer.added

        def take(steps: list[RealStep]) -> int:
            self.ledger.take_in(steps)
            return self.buffer.added - before

        execute_random(self.real, executions=executions, seconds=seconds, seed=self.seed, take=take)
        self.cost.wait_s += time.monotonic() - began
        self.update_model()
        return self.buffer.added - before

    def poll(self) -> None:
        """Take in the background anchors that have finished."""
        for recording, steps in self._behind.finished():
            self.ledger.arrived(recording, steps)

    def keep_log(self) -> None:
        """Keep what is needed to execute imagined episodes after all, see :meth:`verify`.

        Raises:
            ValueError: there is one real environment, no way to make a second, and it may be busy.
        """
        if self.verification is None:
            self.verification = Verification(
                self.real, behind=self._behind, ledger=self.ledger, episodes=self.episodes, options=self.options
            )

    def verify(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.bool_], dict[int, float]]:
        """Execute imagined episodes after all, see :meth:`~wmrl_gym.engine.verification.Verification.execute`."""
        assert self.verification is not None, "keep_log() comes first"
        return self.verification.execute(slots)

    def wait(self, timeout_s: float) -> bool:
        """Wait for all background anchors, at most ``timeout_s`` seconds; returns whether none is left."""
        started = time.perf_counter()
        self._behind.wait(timeout_s)
        self.cost.wait_s += time.perf_counter() - started
        self.poll()
        return self._behind.in_flight == 0

    def wait_for_one(self) -> None:
        """Wait until one background anchor has finished, if any runs."""
        started = time.perf_counter()
        self._behind.wait_for_one()
        self.cost.wait_s += time.perf_counter() - started
        self.poll()

    def collect_late(self) -> Late:
        """The late truths that arrived since the last call, by pair number, and the numbers of those that never will.

        The first call starts the collection.
        """
        return self.ledger.collect_late()

    def runs_for_real(self, slot: int) -> bool:
        """Whether the present episode of a slot is a real one, step by step."""
        return bool(self.episodes.opened[slot])

    @property
    def in_flight(self) -> int:
        """Background anchors that wait or run."""
        return self._behind.in_flight

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, but for what the model has learnt: numbers, arrays and batches.

        Background anchors that have not finished are kept as recordings, and run again after loading.

        Raises:
            RuntimeError: a real episode of an environment that cannot be saved is under way.
        """
        self.poll()
        self.learner.settle()
        self.cost.update_s += self.learner.spent()
        return {
            "seed": self.seed,
            "rng": self.rng.bit_generator.state,
            "learnt": self.learner.learnt,
            "ledger": self.ledger.state_dict(),
            "episodes": self.episodes.state_dict(),
            "state": self._state,
            "real": self.real.state_dict(),
            "recordings": deepcopy(self._behind.recordings),
            "unfinished": deepcopy(self._behind.unfinished),
            "log": None if self.verification is None else self.verification.log.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` described."""
        self._behind.cancel()
        self.learner.restore(state["learnt"])
        self.reseed(state["seed"])
        self.rng.bit_generator.state = state["rng"]
        self.ledger.load_state_dict(state["ledger"])
        self.episodes.load_state_dict(state["episodes"])
        self._state = state["state"]
        self.real.load_state_dict(state["real"])
        if self.verification is not None and state["log"] is not None:
            self.verification.log.load_state_dict(state["log"])
        self._behind.recordings = deepcopy(state["recordings"])
        for recording in state["unfinished"]:
            self._behind.resubmit(deepcopy(recording))

    def close(self) -> None:
        """Stop real execution, and the update that runs in the background."""
        self._behind.cancel()
        self.learner.close()
        self.real.close()

    def _decide(self, slots: NDArray[np.int64], seeds: list[int | None], options: Mapping[str, Any] | None) -> NDArray[np.int64]:
        """Number the next episodes, decide which are anchors, and give the seeds of their starts."""
        drawn = self.episodes.begin(slots, seeds)
        fitted, now = self.model.fitted, self.episodes
        if fitted:
            now.choose(slots, self._of_starts(slots, drawn, options))
        else:
            # A model that knows nothing is no use: its episodes are real, whatever the schedule says.
            now.anchor[slots], now.propensity[slots] = True, 1.0
        now.opened[slots] = now.anchor[slots] & (self.options.anchor_mode == "blocking" or not fitted)
        for slot in [slot for slot in self._behind.recordings if slot in slots]:
            self.ledger.lose(self._behind.drop(slot))
        return drawn

    def _of_starts(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], options: Mapping[str, Any] | None
    ) -> NDArray[np.float64] | None:
        """How uncertain each of the starts is, for a schedule that wants to know: float64, shape (n,)."""
        if self.ledger.uncertainty is None:
            return None
        observation, info = self.real.start(slots, seeds, options=options, keep=np.zeros(len(slots), bool))
        started = time.perf_counter()
        own = int(mix(self.seed, 3, self.episodes.number[slots[:1]])[0])
        probed = probe(self.model, observation, info, space=self.real.interface.action_space, seed=own)
        self.cost.predict_s += time.perf_counter() - started
        return self.ledger.uncertainty.of(info["context"], probed)

    def _recording(self, slot: int, seed: int, options: Mapping[str, Any] | None) -> Recording:
        return Recording(
            episode=int(self.episodes.number[slot]),
            group=int(self.episodes.label(self.episodes.group[[slot]])[0]),
            context=int(self.episodes.context[slot]),
            propensity=float(self.episodes.propensity[slot]),
            seed=seed,
            options=options,
        )

    def _replayable(self, slots: NDArray[np.int64], unbranched: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Imagined episodes that start at a real reset and are not to be executed anyway."""
        from_reset = np.ones(len(slots), bool) if self.ledger.starts is None else unbranched
        return from_reset & ~self.episodes.anchor[slots]

    @property
    def by_depth(self) -> bool:
        """Whether a reward's error depends on how many predictions in a row it was made of: the state itself is predicted."""
        rolled = self.options.pairs == "open_loop" or self.options.anchor_mode == "background"
        return rolled and self.real.interface.factored is None

    def _imagine(self, slots: NDArray[np.int64], actions: Any) -> Prediction:
        started = time.perf_counter()
        whole = len(slots) == self.options.num_slots
        state, prediction = self.model.step(self._state if whole else batch.take(self._state, slots), actions, self.rng)
        self.cost.predict_s += time.perf_counter() - started
        self.cost.imagined += len(slots)
        self._state = state if whole else batch.put(self._state, slots, state)
        check_prediction(prediction, self.real.interface.observation_space, len(slots))
        return prediction

    def _from_prediction(self, slots: NDArray[np.int64], prediction: Prediction) -> EngineStep:
        late = self.episodes.steps[slots] >= self.episodes.limit[slots]
        truncated = prediction.truncated | (late & ~prediction.terminated)
        due = prediction.reward_due & prediction.reward_valid
        reward = np.where(due, prediction.reward, 0.0)
        info = {key: value.copy() for key, value in prediction.info.items()} | self.episodes.info(slots)
        info["wm_reward"] = np.where(due, prediction.reward, np.nan)
        info["wm_reward_std"] = np.where(due, prediction.reward_std, np.nan)
        info["reward_due"] = prediction.reward_due.copy()
        info["reward_valid"] = prediction.reward_valid.copy()
        return EngineStep(prediction.observation, reward, prediction.terminated.copy(), truncated, info)

    def _execute(
        self, slots: NDArray[np.int64], rows: NDArray[np.int64], actions: Any, prediction: Prediction, result: EngineStep
    ) -> EngineStep:
        """Run the blocking anchors at ``rows`` for real; what they return replaces what was imagined."""
        started = time.perf_counter()
        real = self.real.step(slots[rows], take_samples(self.real.interface.action_space, actions, rows))
        self.cost.wait_s += time.perf_counter() - started
        self.ledger.charge(real)
        step = real.step
        observation = batch.put(result.observation, rows, step.observation)
        result.reward[rows] = np.where(step.reward_valid & step.reward_due, step.reward, 0.0)
        result.terminated[rows], result.truncated[rows] = step.terminated, step.truncated
        if self.real.interface.factored is not None and self.options.max_episode_steps is not None:
            # Elsewhere the environment's own TimeLimit wrapper does this.
            late = self.episodes.steps[slots[rows]] >= self.options.max_episode_steps
            result.truncated[rows] |= late & ~step.terminated
        info = result.info
        for key in info.keys() & step.info.keys():
            info[key][rows] = step.info[key]
        counted = step.reward_valid & step.reward_due
        info["reward_due"][rows], info["reward_valid"][rows] = step.reward_due, step.reward_valid
        info["real_reward"][rows] = np.where(counted, step.reward, np.nan)
        # A model that knows nothing, or that believes the episode to be over, has predicted nothing.
        both = counted & prediction.reward_due[rows] & prediction.reward_valid[rows] & self.model.fitted
        if self.options.pairs == "open_loop":
            both &= ~self.episodes.imagined_over[slots[rows]]
            self.episodes.imagined_over[slots[rows]] |= prediction.terminated[rows]
        self._pair_up(slots[rows[both]], rows[both], prediction, step.reward[both], info)
        self.ledger.unknown += int((~step.reward_valid).sum())
        ended = result.terminated[rows] | result.truncated[rows]
        self.episodes.opened[slots[rows[ended]]] = False
        for steps in self.episodes.steps[slots[rows[ended]]].tolist():
            self.ledger.spend(steps)
        if self.options.pairs == "teacher_forced":
            self._force(slots[rows], step.observation, {**step.info, "context": self.episodes.context[slots[rows]]})
        return EngineStep(observation, result.reward, result.terminated, result.truncated, info)

    def _force(self, slots: NDArray[np.int64], observation: Any, info: dict[str, NDArray[Any]]) -> None:
        started = time.perf_counter()
        self._state = batch.put(self._state, slots, self.model.begin(observation, info, self.rng))
        self.cost.predict_s += time.perf_counter() - started

    def _pair_up(
        self,
        at: NDArray[np.int64],
        rows: NDArray[np.int64],
        prediction: Prediction,
        real: NDArray[np.float64],
        info: dict[str, NDArray[Any]],
    ) -> None:
        """Send the pairs of the slots ``at``, which stand at ``rows`` of this step's batch, to the stream."""
        if not len(rows):
            return
        info["pair"][rows] = number = self.ledger.numbers(len(rows))
        self.ledger.send(
            Pairs(
                number,
                prediction.reward[rows].astype(np.float64),
                prediction.reward_std[rows].astype(np.float64),
                real.astype(np.float64),
                self.episodes.label(self.episodes.group[at]),
                self.episodes.number[at],
                self.episodes.steps[at],
                self.episodes.context[at],
                self.episodes.propensity[at],
            )
        )

    def _record(self, slots: NDArray[np.int64], actions: Any, prediction: Prediction, result: EngineStep) -> None:
        """Note the actions of the background anchors, and submit those whose imagined episode has ended."""
        over = result.terminated | result.truncated
        for row in np.flatnonzero(np.isin(slots, list(self._behind.recordings))).tolist():
            recording = self._behind.recordings[int(slots[row])]
            number = NO_PAIR
            if prediction.reward_due[row] and prediction.reward_valid[row]:
                number = int(self.ledger.numbers(1)[0])
            result.info["pair"][row] = number
            action = sample_at(self.real.interface.action_space, actions, row)
            recording.note(action, number, float(prediction.reward[row]), float(prediction.reward_std[row]))
            if over[row]:
                started = time.perf_counter()
                self._behind.submit(int(slots[row]))
                self.cost.wait_s += time.perf_counter() - started
