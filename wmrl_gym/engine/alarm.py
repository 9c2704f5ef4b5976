"""An alarm: whether what a policy learnt in the world model makes it worse in the real environment."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from wmrl_gym.batch import StateDict

_BLOCKS = 64
"""Blocks that measurements are kept in; when there are as many, each two neighbours become one."""
_LEAST = 40
"""Measurements before the first look: ten in a quarter."""
_GROWTH = 1.05
"""Between two looks their number grows by so much, so that there are few looks, and noise has few chances."""
_BELOW_FIRST = 1e-4
"""Chance, at a look, that noise alone puts the newest quarter so far below the first."""
_FELL, _ROSE = 1e-2, 1e-3
"""The same for "truth fell while the prediction rose", which noise alone would have to do both at once."""
_OPEN_GROUPS = 256


@dataclass(frozen=True, slots=True)
class Quarter:
    """A quarter of a run's anchors.

    Args:
        real: mean of what they really paid, and the square of its standard error.
        predicted: the same of what was predicted of them.
        n: how many measurements that are all alike would tell as much.
    """

    real: tuple[float, float]
    predicted: tuple[float, float]
    n: float

    @classmethod
    def of(cls, sums: NDArray[np.float64]) -> Quarter:
        """From sums of weights, their squares, and weighted values and squares, real and predicted: float64, shape (6,)."""
        weight, squares, real, real2, predicted, predicted2 = sums.tolist()
        n = weight**2 / squares

        def moments(total: float, total2: float) -> tuple[float, float]:
            mean = total / weight
            # What rounding leaves of equal numbers is no spread, and no difference either.
            return mean, max(total2 / weight - mean**2, 0.0) / max(n - 1.0, 1.0) + (1e-7 * mean) ** 2

        return cls(moments(real, real2), moments(predicted, predicted2), n)


def chance_of_rise(before: tuple[float, float], after: tuple[float, float], *, n: tuple[float, float]) -> float:
    """The chance that noise alone puts one mean so far above another (Welch's test, one-sided).

    Args:
        before: mean, and the square of its standard error.
        after: the same of the one that is above.
        n: measurements in each.

    >>> round(chance_of_rise((0.0, 0.01), (0.2, 0.01), n=(20, 20)), 2)
    0.08
    """
    square = before[1] + after[1]
    if square == 0.0:
        return 0.0 if after[0] > before[0] else 1.0
    freedom = square**2 / (before[1] ** 2 / max(n[0] - 1, 1) + after[1] ** 2 / max(n[1] - 1, 1))
    return float(stdtr(freedom, -(after[0] - before[0]) / np.sqrt(square)))


class HarmAlarm(StateDict):
    """Compares what anchors really pay, and what was predicted of them, along a run; warns once where the model harms.

    A measurement is the sum of an anchor episode's rewards on both sides, over the steps that made pairs; the members of a group
    make one together. It counts by one over the propensity. The newest quarter of the measurements is compared with the earlier
    ones: the alarm rings where truth has fallen while predictions have risen, or where truth is below that of the first quarter,
    by more than noise would do in one of a hundred runs. A few hundred bytes are kept, however long the run is.

    Args:
        num_slots: rollouts side by side.
        group_size: consecutive episodes that share their start.
    """

    _state = ("_sums", "_of_slot", "_groups", "_per_block", "_in_last", "_count", "_next_look", "_said", "harms")

    def __init__(self, num_slots: int, *, group_size: int) -> None:
        self.num_slots, self.group_size = num_slots, group_size
        self.forget()

    def forget(self) -> None:
        """A run begins anew."""
        self._sums: list[NDArray[np.float64]] = []
        self._of_slot = np.full((self.num_slots, 2), np.nan)
        self._groups: dict[int, tuple[int, float, float, float]] = {}
        self._per_block, self._in_last, self._count = 1, 0, 0
        self._next_look, self._said = float(_LEAST), False
        self.harms = float("nan")
        """1 where the last look says that the model harms, 0 where not; NaN before there was one."""

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Episodes begin in ``slots``; what was paid of those that nobody ended is no measurement."""
        self._of_slot[slots] = np.nan

    def paid(self, slots: NDArray[np.int64], predicted: NDArray[np.float64], real: NDArray[np.float64]) -> None:
        """Steps of anchors in ``slots`` made pairs: float64, shape (n,) each."""
        self._of_slot[slots] = np.nan_to_num(self._of_slot[slots]) + np.stack([real, predicted], axis=1)

    def ended(
        self, slots: NDArray[np.int64], *, group: NDArray[np.int64], propensity: NDArray[np.float64], whole: NDArray[np.bool_]
    ) -> None:
        """The anchors in ``slots`` have ended.

        Args:
            slots: int64, shape (n,).
            group: int64, shape (n,).
            propensity: float64, shape (n,). With which each was chosen.
            whole: bool, shape (n,). Whether it was predicted from its start on.
        """
        for slot, label, chance, counts in zip(slots.tolist(), group.tolist(), propensity.tolist(), whole.tolist(), strict=True):
            real, predicted = self._of_slot[slot].tolist()
            if counts and real == real:
                self.measured(real, predicted, group=label, propensity=chance)
        self._of_slot[slots] = np.nan

    def measured(self, real: float, predicted: float, *, group: int, propensity: float) -> None:
        """An anchor's episode paid ``real`` in all, and ``predicted`` had been predicted of the same steps."""
        n, _, earlier_real, earlier_predicted = self._groups.pop(group, (0, 0.0, 0.0, 0.0))
        self._groups[group] = n + 1, 1.0 / propensity, earlier_real + real, earlier_predicted + predicted
        if n + 1 >= self.group_size:
            self._close(group)
        elif len(self._groups) > max(_OPEN_GROUPS, self.num_slots):  # some of whose members were lost
            self._close(next(iter(self._groups)))

    def _close(self, group: int) -> None:
        """All that belongs to a group is there."""
        n, weight, real, predicted = self._groups.pop(group)
        real, predicted = real / n, predicted / n
        sums = np.array([1.0, weight, real, real**2, predicted, predicted**2]) * weight
        if self._in_last == 0:
            if len(self._sums) == _BLOCKS:
                self._sums = [first + second for first, second in zip(self._sums[::2], self._sums[1::2], strict=True)]
                self._per_block *= 2
            self._sums.append(sums)
        else:
            self._sums[-1] = self._sums[-1] + sums
        self._in_last = (self._in_last + 1) % self._per_block
        self._count += 1
        if self._count >= self._next_look and self._in_last == 0:
            self._next_look = self._count * _GROWTH
            self._look()

    def _quarters(self) -> list[Quarter] | None:
        """The four quarters of the blocks, the newest whole; None before the first look."""
        if self._count < _LEAST:
            return None
        blocks, size = np.array(self._sums), len(self._sums) // 4
        ends = [len(blocks) - 3 * size, len(blocks) - 2 * size, len(blocks) - size, len(blocks)]
        return [Quarter.of(blocks[start:end].sum(axis=0)) for start, end in zip([0, *ends], ends, strict=False)]

    def _look(self) -> None:
        quarters = self._quarters()
        assert quarters is not None
        *earlier, last = quarters
        reason, before = "", earlier[0]
        for quarter in earlier:
            n = quarter.n, last.n
            fell = chance_of_rise(last.real, quarter.real, n=(last.n, quarter.n))
            if quarter is earlier[0] and fell < _BELOW_FIRST:
                reason, before = "their real rewards are below those of the first ones", quarter
            elif fell < _FELL and chance_of_rise(quarter.predicted, last.predicted, n=n) < _ROSE and not reason:
                reason, before = "their real rewards have fallen while the predicted ones have risen", quarter
        self.harms = float(bool(reason))
        if reason and not self._said:
            self._said = True
            self._warn(reason, before, last)

    def _warn(self, reason: str, before: Quarter, last: Quarter) -> None:
        def shown(side: tuple[float, float]) -> str:
            return f"{side[0]:.4g} +- {np.sqrt(side[1]):.2g}"

        warnings.warn(
            f"the world model seems to harm: of {self._count} anchors, {reason}. An episode of an earlier "
            f"quarter paid {shown(before.real)} and was predicted {shown(before.predicted)}; one of the newest quarter paid "
            f"{shown(last.real)} and was predicted {shown(last.predicted)}. More anchors, OnlineDebiasing with pessimism, or "
            "shorter imagined episodes may help",
            stacklevel=2,
        )

    def stats(self) -> dict[str, float]:
        """What it compares, for a log; NaN before there are enough anchors."""
        quarters = self._quarters()
        nothing = (float("nan"), float("nan"))
        sides = [nothing] * 4
        if quarters is not None:
            sides = [side for each in (quarters[0], quarters[-1]) for side in (each.real, each.predicted)]
        names = ("real_first", "predicted_first", "real_last", "predicted_last")
        means: dict[str, Any] = {f"anchors/{name}": side[0] for name, side in zip(names, sides, strict=True)}
        return {**means, "anchors/harm": self.harms}
