"""Which episodes are run for real: decided at their start, with the probability that the decision had."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AnchorDecision:
    """Whether an episode is an anchor.

    Args:
        anchor: it runs for real, and the world model predicts it too.
        propensity: the probability with which it was to be an anchor, in [0, 1].
    """

    anchor: bool
    propensity: float


def check_fraction(fraction: float) -> float:
    """``fraction`` as a float in [0, 1].

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    return float(fraction)


def reseed(seed: int, run: int) -> int:
    """The seed of a schedule's choices in a run that begins anew from ``run``; 0 changes nothing."""
    # A Python number before it is shifted: numpy below 2 does not shift an unsigned one by it.
    return seed if run == 0 else int(np.random.SeedSequence([seed, run]).generate_state(1, np.uint64)[0]) >> 1


class AnchorSchedule:
    """A fixed fraction of anchors, spread evenly: every block of groups has its share, and what is left over is carried on.

    The decision is a pure function of the seed and of the episode's number: the members of a group agree whatever order they
    finish in, and a resumed run chooses the same. After k blocks of n groups there have been ``floor(n f k + u)`` anchors, u
    uniform in [0, 1); which ones within a block is a random choice. So each group's probability is exactly f, and the count is
    never off by a whole anchor.

    Args:
        fraction: share of the groups that are anchors, in [0, 1].
        group_size: episodes a group; ``1`` decides for each episode alone.
        seed: of the choice.
        block: groups a block.

    Raises:
        ValueError: if an argument is out of its range.

    >>> schedule = AnchorSchedule(0.1, seed=1)
    >>> [e for e in range(40) if schedule.decide(e).anchor]
    [7, 17, 28, 31]
    >>> schedule.decide(7)
    AnchorDecision(anchor=True, propensity=0.1)
    """

    def __init__(self, fraction: float = 0.1, *, group_size: int = 1, seed: int = 0, block: int = 20) -> None:
        if group_size < 1 or block < 1:
            raise ValueError(f"group_size and block must be at least 1, got {group_size} and {block}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.fraction = check_fraction(fraction)
        self.group_size, self.seed, self.block = int(group_size), int(seed), int(block)
        self._offset = float(np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0,))).random())
        self._cached: tuple[int, frozenset[int]] = (-1, frozenset())

    def reseeded(self, seed: int) -> AnchorSchedule:
        """The same schedule with other choices, for a run that begins anew from ``seed``; 0 changes nothing."""
        if seed == 0:
            return self
        return AnchorSchedule(self.fraction, group_size=self.group_size, seed=reseed(self.seed, seed), block=self.block)

    def _anchors_after(self, blocks: int) -> int:
        # Rounding keeps 20 * 0.15 * k a whole number where it is one, so that the carry does not depend on float dust.
        return math.floor(round(self.block * self.fraction * blocks, 9) + self._offset)

    def _anchors_in(self, block: int) -> frozenset[int]:
        if self._cached[0] != block:
            count = self._anchors_after(block + 1) - self._anchors_after(block)
            rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, block)))
            self._cached = block, frozenset(rng.permutation(self.block)[:count].tolist())
        return self._cached[1]

    def decide_many(self, episodes: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """:meth:`decide` of many episodes at once: which are anchors, bool, and their propensities, float64, shape (B,) each."""
        block, place = np.divmod(episodes // self.group_size, self.block)
        anchor = np.zeros(len(episodes), dtype=np.bool_)
        for each in np.unique(block).tolist():
            chosen = self._anchors_in(each)
            if chosen:
                anchor |= (block == each) & np.isin(place, list(chosen))
        return anchor, np.full(len(episodes), self.fraction)

    def decide(self, episode: int, start: object | None = None) -> AnchorDecision:
        """Whether the episode of this number (from 0, in the order of starts) is an anchor.

        Args:
            episode: the number.
            start: what is known of the episode; not looked at here, see :mod:`wmrl_gym.corrections.schedules`.

        Raises:
            ValueError: if ``episode`` is negative.
        """
        if episode < 0:
            raise ValueError(f"episode must not be negative, got {episode}")
        block, place = divmod(episode // self.group_size, self.block)
        return AnchorDecision(anchor=place in self._anchors_in(block), propensity=self.fraction)
