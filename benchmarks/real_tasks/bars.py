"""What the rows say: means with errors, paired differences, shares of gaps, and the verdicts of the bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_tasks.arms import ARMS
from benchmarks.real_tasks.settings import BUDGETS

WMRL = "contextual+residual"
"""The arm that the bars are about."""
BASELINES = ("real", "model", "mixture")
Values = Mapping[str, Mapping[int, float]]
"""By arm and seed, the mean value over tasks."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and its standard error, NaN of fewer than two seeds."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        """Of one value a seed."""
        each = np.array(list(values))
        return cls(float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("nan"))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"

    def signed(self) -> str:
        """With its sign, for a difference."""
        return f"{self.mean:+.3f} ± {self.error:.3f}"

    def above(self, errors: float) -> bool:
        """Whether it is above 0 by so many standard errors."""
        return self.mean > errors * self.error


def paired(values: Values, arm: str, other: str) -> Estimate:
    """The difference of two arms over the seeds that both have."""
    both = sorted(values[arm].keys() & values[other].keys())
    return Estimate.of(values[arm][seed] - values[other][seed] for seed in both)


def best_baseline(values: Values) -> str:
    """The best of real only, model alone and mixture."""
    return max(BASELINES, key=lambda arm: Estimate.of(values[arm].values()).mean)


def gap_closed(values: Values, arm: str, *, low: str, high: str = "ceiling") -> Estimate:
    """The share of the way from one arm to another: a ratio of means, its error by jackknife over seeds."""
    seeds = sorted(values[arm].keys() & values[low].keys() & values[high].keys())
    top = np.array([values[arm][seed] - values[low][seed] for seed in seeds])
    whole = np.array([values[high][seed] - values[low][seed] for seed in seeds])
    return _ratio(top, whole)


def way(values: Values, arm: str, *, start: float) -> Estimate:
    """The share of the way from the untrained policy to real rewards everywhere."""
    seeds = sorted(values[arm].keys() & values["ceiling"].keys())
    top, whole = (np.array([values[name][seed] - start for seed in seeds]) for name in (arm, "ceiling"))
    return _ratio(top, whole)


def _ratio(top: NDArray[np.float64], whole: NDArray[np.float64]) -> Estimate:
    n = len(top)
    if n < 2:
        return Estimate(float(top.sum() / whole.sum()), float("nan"))
    left_out = (top.sum() - top) / (whole.sum() - whole)
    return Estimate(float(top.sum() / whole.sum()), float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar.

    Args:
        bar: what was asked for.
        found: what was measured.
        met: whether it was reached.
    """

    bar: str
    found: str
    met: bool

    def as_json(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)


def verdicts(setting: str, trainer: str, budget: int, values: Values) -> list[Verdict]:
    """The bars of a comparison; none where arms are missing."""
    needed = {WMRL, "paper", "ceiling", *BASELINES}
    if not needed <= values.keys():
        return []
    where = f"{setting}, {trainer}, {budget} executions"
    if setting == "transfer":
        return _transfer(where, budget, values)
    return _learning(where, values) if setting == "learning" and budget == max(BUDGETS) else []


_SHARES = {30: 0.5, 100: 0.4}
_NEAR = 0.04


def _transfer(where: str, budget: int, values: Values) -> list[Verdict]:
    if budget not in _SHARES:
        behind = paired(values, "ceiling", WMRL)
        return [Verdict(f"{where}: within {_NEAR} of real rewards everywhere", f"behind by {behind}", behind.mean <= _NEAR)]
    low = best_baseline(values)
    share = gap_closed(values, WMRL, low=low)
    bar = f"{where}: closes {_SHARES[budget]:.0%} of the gap from {ARMS[low].title} to real rewards everywhere"
    found = [Verdict(bar, f"{share.mean:.0%} ± {share.error:.0%}", share.mean >= _SHARES[budget])]
    for other in (*BASELINES, "paper"):
        ahead = paired(values, WMRL, other)
        if budget == 100 and other == "real":
            found.append(Verdict(f"{where}: not below {ARMS[other].title}", ahead.signed(), ahead.mean >= 0))
        else:
            found.append(Verdict(f"{where}: above {ARMS[other].title} by 2 errors", ahead.signed(), ahead.above(2.0)))
    return found


def _learning(where: str, values: Values) -> list[Verdict]:
    found = []
    for other in ("mixture", "model"):
        ahead = paired(values, WMRL, other)
        found.append(Verdict(f"{where}: not below {ARMS[other].title} by 1 error", ahead.signed(), ahead.mean >= -ahead.error))
    share = gap_closed(values, WMRL, low="real")
    bar = f"{where}: 70% of the way from real only to real rewards everywhere"
    return [*found, Verdict(bar, f"{share.mean:.0%} ± {share.error:.0%}", share.mean >= 0.7)]


def statement(values: Values) -> dict[str, Any] | None:
    """The paper's own statement, mixture < one correction < both, in paired differences; None where arms are missing."""
    if not {"mixture", "denoise", "debias", "paper"} <= values.keys():
        return None
    steps = [("denoise", "mixture"), ("debias", "mixture"), ("paper", "denoise"), ("paper", "debias")]
    differences = {f"{above} - {below}": paired(values, above, below) for above, below in steps}
    return {
        "differences": {name: [each.mean, each.error] for name, each in differences.items()},
        "reproduced": all(each.above(2.0) for each in differences.values()),
        "contradicted": any(each.mean < -2.0 * each.error for each in differences.values()),
    }


def executions_for(value: float, real: Mapping[int, float]) -> float:
    """How many executions real only needs for a value, by interpolation in the logarithm of its budgets.

    Args:
        value: to be reached.
        real: its mean value by budget.

    Returns:
        infinity where the largest budget does not reach it, the smallest budget where that is enough.
    """
    budgets = sorted(real)
    reached = np.maximum.accumulate([real[budget] for budget in budgets])
    if value <= reached[0]:
        return float(budgets[0])
    if value > reached[-1]:
        return float("inf")
    at = int(np.searchsorted(reached, value))
    part = (value - reached[at - 1]) / (reached[at] - reached[at - 1])
    low, high = np.log(budgets[at - 1]), np.log(budgets[at])
    return float(np.exp(low + part * (high - low)))
