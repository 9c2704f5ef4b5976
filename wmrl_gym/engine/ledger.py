"""The books of a run: what real execution brought, where it goes, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections.anchor_pairs import AnchorStream, Pairs
from wmrl_gym.data import TransitionBuffer
from wmrl_gym.engine.episodes import Episodes
from wmrl_gym.engine.execution import RealStep
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.recording import Recording
from wmrl_gym.engine.starts import StartStates, StartUncertainty
from wmrl_gym.world_models import Interface, Prediction

Late: TypeAlias = tuple[dict[int, float], set[int]]
"""Late truths by pair number, and the numbers of those that never come."""


@dataclass(slots=True)
class Cost:
    """What a run has cost so far: real steps, imagined steps, and seconds by what they were spent on.

    Args:
        executions: real steps.
        real_cpu_s: CPU seconds of real execution.
        real_wall_s: seconds that real execution ran, summed over everything that ran side by side.
        predict_s: seconds inside the world model's ``step`` and ``begin``.
        wait_s: seconds that stepping stood still for real execution.
        update_s: seconds inside the world model's ``update``; in the background, of the thread that it runs on.
        imagined: steps that the world model answered.
        skipped: real steps and starts that were left out because their observation was not finite.
    """

    executions: int = 0
    real_cpu_s: float = 0.0
    real_wall_s: float = 0.0
    predict_s: float = 0.0
    wait_s: float = 0.0
    update_s: float = 0.0
    imagined: int = 0
    skipped: int = 0

    def timing(self, name: str) -> Stopwatch:
        """Adds the seconds that a ``with`` block takes to the cost of that name."""
        return Stopwatch(self, name)

    def as_dict(self) -> dict[str, float]:
        """The costs by name."""
        return {name: float(value) for name, value in asdict(self).items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from saved costs."""
        for name, value in saved.items():
            setattr(self, name, type(getattr(self, name))(value))


class Stopwatch:
    """The time that a ``with`` block takes, added to a cost."""

    __slots__ = ("_began", "_cost", "_name")

    def __init__(self, cost: Cost, name: str) -> None:
        self._cost, self._name = cost, name

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        setattr(self._cost, self._name, getattr(self._cost, self._name) + perf_counter() - self._began)


class Ledger:
    """Books real steps and pairs, and passes them on: to the model, the corrections, the schedule and branched rollouts.

    Args:
        interface: of the environment.
        episodes: their schedule is given what anchors cost and how far off the model was, if it has methods for that.
        options: of the engine.

    Raises:
        ValueError: starts from the buffer are asked for, and the environment is factored.
    """

    def __init__(self, interface: Interface, *, episodes: Episodes, options: EngineOptions) -> None:
        self._episodes = episodes
        self.stream = AnchorStream()
        self.buffer = TransitionBuffer(options.buffer_capacity)
        self.cost = Cost()
        self.unknown = 0
        """Real episodes or steps whose grade infrastructure lost."""
        self.numbered = 0
        """Pairs of this run that were given a number."""
        self.late: Late | None = None
        wants = bool(getattr(episodes.schedule, "wants_uncertainty", False))
        self.uncertainty = StartUncertainty(options.uncertainty) if wants else None
        self.starts: StartStates | None = None
        if options.start_states == "buffer":
            if interface.factored is not None:
                raise ValueError(
                    'start_states="buffer" needs observations that say all about the state; a factored environment '
                    'keeps a state of its own, so its episodes start at a real reset: start_states="real"'
                )
            self.starts = StartStates(interface.observation_space, self.buffer)

    def reseed(self) -> None:
        """A run begins anew: pairs are numbered from 0, groups too, and no truth of another run is joined to this one's steps."""
        self.numbered = 0
        if self.late is not None:
            self.late = ({}, set())
        if self.starts is not None:
            self.starts.forget_last()

    def numbers(self, n: int) -> NDArray[np.int64]:
        """Numbers for n more pairs: int64, shape (n,)."""
        self.numbered += n
        return np.arange(self.numbered - n, self.numbered, dtype=np.int64)

    def charge(self, real: RealStep) -> None:
        """A batch of real steps was executed."""
        self.buffer.add(real.transitions)
        self.cost.executions += len(real.step.reward)
        self.cost.real_cpu_s += real.cpu_s
        self.cost.real_wall_s += real.wall_s

    def pair_up(
        self,
        at: NDArray[np.int64],
        prediction: Prediction,
        rows: NDArray[np.int64],
        real: NDArray[np.float64],
        *,
        features: NDArray[np.float64] | None = None,
    ) -> NDArray[np.int64]:
        """Send the pairs of the slots ``at``, which stand at ``rows`` of a prediction, to the stream; gives their numbers."""
        number, episodes = self.numbers(len(rows)), self._episodes
        self.send(
            Pairs(
                number,
                prediction.reward[rows].astype(np.float64),
                prediction.reward_std[rows].astype(np.float64),
                real.astype(np.float64),
                episodes.label(episodes.group[at]),
                episodes.number[at],
                episodes.steps[at],
                episodes.context[at],
                episodes.propensity[at],
                features,  # type: ignore[arg-type]
            )
        )
        return number

    def take_in(self, steps: list[RealStep]) -> None:
        """The steps of a real episode that ran by itself."""
        for real in steps:
            self.charge(real)
            self.unknown += int((~real.step.reward_valid).sum())

    def arrived(self, recording: Recording, steps: list[RealStep] | None) -> None:
        """A background anchor has finished; None where it could not be executed."""
        self.unknown += steps is None
        steps = steps or []
        self.take_in(steps)
        self.send(recording.pairs(steps))
        self.spend(len(steps))
        if self.late is not None and self._episodes.is_of_this_run(recording.group):
            truths = recording.truths(steps)
            self.late[0].update(truths)
            self.late[1].update(number for number in recording.numbers if number not in truths)

    def collect_late(self) -> Late:
        """What arrived late since the last call; the first one starts the collection."""
        collected, self.late = self.late or ({}, set()), ({}, set())
        return collected

    def send(self, pairs: Pairs) -> None:
        """Pairs go to the stream, and to a schedule that watches the disagreement."""
        self.stream.add(pairs)
        if self.uncertainty is not None:
            self.uncertainty.measured(pairs)
        schedule = self._episodes.schedule
        if hasattr(schedule, "observe"):
            for disagreement in (pairs.real - pairs.predicted) ** 2:
                schedule.observe(float(disagreement))

    def spend(self, steps: int) -> None:
        """An anchor episode was executed; a schedule with a budget pays for its steps."""
        schedule = self._episodes.schedule
        if hasattr(schedule, "spend"):
            schedule.spend(float(steps))

    def state_dict(self) -> dict[str, Any]:
        """Counters, pairs, transitions and costs."""
        return {
            "unknown": self.unknown,
            "numbered": self.numbered,
            "cost": asdict(self.cost),
            "stream": self.stream.state_dict(),
            "buffer": (self.buffer.everything(), self.buffer.added),
            "last_start": None if self.starts is None else self.starts.last,
            "uncertainty": None if self.uncertainty is None else self.uncertainty.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` described."""
        self.unknown, self.numbered = state["unknown"], state["numbered"]
        self.cost.restore(state["cost"])
        self.stream.load_state_dict(state["stream"])
        self.buffer.restore(*state["buffer"])
        if self.starts is not None:
            self.starts.last = state["last_start"]
        if self.uncertainty is not None and state["uncertainty"] is not None:
            self.uncertainty.load_state_dict(state["uncertainty"])
