"""The buffer of real transitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.data import TransitionBuffer, Transitions


def numbered(first: int, count: int) -> Transitions:
    number = np.arange(first, first + count)
    no = np.zeros(count, bool)
    return Transitions(number[:, None], number, number.astype(float), number[:, None] + 1, no, no, ~no, np.zeros(count, np.int64))


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 20), st.integers(0, 60))
def test_it_keeps_the_newest_in_order_and_gives_what_came_since(sizes: list[int], capacity: int, cursor: int) -> None:
    buffer = TransitionBuffer(capacity)
    for size in sizes:
        buffer.add(numbered(buffer.added, size))
    total = sum(sizes)
    kept = list(range(max(0, total - capacity), total))
    assert len(buffer) == len(kept)
    everything = buffer.everything()
    assert ([] if everything is None else everything.action.tolist()) == kept
    if cursor > total:
        with pytest.raises(ValueError, match="beyond the"):
            buffer.since(cursor)
        return
    newer = buffer.since(cursor)
    assert ([] if newer is None else newer.action.tolist()) == [number for number in kept if number >= cursor]
