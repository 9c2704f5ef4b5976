"""The books of a run: what real execution brought, where it goes, and what it cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isnan
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections.anchor_pairs import AnchorStream, Pairs
from wmrl_gym.data import TransitionBuffer
from wmrl_gym.engine.alarm import HarmAlarm
from wmrl_gym.engine.episodes import Episodes
from wmrl_gym.engine.execution import RealStep
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.engine.recording import Recording
from wmrl_gym.engine.starts import StartStates, StartUncertainty
from wmrl_gym.world_models import Interface, Prediction

_LATE = 20_000
"""Late truths kept for whoever began to collect them; the oldest go first."""
_FEW, _MANY = 100, 20_000
"""Real steps before their mean duration says something, and imagined ones before the first fit is paid for."""
_LOSS_S = 60.0
"""Seconds that imagining may cost more than it saves before a run says so."""

Late: TypeAlias = tuple[dict[int, float], set[int]]
"""Late truths by pair number, and the numbers of those that never come."""


@dataclass(slots=True)
class Cost:
    """What a run has cost so far: real steps, imagined steps, and seconds by what they were spent on.

    Args:
        executions: real steps.
        real_cpu_s: CPU seconds of real execution; NaN where nobody counts them.
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

    @property
    def saved_s(self) -> float:
        """Seconds that imagining has saved; negative where it costs, NaN before there are real steps and imagined ones.

        What real execution of the imagined steps would have taken, by the mean of the real ones, less the seconds of the world
        model and those of the real steps.
        """
        if not (self.executions and self.imagined):
            return float("nan")
        real_s = self.real_wall_s / self.executions
        return (self.imagined - self.executions) * real_s - self.predict_s - self.update_s

    def timing(self, name: str) -> Stopwatch:
        """Adds the seconds that a ``with`` block takes to the cost of that name."""
        return Stopwatch(self, name)

    def as_dict(self) -> dict[str, float]:
        """The costs by name; without those that are not known."""
        costs = {name: float(value) for name, value in asdict(self).items()}
        return {name: value for name, value in costs.items() if not isnan(value)}

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
        self.alarm = HarmAlarm(options.num_slots, group_size=episodes.group_size)
        self.unknown = 0
        """Real episodes or steps whose grade infrastructure lost."""
        self.numbered = 0
        """Pairs of this run that were given a number."""
        self.late: Late | None = None
        self._said = False
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
        self.alarm.forget()
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
        enough = self.cost.executions >= _FEW and self.cost.imagined >= _MANY
        if enough and not self._said and self.cost.saved_s < -_LOSS_S:
            self._said = True
            self._warn_of_loss()

    def _warn_of_loss(self) -> None:
        cost = self.cost
        imagined, real_ms = cost.imagined - cost.executions, 1e3 * cost.real_wall_s / cost.executions
        spent_ms = 1e3 * (cost.predict_s + cost.update_s)
        pays = f"it pays from {spent_ms / imagined:.2g} ms on" if imagined > 0 else "most steps were real"
        warnings.warn(
            f"imagining has cost {-cost.saved_s:.0f} s more than it saved: a real step takes {real_ms:.2g} ms, and the world "
            f"model took {cost.predict_s:.0f} s for {cost.imagined:,} predictions and {cost.update_s:.0f} s to learn; {pays}. "
            "Train without a world model, or in a cheaper one (fewer members, a larger refit_share)",
            stacklevel=2,
        )

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
        predicted = prediction.reward[rows].astype(np.float64)
        self.alarm.paid(at, predicted, real)
        self.send(
            Pairs(
                number,
                predicted,
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
        pairs = recording.pairs(steps)
        self.send(pairs)
        self.spend(len(steps))
        mine = self._episodes.is_of_this_run(recording.group)
        # What was chosen for its prediction says nothing of the others.
        if mine and len(pairs) and not recording.verified:
            sums = float(pairs.real.sum()), float(pairs.predicted.sum())
            self.alarm.measured(*sums, group=recording.group, propensity=recording.propensity)
        if self.late is not None and mine:
            truths = recording.truths(steps)
            self.late[0].update(truths)
            self.late[1].update(number for number in recording.numbers if number not in truths)
            _keep_newest(*self.late)

    def collect_late(self) -> Late:
        """What arrived late since the last call, the newest of it; the first one starts the collection."""
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

    def ended(self, at: NDArray[np.int64]) -> None:
        """The blocking anchors in the slots ``at`` have ended."""
        episodes = self._episodes
        for steps in episodes.steps[at].tolist():
            self.spend(steps)
        self.alarm.ended(at, group=episodes.group[at], propensity=episodes.propensity[at], whole=episodes.predicted[at])

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
            "alarm": self.alarm.state_dict(),
            "buffer": (self.buffer.everything(), self.buffer.added),
            "last_start": None if self.starts is None else self.starts.last,
            "uncertainty": None if self.uncertainty is None else self.uncertainty.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` described."""
        self.unknown, self.numbered = state["unknown"], state["numbered"]
        self.cost.restore(state["cost"])
        self.stream.load_state_dict(state["stream"])
        if "alarm" in state:  # there was none once
            self.alarm.load_state_dict(state["alarm"])
        self.buffer.restore(*state["buffer"])
        if self.starts is not None:
            self.starts.last = state["last_start"]
        if self.uncertainty is not None and state["uncertainty"] is not None:
            self.uncertainty.load_state_dict(state["uncertainty"])


def _keep_newest(truths: dict[int, float], lost: set[int]) -> None:
    """Forget the oldest late truths where nobody collects them: whoever parked their steps is gone."""
    for kept in (truths, lost):
        if len(kept) > 2 * _LATE:
            for number in sorted(kept)[:-_LATE]:
                kept.pop(number, None) if isinstance(kept, dict) else kept.discard(number)
