"""Sentences: every task has some, held-out ones are never shown in training, and none gives a target away."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.envs.manipulation.actions import checked_action
from wmrl_gym.envs.manipulation.instructions import checked_instruction, instruction_table, known_task, whereabouts
from wmrl_gym.envs.manipulation.metaworld import MetaWorld, draw_start
from wmrl_gym.registration import METAWORLD_TASKS

TABLE = instruction_table()


def test_every_registered_task_has_sentences_and_no_other_does() -> None:
    assert set(TABLE) == set(METAWORLD_TASKS)
    assert len(METAWORLD_TASKS) == len(set(METAWORLD_TASKS)) == 50


def test_each_task_has_several_sentences_to_train_on_and_others_held_out() -> None:
    for task, entry in TABLE.items():
        assert len(entry.sentences) >= 3, task
        assert len(entry.held_out) >= 2, task


def test_no_sentence_stands_for_two_tasks() -> None:
    sentences = [sentence for entry in TABLE.values() for sentence in (*entry.sentences, *entry.held_out)]
    assert len(sentences) == len(set(sentences))


def test_sentences_are_plain_words() -> None:
    for entry in TABLE.values():
        for sentence in (*entry.sentences, *entry.held_out):
            assert re.fullmatch(r"[a-z][a-z ,'-]+[a-z]", sentence), sentence


def test_opposite_tasks_say_opposite_things() -> None:
    assert "counter-clockwise" in " ".join(TABLE["faucet-open"].sentences)
    assert all("open" not in sentence for sentence in TABLE["drawer-close"].sentences)


def test_an_unknown_task_is_answered_with_the_closest_names() -> None:
    with pytest.raises(ValueError, match=r"no task 'drawer-opne'; the closest are drawer-open"):
        known_task("drawer-opne", MetaWorld.tasks)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_instruction_must_say_something(text: str) -> None:
    with pytest.raises(ValueError, match="must say something"):
        checked_instruction(text)


def test_whereabouts_name_only_axes_that_vary() -> None:
    low, high = np.array([-0.1, 0.6, 0.02]), np.array([0.1, 0.9, 0.02])
    assert whereabouts(np.array([0.09, 0.62, 0.02]), low, high) == "on the right and near"


@given(st.integers(0, 2**31 - 1), st.sampled_from(["id", "ood", "all"]))
def test_initial_states_lie_where_their_split_says(seed: int, split: str) -> None:
    from gymnasium.spaces import Box

    space = Box(np.array([-0.1, 0.4, 0.02]), np.array([0.1, 0.8, 0.02]), dtype=np.float64)
    drawn = draw_start(space, split, np.random.default_rng(seed))  # type: ignore[arg-type]
    assert space.contains(drawn)
    unit = (drawn[:2] - space.low[:2]) / (space.high[:2] - space.low[:2])
    inner = bool((np.abs(unit - 0.5) <= 0.7**0.5 / 2 + 1e-6).all())
    assert split == "all" or inner == (split == "id")


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=4, max_size=4))
def test_an_action_is_inside_the_space_or_refused(values: list[float]) -> None:
    if np.isfinite(np.array(values)).all():
        checked = checked_action(values, MetaWorld.action_space)
        assert MetaWorld.action_space.contains(checked)
    else:
        entry = int(np.flatnonzero(~np.isfinite(values))[0])
        with pytest.raises(ValueError, match=f"entry {entry} of the action"):
            checked_action(values, MetaWorld.action_space)


def test_out_of_range_actions_are_clipped_or_refused_as_asked() -> None:
    assert checked_action([0, 3, 0, -9], MetaWorld.action_space).tolist() == [0.0, 1.0, 0.0, -1.0]
    with pytest.raises(ValueError, match=r"entry 1 of the action is 3.0, expected a number in \[-1.0, 1.0\]"):
        checked_action([0, 3, 0, 0], MetaWorld.action_space, out_of_range="error")
    with pytest.raises(ValueError, match=r"shape \(4,\), got \(3,\)"):
        checked_action([0, 0, 0], MetaWorld.action_space)
