"""The episodes under way: their numbers, how they start, and which of them are real."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections import AnchorDecision, AnchorSchedule, EpisodeStart
from wmrl_gym.randomness import mix

NO_LIMIT = 2**62
"""Steps of an episode that nothing cuts short."""


class Schedule(Protocol):
    """Decides which episodes are anchors; one with ``wants_uncertainty`` is given an :class:`EpisodeStart` as well."""

    def decide(self, episode: int) -> AnchorDecision: ...

    def reseeded(self, seed: int) -> Schedule: ...


class Episodes:
    """What is known of the present episode of each slot, as arrays of ``num_slots`` rows.

    Args:
        schedule: which episodes are anchors.
        num_slots: rollouts imagined at once.
    """

    def __init__(self, schedule: Schedule, *, num_slots: int) -> None:
        self._base = self.schedule = schedule
        n = num_slots
        self.number, self.group, self.steps, self.context = (np.zeros(n, np.int64) for _ in range(4))
        self.anchor, self.is_real, self.imagined_over, self.at_reset, self.predicted = (np.zeros(n, bool) for _ in range(5))
        self.propensity, self.limit = np.ones(n), np.full(n, NO_LIMIT)
        self.seed = 0
        self.run, self.next = 0, 0
        self.begun, self.anchored = 0, 0
        self._shown: dict[str, NDArray[Any]] | None = None

    def reseed(self, seed: int) -> None:
        """Number episodes anew, and choose anchors by ``seed``."""
        self.seed = seed
        self.run += 1
        self.next = 0
        self.schedule = self._base.reseeded(seed)

    @property
    def group_size(self) -> int:
        """Consecutive episodes that share their start and the anchor decision."""
        return int(getattr(self.schedule, "group_size", 1))

    @property
    def anchor_fraction(self) -> float:
        """The share of anchors among the episodes begun since the model knew something; NaN before."""
        return self.anchored / self.begun if self.begun else float("nan")

    def begin(self, slots: NDArray[np.int64], seeds: list[int | None]) -> NDArray[np.int64]:
        """Number the next episodes, one in each of ``slots``; returns the seeds of their starts, int64, shape (n,)."""
        numbers = np.arange(self.next, self.next + len(slots))
        self.next += len(slots)
        groups = numbers // self.group_size
        self.number[slots], self.group[slots], self.steps[slots] = numbers, groups, 0
        self.imagined_over[slots] = False
        # The first group starts as the environment itself would from this seed.
        drawn = np.where(groups == 0, self.seed, mix(self.seed, 1, groups))
        given = [row for row, seed in enumerate(seeds) if seed is not None]
        drawn[given] = [seeds[row] for row in given]
        return drawn

    def choose(self, slots: NDArray[np.int64], uncertainty: NDArray[np.float64] | None) -> None:
        """Decide which of the episodes that begin in ``slots`` are anchors.

        Args:
            slots: int64, shape (n,).
            uncertainty: of each, float64, shape (n,), for schedules that want to know it.
        """
        numbers = self.number[slots]
        if isinstance(self.schedule, AnchorSchedule):
            self.anchor[slots], self.propensity[slots] = self.schedule.decide_many(numbers)
        else:
            decide: Any = self.schedule.decide
            starts = [()] * len(slots) if uncertainty is None else [(EpisodeStart(uncertainty=u),) for u in uncertainty.tolist()]
            decisions = [decide(number, *start) for number, start in zip(numbers.tolist(), starts, strict=True)]
            self.anchor[slots] = [each.anchor for each in decisions]
            self.propensity[slots] = [each.propensity for each in decisions]
        self.begun += len(slots)
        self.anchored += int(self.anchor[slots].sum())

    def label(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels of groups in the stream: numbers restart with every run, and pairs of two runs must not meet in a group."""
        return groups + (self.run << _RUN)

    def header(self, slots: NDArray[np.int64], seeds: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """What a log keeps of the episodes that begin in ``slots``."""
        numbers = {
            "episode": self.number,
            "group": self.label(self.group),
            "context": self.context,
            "propensity": self.propensity,
        }
        return {name: values[slots] for name, values in numbers.items()} | {"seed": seeds}

    def put_info(self, info: dict[str, NDArray[Any]], slots: NDArray[np.int64] | slice) -> None:
        """Say in the info of a step what is known of the episodes; what stays the same until a reset is shared between steps."""
        if isinstance(slots, slice):
            if self._shown is None:
                self._shown = {name: getattr(self, name).copy() for name in _INFO}
            info.update(self._shown)
        else:
            info.update({name: getattr(self, name)[slots] for name in _INFO})
        info["depth"] = self.steps[slots].copy()

    def changed(self) -> None:
        """Episodes have begun, so that their info is another."""
        self._shown = None

    def is_of_this_run(self, label: int) -> bool:
        """Whether a label is that of a group of the present run."""
        return label >> _RUN == self.run

    def state_dict(self) -> dict[str, Any]:
        """Arrays, counters, and what the schedule remembers."""
        return {
            "arrays": {name: getattr(self, name).copy() for name in _ARRAYS},
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "schedule": self.schedule.state_dict() if hasattr(self.schedule, "state_dict") else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; :meth:`reseed` with its seed comes first."""
        self.changed()
        for name, value in state["arrays"].items():
            setattr(self, "is_real" if name == "opened" else name, value.copy())  # as version 0.1 called it
        for name, value in state["counters"].items():
            setattr(self, name, value)
        if state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])  # type: ignore[attr-defined]


def run_of(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The runs that labels of groups are of: int64, shape (n,)."""
    return labels >> _RUN


_RUN = 40
"""Bits of a group's number below those of its run."""
_INFO = ("anchor", "group", "propensity", "context")
_FLAGS = ("anchor", "is_real", "imagined_over", "at_reset", "predicted")
_ARRAYS = ("number", "group", "steps", "context", *_FLAGS, "propensity", "limit")
_COUNTERS = ("run", "next", "begun", "anchored")
