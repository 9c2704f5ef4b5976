"""A run in a world model, apart from its steps: learning, waiting, what is logged, and what is saved."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.corrections.anchor_pairs import Pairs
from wmrl_gym.data import Transitions
from wmrl_gym.engine.background import BackgroundAnchors, Verification
from wmrl_gym.engine.describing import Descriptions, Features, describes_attempts
from wmrl_gym.engine.episodes import Episodes, Schedule, run_of
from wmrl_gym.engine.execution import RealExecution, RealStep
from wmrl_gym.engine.learner import Learner, checked_prior, execute_random
from wmrl_gym.engine.ledger import Cost, Late, Ledger
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.recording import Recorder
from wmrl_gym.engine.repredicting import Repredicted, key_of
from wmrl_gym.world_models import Prediction, WorldModel, WorldModelError
from wmrl_gym.world_models.attempts import AttemptModel
from wmrl_gym.world_models.check import PredictionCheck

_STATE_FORMAT = 2
"""Of the states of runs; version 0.1 had another and did not name it."""


class Run:
    """What an :class:`~wmrl_gym.engine.engine.Engine` has besides its steps; the arguments are the engine's."""

    def __init__(self, real: RealExecution, model: WorldModel, *, schedule: Schedule, options: EngineOptions) -> None:
        self.real = real
        self.model = model
        self.options = options
        self.episodes = Episodes(schedule, num_slots=options.num_slots)
        self.ledger = Ledger(real.interface, episodes=self.episodes, options=options)
        self.stream, self.buffer = self.ledger.stream, self.ledger.buffer
        if not real.knows_cpu:
            self.ledger.cost.real_cpu_s = np.nan
        background = options.update_mode == "background" and model.learns_in_background
        self.learner = Learner(model, self.buffer, every=options.update_every, background=background, cost=self.ledger.cost)
        self.verification: Verification | None = None
        self.descriptions: Descriptions | None = None
        self.recorder = Recorder(real.interface.action_space, options.num_slots)
        self._background = BackgroundAnchors(real, max_in_flight=options.max_in_flight)
        self._check = PredictionCheck(real.interface.observation_space)
        self._endless = real.interface.factored is None and options.max_episode_steps is None
        if options.pairs == "teacher_forced" and real.interface.factored is not None:
            raise ValueError(
                'pairs="teacher_forced" needs observations that say all about the state; a factored environment keeps a state of '
                'its own: pairs="open_loop"'
            )
        self._state: Any = None
        # Without a seed no two runs are alike, as everywhere in Gymnasium.
        self.reseed(int(np.random.SeedSequence().generate_state(1)[0]) >> 1 if options.seed is None else options.seed)

    def reseed(self, seed: int) -> None:
        """Begin the run anew from ``seed``: numbers of episodes and pairs, starts, anchor choices. What was learnt stays."""
        self.seed = int(seed)
        self.rng = np.random.default_rng([self.seed, 0])
        self.episodes.reseed(self.seed)
        self.ledger.reseed()
        self.recorder.forget()

    @property
    def cost(self) -> Cost:
        """What has been spent so far."""
        self.ledger.cost.skipped = self.real.skipped
        return self.ledger.cost

    @property
    def unknown(self) -> int:
        """Real episodes or steps whose grade infrastructure lost."""
        return self.ledger.unknown

    @property
    def measures(self) -> dict[str, float]:
        """The measures that the model's last update returned."""
        return self.learner.measures

    @property
    def in_flight(self) -> int:
        """Background anchors that wait or run."""
        return self._background.in_flight

    @property
    def by_depth(self) -> bool:
        """Whether a reward's error depends on how many predictions in a row it was made of: the state itself is predicted."""
        rolled = self.options.pairs == "open_loop" or self.options.anchor_mode == "background"
        return rolled and self.real.interface.factored is None

    def stats(self) -> dict[str, float]:
        """The costs, the anchors' state and the model's measures, with the prefixes that logs group by."""
        costs = {f"cost/{name}": value for name, value in self.cost.as_dict().items()}
        costs["cost/saved_s"] = self.cost.saved_s
        anchors = {
            "anchors/fraction": self.episodes.anchor_fraction,
            "anchors/pairs": float(self.stream.added),
            "anchors/in_flight": float(self.in_flight),
            "anchors/unknown": float(self.unknown),
        }
        return costs | anchors | self.ledger.alarm.stats() | self.measures

    def learn(self) -> None:
        """Update the model if enough real transitions are new; while the model is not fitted, one new transition is enough."""
        self.learner.learn(self.rng)

    def update_model(self) -> None:
        """Update the model on the real transitions that it has not seen, and wait for that."""
        self.learner.update(self.rng)

    def learn_from(self, recorded: Transitions) -> None:
        """Take in real steps from another source: the model is fitted to them, and branched rollouts start at them too.

        They count as real transitions, but neither as executed nor as anchors: nobody asked the model before they were known.
        """
        prior = checked_prior(recorded, self.model, self.real.interface, starts=self.ledger.starts is not None)
        if len(prior):
            self.learner.learn_from(prior, self.rng)

    def warm_up(self, executions: int, *, seconds: float = np.inf) -> int:
        """Run random actions for real, side by side, until so many steps were executed, and fit the model on them.

        Returns:
            The number of steps executed: at least ``executions``, unless ``seconds`` ran out.
        """
        before = self.buffer.added

        def take(steps: list[RealStep]) -> int:
            self.ledger.take_in(steps)
            return self.buffer.added - before

        with self.cost.timing("wait_s"):
            execute_random(
                self.real,
                executions=executions,
                seconds=seconds,
                seed=self.seed,
                limit=self.options.max_episode_steps,
                take=take,
            )
        self.update_model()
        return self.buffer.added - before

    def poll(self) -> None:
        """Take in the background anchors that have finished."""
        for recording, steps in self._background.finished():
            self.ledger.arrived(recording, steps)

    def keep_log(self) -> None:
        """Keep from now on what it takes to execute imagined episodes later, see :meth:`verify`.

        Raises:
            ValueError: there is one real environment, no way to make a second, and it may be busy.
        """
        if self.verification is None:
            self.verification = Verification(
                self.real,
                recorder=self.recorder,
                background=self._background,
                ledger=self.ledger,
                episodes=self.episodes,
                options=self.options,
            )

    def describe(self, features: Features | None) -> None:
        """Keep from now on features of what is done in each slot, see :class:`~wmrl_gym.engine.describing.Descriptions`.

        Raises:
            ValueError: the environment has no features, and none are given.
        """
        self.descriptions = Descriptions(self.real.interface, self.model, num_slots=self.options.num_slots, features=features)

    @property
    def describes_attempts(self) -> bool:
        """Whether what is done has features of its own, those of a factored environment's attempts."""
        return describes_attempts(self.real.interface, self.model)

    def describe_step(
        self, slots: NDArray[np.int64], actions: Any, *, states: tuple[Any, Any], depth: NDArray[np.int64] | None = None
    ) -> None:
        """Tell the descriptions of a step that the model has predicted."""
        assert self.descriptions is not None
        info: dict[str, NDArray[Any]] = {}
        self.episodes.put_info(info, slots)
        info["depth"] = self.episodes.steps[slots] + 1 if depth is None else depth.copy()
        self.descriptions.step(slots, actions, states=states, info=info)

    def features_of(self, slots: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Features of what was done in ``slots``: float64, shape (n, F); None where nobody asks."""
        now = None if self.descriptions is None else self.descriptions.now
        return None if now is None else now[slots]

    def pair_up(
        self, at: NDArray[np.int64], prediction: Prediction, rows: NDArray[np.int64], real: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Send pairs to the stream, see :meth:`~wmrl_gym.engine.ledger.Ledger.pair_up`."""
        number = self.ledger.pair_up(at, prediction, rows, real, features=self.features_of(at))
        self.keep_attempts(number, at)
        return number

    def keep_attempts(self, number: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Keep what the pairs of these numbers, made in ``slots``, were predicted of, so that it can be predicted anew."""
        if self.descriptions is not None and self.descriptions.histories is not None:
            self.descriptions.histories.keep(key_of(number, self.episodes.run), slots)

    def repredicted(self, keys: NDArray[np.int64]) -> Repredicted | None:
        """What the model as it is now predicts of pairs, see :class:`~wmrl_gym.engine.repredicting.Repredicted`; None for none.

        Args:
            keys: int64, shape (N,): :meth:`keys_of` pairs.
        """
        known = self.descriptions
        if known is None or known.histories is None or not isinstance(self.model, AttemptModel):
            return None
        with self.cost.timing("predict_s"):
            return known.histories.again(keys, self.model, known.of_attempts)

    @staticmethod
    def keys_of(pairs: Pairs) -> NDArray[np.int64]:
        """What tells pairs apart in all runs: int64, shape (N,)."""
        return key_of(pairs.pair, run_of(pairs.group))

    def verify(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.bool_], dict[int, float]]:
        """Execute imagined episodes that were recorded, see :meth:`~wmrl_gym.engine.background.Verification.execute`."""
        assert self.verification is not None, "keep_log() comes first"
        return self.verification.execute(slots)

    def wait(self, timeout_s: float) -> bool:
        """Wait for all background anchors, at most ``timeout_s`` seconds; returns whether none is left."""
        with self.cost.timing("wait_s"):
            self._background.wait(timeout_s)
        self.poll()
        return self._background.in_flight == 0

    def wait_for_one(self) -> None:
        """Wait until one background anchor has finished, if any runs."""
        with self.cost.timing("wait_s"):
            self._background.wait_for_one()
        self.poll()

    def collect_late(self) -> Late:
        """The late truths that arrived since the last call, by pair number, and the numbers of those that never will.

        The first call starts the collection.
        """
        return self.ledger.collect_late()

    def runs_for_real(self, slot: int) -> bool:
        """Whether the present episode of a slot is a real one, step by step."""
        return bool(self.episodes.is_real[slot])

    def action_masks(self, slot: int) -> NDArray[np.bool_]:
        """Which actions are legal now in a slot: bool, shape (n,), as its real environment says, or as the model predicts.

        Raises:
            WorldModelError: the episode is imagined, and the model does not say.
        """
        real = self.runs_for_real(slot)
        at_start = bool(self.episodes.at_reset[slot]) and self.episodes.steps[slot] == 0
        mask = self.real.action_masks(slot, start=at_start) if real or at_start else None
        if mask is None:
            mask = self.model.action_masks(batch.take(self._state, [slot]))
            mask = None if mask is None else np.asarray(mask, bool)[0]
        if mask is None:
            raise WorldModelError(
                f"the episode is imagined, and {type(self.model).__name__} does not predict which actions are legal in it: write "
                "its action_masks(state), or train with an algorithm without masks"
            )
        return mask

    @property
    def masked(self) -> bool:
        """Whether the environment or the model says which actions are legal."""
        return self.real.masked or type(self.model).action_masks is not WorldModel.action_masks

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, but for what the model has learnt: numbers, arrays and batches.

        Background anchors that have not finished are kept as recordings, and run again after loading.

        Raises:
            RuntimeError: a real episode of an environment that cannot be saved is under way.
        """
        self.poll()
        self.learner.settle()
        return {
            "format": _STATE_FORMAT,
            "seed": self.seed,
            "rng": self.rng.bit_generator.state,
            "learnt": self.learner.learnt,
            "ledger": self.ledger.state_dict(),
            "episodes": self.episodes.state_dict(),
            "state": self._state,
            "real": self.real.state_dict(),
            "recorder": self.recorder.state_dict(),
            "descriptions": None if self.descriptions is None else self.descriptions.state_dict(),
            "unfinished": deepcopy(self._background.unfinished),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` described.

        Raises:
            ValueError: another version described it; nothing has changed then.
        """
        if state.get("format") != _STATE_FORMAT:
            raise ValueError(
                f"this state of a run has the format {state.get('format', 1)}, expected {_STATE_FORMAT}: of another version. "
                "What a model has learnt is saved apart (model.save) and loads still: begin a run with it"
            )
        self._background.cancel()
        self.learner.restore(state["learnt"])
        self.reseed(state["seed"])
        self.rng.bit_generator.state = state["rng"]
        self.ledger.load_state_dict(state["ledger"])
        self.episodes.load_state_dict(state["episodes"])
        self._state = state["state"]
        self.real.load_state_dict(state["real"])
        self.recorder.load_state_dict(state["recorder"])
        if self.descriptions is not None and state.get("descriptions") is not None:
            self.descriptions.load_state_dict(state["descriptions"])
        for recording in state["unfinished"]:
            self._background.resubmit(deepcopy(recording))

    def close(self) -> None:
        """Stop real execution, and the update that runs in the background."""
        self._background.cancel()
        self.learner.close()
        self.real.close()
