"""A schedule of anchors that spends most of its budget early and keeps a floor to the end."""

from __future__ import annotations

import math

import numpy as np

from wmrl_gym.corrections.anchors import AnchorDecision, check_fraction, reseed

_BLOCK = 20
"""Groups that share a count of anchors."""


class EarlySchedule:
    """A fixed number of anchors over a planned number of episodes, most of them among the first.

    A policy settles on what the world model likes best within some tens of updates; anchors that are spread evenly over a run are
    then heard too late. This schedule gives the ``share`` of its budget to the ``first`` part of the run, evenly, and spreads the
    rest over the whole run.

    As in :class:`~wmrl_gym.corrections.AnchorSchedule` the decision is a pure function of the seed and of the episode's number:
    the members of a group agree whatever order they finish in, and a resumed run chooses the same. Groups are taken in blocks of
    20; how many anchors a block has is its expected number rounded by an offset that is uniform over seeds, and which groups
    these are is a random choice. So each group's recorded probability is exact, and after the planned episodes the number of
    anchors is the budget, to the last one. Later episodes are no anchors.

    Args:
        budget: episodes that are anchors, in all; a multiple of ``group_size``.
        episodes: episodes over which it lasts; a multiple of ``group_size``.
        share: of the budget that is spent on the first part only; 0 spreads all of it evenly.
        first: how much of the run the first part is, in (0, 1].
        group_size: consecutive episodes that share their start and the anchor decision.
        seed: of the choice.

    Raises:
        ValueError: an argument out of its range, no multiple of the group size, or more anchors than episodes in the first part.

    >>> schedule = EarlySchedule(30, episodes=1000, share=0.5, first=0.1)
    >>> round(schedule.decide(0).propensity, 3), round(schedule.decide(900).propensity, 3)
    (0.165, 0.015)
    >>> sum(schedule.decide(episode).anchor for episode in range(2000))
    30
    """

    def __init__(
        self, budget: int, *, episodes: int, share: float = 0.7, first: float = 0.1, group_size: int = 1, seed: int = 0
    ) -> None:
        if group_size < 1 or seed < 0:
            raise ValueError(f"need group_size >= 1 and seed >= 0, got {group_size} and {seed}")
        if not 0 <= budget <= episodes or budget % group_size or episodes % group_size:
            raise ValueError(
                f"budget and episodes must be multiples of the group size, with 0 <= budget <= episodes; got {budget} and "
                f"{episodes} for groups of {group_size}"
            )
        if not 0.0 < first <= 1.0:
            raise ValueError(f"first must be in (0, 1], got {first}")
        self.budget, self.episodes, self.share, self.first = int(budget), int(episodes), check_fraction(share), float(first)
        self.group_size, self.seed = int(group_size), int(seed)
        self._anchors, self._groups = self.budget // self.group_size, self.episodes // self.group_size
        densest = self._expected(min(_BLOCK, self._groups)) / max(min(_BLOCK, self._groups), 1)
        if densest > 1.0 + 1e-9:
            raise ValueError(
                f"{self.share:g} of {self.budget} anchors do not fit into the first {self.first:g} of {self.episodes} episodes: "
                "lower share or raise first"
            )
        self._offset = float(np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0,))).random())
        self._cached: tuple[int, list[AnchorDecision]] = (-1, [])

    def reseeded(self, seed: int) -> EarlySchedule:
        """The same schedule with other choices, for a run that begins anew from ``seed``; 0 changes nothing."""
        if seed == 0:
            return self
        return EarlySchedule(
            self.budget,
            episodes=self.episodes,
            share=self.share,
            first=self.first,
            group_size=self.group_size,
            seed=reseed(self.seed, seed),
        )

    def decide(self, episode: int, start: object | None = None) -> AnchorDecision:
        """Whether the episode of this number (from 0, in the order of starts) is an anchor.

        Args:
            episode: the number.
            start: what is known of the episode; not looked at here.

        Raises:
            ValueError: if ``episode`` is negative.
        """
        if episode < 0:
            raise ValueError(f"episode must not be negative, got {episode}")
        group = episode // self.group_size
        if group >= self._groups:
            return AnchorDecision(anchor=False, propensity=0.0)
        block, place = divmod(group, _BLOCK)
        if self._cached[0] != block:
            self._cached = block, self._decisions(block)
        return self._cached[1][place]

    def _expected(self, groups: int) -> float:
        """Anchors to be expected among so many first groups."""
        part = groups / self._groups if self._groups else 0.0
        # Rounded, so that whole numbers do not depend on float dust.
        return round(self._anchors * (self.share * min(part / self.first, 1.0) + (1.0 - self.share) * part), 9)

    def _decisions(self, block: int) -> list[AnchorDecision]:
        """Those of the groups of a block, in order."""
        begin, end = block * _BLOCK, min((block + 1) * _BLOCK, self._groups)
        before, upto = self._expected(begin), self._expected(end)
        count = math.floor(upto + self._offset) - math.floor(before + self._offset)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, block)))
        chosen = set(rng.permutation(end - begin)[:count].tolist())
        propensity = min((upto - before) / (end - begin), 1.0)
        return [AnchorDecision(anchor=place in chosen, propensity=propensity) for place in range(end - begin)]
