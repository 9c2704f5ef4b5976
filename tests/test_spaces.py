"""``UnicodeText`` alone, and inside Gymnasium's checkers and vector environments."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, is_space_dtype_shape_equiv, unflatten
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import example, given
from hypothesis import strategies as st

from wmrl_gym.spaces import UnicodeText

LENGTH = 24

TEXTS = ("", "naïve café", "🙂" * LENGTH, "line one\nline two\r\n\ttab", "\x00nul\x00", "\U0010ffff\ud800")

"""Empty, accented, the longest text of four-byte characters, control characters, NUL, a lone surrogate."""

texts = st.text(st.characters(), max_size=LENGTH) | st.sampled_from(TEXTS)

"""Any str that fits, lone surrogates included."""


class Echo(gym.Env[dict[str, Any], dict[str, Any]]):
    """Observes the text that the action said, and how long it was; ends when told to."""

    def __init__(self, start: str = "") -> None:
        self.observation_space = gym.spaces.Dict(
            {"text": UnicodeText(LENGTH), "length": gym.spaces.Box(0, LENGTH, shape=(1,), dtype=np.int64)}
        )
        self.action_space = gym.spaces.Dict({"say": UnicodeText(LENGTH), "stop": gym.spaces.Discrete(2)})
        self.start = start

    def _observe(self, text: str) -> dict[str, Any]:
        return {"text": text, "length": np.array([len(text)])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(self.start), {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._observe(action["say"]), float(len(action["say"])), bool(action["stop"]), False, {}


@given(texts)
def test_any_text_up_to_the_length_is_inside(text: str) -> None:
    assert text in UnicodeText(LENGTH)
    assert text + "é" * (LENGTH + 1 - len(text)) not in UnicodeText(LENGTH)
    assert (text in UnicodeText(LENGTH, min_length=3)) == (len(text) >= 3)


@pytest.mark.parametrize("other", [b"bytes", None, 3, ("a",), ["a"], np.array(["a"])])
def test_nothing_but_str_is_inside(other: object) -> None:
    assert other not in UnicodeText(LENGTH)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"max_length": -1}, ValueError, "max_length=-1"),
        ({"max_length": 3, "min_length": 4}, ValueError, "min_length=4 and max_length=3"),
        ({"max_length": 3, "min_length": -1}, ValueError, "min_length=-1"),
        ({"max_length": 3.5}, TypeError, "max_length must be an integer, got 3.5"),
        ({"max_length": True}, TypeError, "got True of type bool"),
        ({"max_length": 3, "min_length": "1"}, TypeError, "min_length must be an integer, got '1'"),
    ],
)
def test_bad_bounds_raise_with_the_actual_values(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        UnicodeText(**arguments)


def test_numpy_integers_are_lengths() -> None:
    assert UnicodeText(np.int64(5), min_length=np.int32(2)) == UnicodeText(5, min_length=2)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_samples_are_inside_and_modest(shortest: int, more: int, seed: int) -> None:
    space = UnicodeText(shortest + more, min_length=shortest, seed=seed)
    sample = space.sample()
    assert type(sample) is str
    assert sample in space
    assert len(sample) <= max(80, shortest)


def test_samples_are_readable_and_sometimes_have_lines() -> None:
    space = UnicodeText(10_000, seed=0)
    samples = [space.sample() for _ in range(200)]
    assert all(character.isprintable() or character == "\n" for sample in samples for character in sample)
    assert 20 < sum("\n" in sample for sample in samples) < 200
    assert any(not sample.isascii() for sample in samples)
    assert len(set(samples)) > 190


def test_the_seed_decides_the_samples() -> None:
    space = UnicodeText(100)
    assert space.seed(3) == 3
    first = [space.sample() for _ in range(5)]
    space.seed(3)
    assert [space.sample() for _ in range(5)] == first
    assert [UnicodeText(100, seed=4).sample() for _ in range(5)] != first
    assert UnicodeText(100, seed=np.random.default_rng(1)).sample() == UnicodeText(100, seed=np.random.default_rng(1)).sample()


def test_masks_choose_length_and_characters() -> None:
    space = UnicodeText(1000, seed=0)
    only = np.array([character in "ab" for character in space.character_list], dtype=np.int8)
    sample = space.sample(mask=(9, only))
    assert len(sample) == 9
    assert set(sample) == {"a", "b"}
    assert len(space.sample(mask=(None, only))) <= 80
    assert len(space.sample(probability=(7, None))) == 7
    assert space.sample(probability=(4, np.eye(len(only))[space.character_index("🙂")])) == "🙂🙂🙂🙂"


def test_both_masks_at_once_raise() -> None:
    with pytest.raises(ValueError, match="Only one of `mask` or `probability`"):
        UnicodeText(5).sample(mask=(1, None), probability=(1, None))


@pytest.mark.parametrize("mask", [(6, None), (1, np.ones(3, dtype=np.int8)), "ab"])
def test_malformed_masks_raise(mask: Any) -> None:
    with pytest.raises(AssertionError, match=r"Text sample|mask"):
        UnicodeText(5).sample(mask=mask)


def test_the_drawn_characters_are_consistent() -> None:
    space = UnicodeText(5)
    assert space.character_set == set(space.characters) == set(space.character_list)
    assert len(space.characters) == len(space.character_list)
    assert [space.character_index(character) for character in space.character_list] == list(range(len(space.character_list)))


@pytest.mark.parametrize("length", [0, 10, 1_000_000])
def test_a_pickle_is_small_and_keeps_the_generator(length: int) -> None:
    space = UnicodeText(length, seed=5)
    data = pickle.dumps(space)
    assert len(data) < 1000
    restored = pickle.loads(data)
    assert restored == space
    assert [restored.sample() for _ in range(3)] == [space.sample() for _ in range(3)]


def test_equality_needs_the_same_kind_and_bounds() -> None:
    space = UnicodeText(5, min_length=1)
    assert space == UnicodeText(5, min_length=1)
    assert space != UnicodeText(5)
    assert space != UnicodeText(6, min_length=1)
    alike = gym.spaces.Text(5, min_length=1, charset=space.character_set)
    assert space != alike
    assert alike != space


@pytest.mark.parametrize("space", [UnicodeText(5), UnicodeText(7, min_length=2)])
def test_repr_builds_the_space(space: UnicodeText) -> None:
    assert eval(repr(space)) == space


@given(st.lists(texts))
def test_json_round_trip(samples: list[str]) -> None:
    space = UnicodeText(LENGTH)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples


@pytest.mark.parametrize(
    "flat",
    [flatdim, flatten_space, lambda space: flatten(space, ""), lambda space: unflatten(space, np.zeros(5))],
    ids=["flatdim", "flatten_space", "flatten", "unflatten"],
)
def test_flattening_raises_and_says_why(flat: Callable[[gym.Space[Any]], Any]) -> None:
    space = UnicodeText(5)
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match=r"UnicodeText\(5\) cannot be flattened"):
        flat(space)


def test_a_dict_with_a_text_is_not_flattened_either() -> None:
    with pytest.raises(ValueError, match=r"UnicodeText\(5\) cannot be flattened"):
        gym.wrappers.FlattenObservation(_with_space(gym.spaces.Dict({"text": UnicodeText(5)})))


def _with_space(space: gym.Space[Any]) -> gym.Env[Any, Any]:
    env = Echo()
    env.observation_space = space
    return env


def test_equivalent_shapes_are_equal_longest_lengths() -> None:
    space = UnicodeText(5)
    assert is_space_dtype_shape_equiv(space, UnicodeText(5, min_length=3))
    assert not is_space_dtype_shape_equiv(space, UnicodeText(6))
    assert not is_space_dtype_shape_equiv(space, gym.spaces.Text(5))
    assert not is_space_dtype_shape_equiv(gym.spaces.Text(5), space)


@given(st.lists(texts, min_size=1, max_size=5))
def test_batches_are_tuples_of_str(batch: list[str]) -> None:
    space = UnicodeText(LENGTH)
    batched = batch_space(space, len(batch))
    joined = concatenate(space, batch, create_empty_array(space, len(batch)))
    assert joined == tuple(batch)
    assert type(joined) is tuple
    assert joined in batched
    assert list(iterate(batched, joined)) == batch


def test_empty_arrays_and_batched_samples_lie_inside() -> None:
    space = UnicodeText(9, min_length=2, seed=0)
    batched = batch_space(space, 4)
    assert create_empty_array(space, 4) in batched
    sample = batched.sample()
    assert sample in batched
    assert len(set(sample)) > 1


@given(st.lists(texts, min_size=1, max_size=5), st.data())
@example(["🙂" * LENGTH, "", "a\x00", "\ud800"], None)
def test_shared_memory_gives_back_what_was_written_last(batch: list[str], data: Any) -> None:
    space = UnicodeText(LENGTH)
    memory = create_shared_memory(space, n=len(batch))
    view = read_from_shared_memory(space, memory, n=len(batch))
    assert tuple(view) == ("",) * len(batch)
    for index, text in enumerate(batch):
        write_to_shared_memory(space, index, "🙂" * LENGTH, memory)
        write_to_shared_memory(space, index, text, memory)
    assert tuple(view) == tuple(batch)
    kept = copy.deepcopy(view)
    assert type(kept) is tuple
    write_to_shared_memory(space, 0, "changed", memory)
    assert kept == tuple(batch)
    assert view[0] == "changed"


def test_the_view_of_shared_memory_reads_like_a_tuple() -> None:
    space = UnicodeText(LENGTH)
    memory = create_shared_memory(space, n=3)
    view = read_from_shared_memory(space, memory, n=3)
    for index, text in enumerate(("a", "🙂", "")):
        write_to_shared_memory(space, index, text, memory)
    assert view == ("a", "🙂", "")
    assert view != ("a", "🙂", "?")
    assert (view[-1], view[:2], len(view), "🙂" in view, "-".join(view)) == ("", ("a", "🙂"), 3, True, "a-🙂-")
    assert repr(view) == "('a', '🙂', '')"
    assert np.array(view).tolist() == ["a", "🙂", ""]
    assert pickle.loads(pickle.dumps(view)) == ("a", "🙂", "")
    with pytest.raises(IndexError):
        view[3]


def test_shared_memory_refuses_what_does_not_fit() -> None:
    space = UnicodeText(3)
    memory = create_shared_memory(space, n=1)
    with pytest.raises(ValueError, match=r"at most 3 characters for UnicodeText\(3\), got 4"):
        write_to_shared_memory(space, 0, "four", memory)
    with pytest.raises(TypeError, match=r"expected a str for UnicodeText\(3\), got b'abc' of type bytes"):
        write_to_shared_memory(space, 0, b"abc", memory)
