"""Anchor schedules that look at what is known: a budget, an episode's uncertainty, or how wrong the model was of late.

Each decides at an episode's start and draws from the seed and the group's number alone, but the probability depends on what was
seen before. So decision and probability are recorded: members of a group agree, and a resumed run replays them. Corrections
divide by the recorded probability, which keeps them unbiased however it was chosen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from wmrl_gym.corrections.anchors import AnchorDecision, check_fraction, reseed


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """What is known of an episode before it runs.

    Args:
        uncertainty: how little the model knows of it, such as its ``reward_std`` or a standard error of f; at least 0, NaN
            where there is no telling.
    """

    uncertainty: float = float("nan")


ScheduleT = TypeVar("ScheduleT", bound="RecordedSchedule")


class RecordedSchedule(ABC):
    """A schedule that remembers what it decided.

    Args:
        group_size: episodes a group; the first member to start decides for all.
        seed: of the draws.
        keep: decisions remembered; older groups must have ended.

    Raises:
        ValueError: if an argument is out of its range.
    """

    wants_uncertainty: ClassVar[bool] = False
    """Whether :class:`EpisodeStart` should be filled in, which takes a look at each start."""

    def __init__(self, *, group_size: int = 1, seed: int = 0, keep: int = 100_000) -> None:
        if group_size < 1 or keep < 1 or seed < 0:
            raise ValueError(f"need group_size >= 1, keep >= 1 and seed >= 0, got {group_size}, {keep} and {seed}")
        self.group_size, self.seed, self.keep = int(group_size), int(seed), int(keep)
        self._made: dict[int, AnchorDecision] = {}

    @abstractmethod
    def _propensity(self, start: EpisodeStart) -> float:
        """The probability with which the next group is to be an anchor, in [0, 1]."""

    def decide(self, episode: int, start: EpisodeStart | None = None) -> AnchorDecision:
        """Whether the episode of this number is an anchor; asked again, the same answer.

        Raises:
            ValueError: if ``episode`` is negative.
        """
        if episode < 0:
            raise ValueError(f"episode must not be negative, got {episode}")
        group = episode // self.group_size
        if group not in self._made:
            p = self._propensity(EpisodeStart() if start is None else start)
            draw = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, group))).random()
            self._made[group] = AnchorDecision(anchor=bool(draw < p), propensity=p)
            if len(self._made) > self.keep:
                del self._made[next(iter(self._made))]
        return self._made[group]

    def reseeded(self: ScheduleT, seed: int) -> ScheduleT:
        """The same schedule with nothing decided yet and other draws, for a run that begins anew from ``seed``."""
        fresh = deepcopy(self)
        fresh.seed = reseed(self.seed, seed)
        fresh._made = {}
        return fresh

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What the probability depends on."""

    @abstractmethod
    def _load_own(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`_own_state` gave."""

    def state_dict(self) -> dict[str, Any]:
        """Decisions and what they were made from."""
        made = self._made.values()
        return {
            "groups": np.array(list(self._made), dtype=np.int64),
            "anchors": np.array([d.anchor for d in made], dtype=np.bool_),
            "propensities": np.array([d.propensity for d in made], dtype=np.float64),
            **self._own_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        rows = zip(state["groups"], state["anchors"], state["propensities"], strict=True)
        self._made = {int(g): AnchorDecision(bool(a), float(p)) for g, a, p in rows}
        self._load_own(state)


class BudgetSchedule(RecordedSchedule):
    """Spends a budget of real executions (or of real seconds) evenly over a planned number of groups.

    The probability is what is left of the budget over what the groups that are left would cost, at the mean cost so far: dear
    executions make anchors rarer, cheap ones make them more frequent. At 0 the budget is spent.

    Args:
        budget: in the unit of the costs given to :meth:`spend`.
        groups: groups over which it is to last.
        cost: expected cost of one group; counts as one observation.
        group_size: see :class:`RecordedSchedule`; ``seed`` and ``keep`` too.

    Raises:
        ValueError: if budget, groups or cost is not positive.

    >>> schedule = BudgetSchedule(budget=10.0, groups=100, cost=1.0)
    >>> schedule.decide(0).propensity
    0.1
    >>> schedule.spend(10.0)
    >>> schedule.decide(1)
    AnchorDecision(anchor=False, propensity=0.0)
    """

    def __init__(
        self, budget: float, *, groups: int, cost: float = 1.0, group_size: int = 1, seed: int = 0, keep: int = 100_000
    ) -> None:
        super().__init__(group_size=group_size, seed=seed, keep=keep)
        for name, value in (("budget", budget), ("groups", groups), ("cost", cost)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.budget, self.groups = float(budget), int(groups)
        self.spent = 0.0
        self._committed = 0
        self._started = 0
        self._costs, self._runs = float(cost), 1

    def _propensity(self, start: EpisodeStart) -> float:
        mean = self._costs / self._runs
        # Anchors that run and have not reported yet will cost about the mean.
        left = self.budget - self.spent - self._committed * mean
        share = left / (max(self.groups - self._started, 1) * mean)
        self._started += 1
        return float(np.clip(share, 0.0, 1.0)) if left >= mean * 1e-9 else 0.0

    def decide(self, episode: int, start: EpisodeStart | None = None) -> AnchorDecision:
        """See :meth:`RecordedSchedule.decide`."""
        known = len(self._made), next(reversed(self._made), None)
        decision = super().decide(episode, start)
        if (len(self._made), next(reversed(self._made), None)) != known:
            self._committed += decision.anchor
        return decision

    def spend(self, cost: float) -> None:
        """One anchor group has run and cost this much.

        Raises:
            ValueError: if the cost is negative or not finite.
        """
        if not (np.isfinite(cost) and cost >= 0):
            raise ValueError(f"cost must be finite and at least 0, got {cost}")
        self.spent += float(cost)
        self._committed = max(self._committed - 1, 0)
        self._costs, self._runs = self._costs + float(cost), self._runs + 1

    def _own_state(self) -> dict[str, Any]:
        counts = {"committed": self._committed, "started": self._started, "runs": self._runs}
        return {"spent": self.spent, "costs": self._costs, **counts}

    def _load_own(self, state: dict[str, Any]) -> None:
        self.spent, self._costs = float(state["spent"]), float(state["costs"])
        self._committed, self._started = int(state["committed"]), int(state["started"])
        self._runs = int(state["runs"])


class UncertaintySchedule(RecordedSchedule):
    """More anchors where the model knows less: the probability is proportional to the episode's uncertainty.

    ``p = clip(fraction u / mean u, least, most)``, the mean running over the episodes so far. ``least`` above 0 keeps the inverse
    probabilities, and with them the variance, bounded. Where the uncertainty is unknown, p is ``fraction``.

    Args:
        fraction: mean share of anchors, as long as few are clipped.
        least: smallest probability; None is a quarter of ``fraction``.
        most: largest probability.
        half_life: episodes over which the mean uncertainty is taken.
        group_size: see :class:`RecordedSchedule`; ``seed`` and ``keep`` too.

    Raises:
        ValueError: if an argument is out of its range.

    >>> schedule = UncertaintySchedule(0.1)
    >>> schedule.decide(0, EpisodeStart(uncertainty=0.2)).propensity
    0.1
    >>> round(schedule.decide(1, EpisodeStart(uncertainty=0.4)).propensity, 3)
    0.133
    """

    wants_uncertainty: ClassVar[bool] = True

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        least: float | None = None,
        most: float = 1.0,
        half_life: float = 1000.0,
        group_size: int = 1,
        seed: int = 0,
        keep: int = 100_000,
    ) -> None:
        super().__init__(group_size=group_size, seed=seed, keep=keep)
        self.fraction, self.most = check_fraction(fraction), check_fraction(most)
        self.least = self.fraction / 4.0 if least is None else check_fraction(least)
        if not self.least <= self.most or not half_life > 0:
            raise ValueError(f"need least <= most and half_life > 0, got {self.least}, {self.most} and {half_life}")
        self.half_life = float(half_life)
        self._sum, self._count = 0.0, 0.0

    def _propensity(self, start: EpisodeStart) -> float:
        u = start.uncertainty
        if not np.isfinite(u):
            return self.fraction
        if u < 0:
            raise ValueError(f"uncertainty must be at least 0, got {u}")
        fade = 0.5 ** (1.0 / self.half_life)
        self._sum, self._count = fade * self._sum + u, fade * self._count + 1.0
        mean = self._sum / self._count
        return float(np.clip(self.fraction * (u / mean if mean > 0 else 1.0), self.least, self.most))

    def _own_state(self) -> dict[str, Any]:
        return {"sum": self._sum, "count": self._count}

    def _load_own(self, state: dict[str, Any]) -> None:
        self._sum, self._count = float(state["sum"]), float(state["count"])


class AdaptiveSchedule(RecordedSchedule):
    """Buys more anchors while the measured disagreement is high, and fewer while f is good.

    ``p = clip(fraction sqrt(d / reference), least, most)``: the square root, because the anchors' share of the variance falls
    with 1 / p and their cost rises with p, so that the best p goes with the standard deviation of the residual.

    Args:
        fraction: share of anchors at the reference disagreement, and before there is one.
        least: smallest share; anchors are also how a rise is noticed, so it is not 0.
        most: largest share.
        reference: the disagreement at which the share is ``fraction``; None is the mean of the first ``warmup`` observations.
        half_life: observations after which one counts half.
        warmup: observations before the share moves.
        group_size: see :class:`RecordedSchedule`; ``seed`` and ``keep`` too.

    Raises:
        ValueError: if an argument is out of its range.

    >>> schedule = AdaptiveSchedule(0.1, reference=0.02, warmup=1, half_life=1e-9)
    >>> schedule.observe(0.08)
    >>> schedule.decide(0).propensity
    0.2
    """

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        least: float = 0.03,
        most: float = 0.3,
        reference: float | None = None,
        half_life: float = 100.0,
        warmup: int = 32,
        group_size: int = 1,
        seed: int = 0,
        keep: int = 100_000,
    ) -> None:
        super().__init__(group_size=group_size, seed=seed, keep=keep)
        self.fraction, self.least, self.most = (check_fraction(value) for value in (fraction, least, most))
        if not 0.0 < self.least <= self.fraction <= self.most:
            raise ValueError(f"need 0 < least <= fraction <= most, got {least}, {fraction} and {most}")
        if not half_life > 0 or warmup < 1 or (reference is not None and not reference > 0):
            raise ValueError(f"need half_life > 0, warmup >= 1 and reference > 0, got {half_life}, {warmup} and {reference}")
        self.half_life, self.warmup, self.reference = float(half_life), int(warmup), reference
        self.disagreement = 0.0
        self._seen = 0

    def observe(self, disagreement: float) -> None:
        """One measurement, such as a squared residual (r - f)^2; what is not finite is left out."""
        if not np.isfinite(disagreement):
            return
        self._seen += 1
        keep = min(0.5 ** (1.0 / self.half_life), 1.0 - 1.0 / self._seen)
        self.disagreement = keep * self.disagreement + (1.0 - keep) * float(disagreement)
        if self.reference is None and self._seen >= self.warmup and self.disagreement > 0:
            self.reference = self.disagreement

    def _propensity(self, start: EpisodeStart) -> float:
        if self.reference is None or self._seen < self.warmup:
            return self.fraction
        return float(np.clip(self.fraction * np.sqrt(self.disagreement / self.reference), self.least, self.most))

    def _own_state(self) -> dict[str, Any]:
        reference = float("nan") if self.reference is None else self.reference
        return {"disagreement": self.disagreement, "seen": self._seen, "reference": reference}

    def _load_own(self, state: dict[str, Any]) -> None:
        self.disagreement, self._seen = float(state["disagreement"]), int(state["seen"])
        reference = float(state["reference"])
        self.reference = None if np.isnan(reference) else reference


class OneRealSlot:
    """A schedule of anchors that keeps one slot of a vector environment real: the next episode is, when a real one has ended.

    Real steps are then as frequent as imagined ones are in each other slot. It holds nothing that outlasts the run.

    Args:
        num_envs: slots.

    >>> schedule = OneRealSlot(16)
    >>> [schedule.decide(episode).anchor for episode in range(3)]
    [True, False, False]
    >>> schedule.spend(20)
    >>> schedule.decide(3)
    AnchorDecision(anchor=True, propensity=0.0625)
    """

    group_size = 1

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._running = False

    def decide(self, episode: int) -> AnchorDecision:
        """An anchor where none is under way."""
        decision = AnchorDecision(anchor=not self._running, propensity=1 / self.num_envs)
        self._running = True
        return decision

    def spend(self, cost: float) -> None:
        """An anchor has ended."""
        self._running = False

    def reseeded(self, seed: int) -> OneRealSlot:
        """Another run: none is under way."""
        return OneRealSlot(self.num_envs)
