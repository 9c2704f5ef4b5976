"""Anchor schedules: the fraction kept, the probability stated, the same choice whoever asks and whenever."""

from __future__ import annotations

import ast
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wmrl_gym.corrections
from wmrl_gym.corrections import AnchorSchedule, PairWindow


def chosen(schedule: AnchorSchedule, n: int) -> np.ndarray:
    return np.array([schedule.decide(e).anchor for e in range(n)])


@settings(max_examples=60, deadline=None)
@given(fraction=st.floats(0, 1), block=st.integers(1, 40), seed=st.integers(0, 10**6), blocks=st.integers(1, 30))
def test_after_any_number_of_blocks_the_count_is_right(fraction: float, block: int, seed: int, blocks: int) -> None:
    anchors = chosen(AnchorSchedule(fraction, seed=seed, block=block), block * blocks)
    assert abs(anchors.sum() - fraction * block * blocks) < 1.0 + 1e-6


def test_three_percent_of_blocks_of_five_is_carried_over_and_not_rounded_up() -> None:
    assert abs(chosen(AnchorSchedule(0.03, block=5), 10_000).sum() - 300) <= 1


@pytest.mark.parametrize("fraction", [0.07, 0.1, 0.5])
def test_every_place_has_the_stated_propensity(fraction: float) -> None:
    draws = 4000
    count = np.zeros(20)
    for seed in range(draws):
        schedule = AnchorSchedule(fraction, seed=seed, block=10)
        assert schedule.decide(0).propensity == fraction
        count += chosen(schedule, 20)
    error = np.sqrt(fraction * (1 - fraction) / draws)
    assert (np.abs(count / draws - fraction) < 5 * error).all()


@given(order=st.permutations(list(range(60))))
@settings(max_examples=20, deadline=None)
def test_the_decision_does_not_depend_on_who_asks_first(order: list[int]) -> None:
    one, other = AnchorSchedule(0.25, group_size=3, seed=4), AnchorSchedule(0.25, group_size=3, seed=4)
    forwards = {e: one.decide(e) for e in range(60)}
    assert {e: other.decide(e) for e in order} == forwards


def test_the_members_of_a_group_agree() -> None:
    anchors = chosen(AnchorSchedule(0.3, group_size=8, seed=2), 800).reshape(-1, 8)
    assert (anchors == anchors[:, :1]).all()
    assert 0 < anchors[:, 0].sum() < 100


def test_fractions_zero_and_one_and_their_propensities() -> None:
    assert not chosen(AnchorSchedule(0.0), 500).any()
    assert chosen(AnchorSchedule(1.0), 500).all()
    assert AnchorSchedule(0.0).decide(0).propensity == 0.0
    assert AnchorSchedule(1.0).decide(0).propensity == 1.0


def test_seeds_differ() -> None:
    assert (chosen(AnchorSchedule(seed=1), 200) != chosen(AnchorSchedule(seed=2), 200)).any()


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused_with_its_value(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"fraction must be in \[0, 1\], got {fraction}"):
        AnchorSchedule(fraction)


def test_senseless_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="episode must not be negative, got -1"):
        AnchorSchedule().decide(-1)
    with pytest.raises(ValueError, match="at least 1, got 0 and 20"):
        AnchorSchedule(group_size=0)
    with pytest.raises(ValueError, match="seed must not be negative, got -3"):
        AnchorSchedule(seed=-3)


@given(sizes=st.lists(st.integers(0, 9), max_size=30), capacity=st.integers(1, 12))
def test_a_window_holds_the_newest_pairs_in_order(sizes: list[int], capacity: int) -> None:
    window = PairWindow(capacity)
    seen: list[float] = []
    for size in sizes:
        values = np.arange(len(seen), len(seen) + size, dtype=float)
        window.push(values, values + 0.5, values.astype(int))
        seen.extend(values)
    predicted, real, context = window.arrays()
    assert predicted.tolist() == seen[-capacity:]
    assert real.tolist() == [v + 0.5 for v in seen[-capacity:]]
    assert context.tolist() == [int(v) for v in seen[-capacity:]]
    assert len(window) == len(predicted)


def test_the_corrections_import_numpy_and_scipy_and_nothing_above_them() -> None:
    folder = pathlib.Path(wmrl_gym.corrections.__file__).parent
    allowed = {"numpy", "scipy", "wmrl_gym", *sys.stdlib_module_names}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
                own = name.startswith(("wmrl_gym.corrections", "wmrl_gym.randomness", "wmrl_gym.batch"))
                assert own or not name.startswith("wmrl_gym"), f"{path.name} imports {name}"


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 9), st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_many_decisions_at_once_are_the_decisions_one_by_one(seed: int, fraction: float, size: int, episodes: list[int]) -> None:
    schedule = AnchorSchedule(fraction, group_size=size, seed=seed)
    anchor, propensity = schedule.decide_many(np.array(episodes))
    single = [schedule.decide(episode) for episode in episodes]
    assert anchor.tolist() == [each.anchor for each in single]
    assert propensity.tolist() == [each.propensity for each in single]
