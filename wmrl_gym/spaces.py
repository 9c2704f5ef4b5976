"""Spaces that Gymnasium lacks.

:class:`gymnasium.spaces.Text` lists its characters one by one: over all of Unicode it takes seconds to build and megabytes to
pickle, and its shared memory refuses what it does not list and is read only once. :class:`UnicodeText` lists nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, overload

import gymnasium as gym
import numpy as np
from gymnasium.spaces import utils as space_utils
from gymnasium.vector.utils import shared_memory as gym_shared_memory
from numpy.typing import NDArray

__all__ = ["UnicodeText"]

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_OTHERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~éßλж中🙂"
_DRAWN: Final = tuple(_LETTERS + _OTHERS + " \n")
_WEIGHTS: Final = np.array([0.65 / len(_LETTERS)] * len(_LETTERS) + [0.20 / len(_OTHERS)] * len(_OTHERS) + [0.12, 0.03])
_SAMPLED_LENGTH: Final = 80
"""The longest text that ``sample`` draws, in characters, unless ``min_length`` asks for more."""

# "surrogatepass" because a str may hold a lone surrogate (undecodable bytes that some program printed) and must survive.
_ENCODING: Final = ("utf-32-le", "surrogatepass")


class UnicodeText(gym.spaces.Text):
    r"""Any ``str`` from ``min_length`` to ``max_length`` characters: every Unicode character, spaces, newlines, and "" too.

    Lengths count code points, as ``len`` does. A batch of texts is a tuple of ``str``. In an ``AsyncVectorEnv`` a text takes
    ``4 * (max_length + 1)`` bytes of shared memory, and with its ``copy=False`` the batch is a live sequence instead of a tuple:
    it shows the workers' latest texts, and ``tuple(batch)`` keeps them.

    Args:
        max_length: the longest text, in characters, inclusive.
        min_length: the shortest text, in characters, inclusive.
        seed: seed or generator for :meth:`sample`.

    Raises:
        TypeError: a length is not an integer.
        ValueError: not ``0 <= min_length <= max_length``.

    >>> space = UnicodeText(1000)
    >>> space
    UnicodeText(1000)
    >>> "" in space, "naïve\nπ ≈ 3.14159" in space, "x" * 1001 in space, b"bytes" in space
    (True, True, False, False)
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        for name, length in (("max_length", max_length), ("min_length", min_length)):
            if isinstance(length, bool) or not isinstance(length, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {length!r} of type {type(length).__name__}")
        if not 0 <= min_length <= max_length:
            raise ValueError(f"expected 0 <= min_length <= max_length, got min_length={min_length} and max_length={max_length}")
        self.min_length = int(min_length)
        self.max_length = int(max_length)
        # Text.__init__ would build and keep a table of characters: that table is what makes Text slow and large.
        gym.Space.__init__(self, dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a ``str`` of an allowed length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """Draw a readable text of at most 80 characters (more only where ``min_length`` does), sometimes of several lines.

        Args:
            mask: ``(length, allowed)``: the length of the text, or ``None`` to draw it; and int8, shape
                ``(len(self.character_list),)``, which of the characters may be drawn, or ``None`` for all, all alike.
            probability: as ``mask``, with float64 probabilities that sum to 1.

        Raises:
            ValueError: both arguments are given.
            AssertionError: a length, dtype or shape is not as described.
        """
        if mask is not None or probability is not None:
            return str(super().sample(self._with_length(mask), self._with_length(probability)))
        characters = self.np_random.choice(len(_DRAWN), size=self._draw_length(), p=_WEIGHTS)
        return "".join(_DRAWN[i] for i in characters)

    def _draw_length(self) -> int:
        longest = min(self.max_length, max(self.min_length, _SAMPLED_LENGTH))
        return int(self.np_random.integers(self.min_length, longest + 1))

    def _with_length(self, mask: Any) -> Any:
        # Text draws a missing length up to max_length, which is more than anyone wants to read.
        if isinstance(mask, tuple) and len(mask) == 2 and mask[0] is None:
            return self._draw_length(), mask[1]
        return mask

    @property
    def character_set(self) -> frozenset[str]:
        """The characters that :meth:`sample` draws from. Texts in the space may hold any others."""
        return frozenset(_DRAWN)

    @property
    def character_list(self) -> tuple[str, ...]:
        """The characters that :meth:`sample` draws from, in the order of its masks."""
        return _DRAWN

    def character_index(self, char: str) -> np.int32:
        """The position of ``char`` in :attr:`character_list`.

        Raises:
            ValueError: ``sample`` never draws ``char``.
        """
        return np.int32(_DRAWN.index(char))

    @property
    def characters(self) -> str:
        """The characters that :meth:`sample` draws from, sorted."""
        return "".join(sorted(_DRAWN))

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no natural vector."""
        return False

    def __repr__(self) -> str:
        """The expression that builds this space."""
        shortest = f", min_length={self.min_length}" if self.min_length else ""
        return f"UnicodeText({self.max_length}{shortest})"

    def __eq__(self, other: object, /) -> bool:
        """Whether ``other`` is a ``UnicodeText`` with the same bounds."""
        return isinstance(other, UnicodeText) and (self.min_length, self.max_length) == (other.min_length, other.max_length)


class _SharedTexts(Sequence[str]):
    """The texts in shared memory as they are now.

    ``AsyncVectorEnv`` reads shared memory once, keeps the result, and hands out deep copies of it: what it keeps has to be a
    view, and the copies are the tuples. Not a subclass of tuple, whose contents C code (``str.join``, numpy) would read
    behind our back, stale.
    """

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._rows[index]
        text: str = row[1 : 1 + row[0]].tobytes().decode(*_ENCODING)
        return text

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, _SharedTexts)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return tuple, (list(self),)  # copies and pickles are tuples


# Batching, concatenating and iterating need no function of their own: the ones for Text make and take tuples of str. ``iterate``
# must not have one: Gymnasium zips the members of a Tuple whose every member is registered.


def _rows(space: UnicodeText, memory: Any, n: int) -> NDArray[np.int32]:
    """Shared memory as int32, shape (n, 1 + max_length): each row is a length and then that many code points."""
    return np.frombuffer(memory.get_obj(), dtype=np.int32).reshape(n, 1 + space.max_length)


@gym_shared_memory.create_shared_memory.register(UnicodeText)
def _create_shared_memory(space: UnicodeText, n: int = 1, ctx: Any = None) -> Any:
    if ctx is None:
        import multiprocessing as ctx
    return ctx.Array(np.dtype(np.int32).char, n * (1 + space.max_length))


@gym_shared_memory.read_from_shared_memory.register(UnicodeText)
def _read_from_shared_memory(space: UnicodeText, shared_memory: Any, n: int = 1) -> Sequence[str]:
    return _SharedTexts(_rows(space, shared_memory, n))


@gym_shared_memory.write_to_shared_memory.register(UnicodeText)
def _write_to_shared_memory(space: UnicodeText, index: int, value: Any, shared_memory: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"expected a str for {space}, got {value!r} of type {type(value).__name__}")
    if len(value) > space.max_length:
        raise ValueError(f"expected a text of at most {space.max_length} characters for {space}, got {len(value)}")
    row = _rows(space, shared_memory, -1)[index]
    row[0] = len(value)
    row[1 : 1 + len(value)] = np.frombuffer(value.encode(*_ENCODING), dtype=np.int32)


@space_utils.is_space_dtype_shape_equiv.register(UnicodeText)
def _is_space_dtype_shape_equiv(space_1: UnicodeText, space_2: gym.Space[Any]) -> bool:
    return isinstance(space_2, UnicodeText) and space_1.max_length == space_2.max_length


def _refuse_to_flatten(space: UnicodeText, *_: Any) -> NoReturn:
    raise ValueError(f"{space} cannot be flattened: a text has no natural vector; encode it with an observation wrapper first")


for _function in (space_utils.flatdim, space_utils.flatten, space_utils.unflatten, space_utils.flatten_space):
    _function.register(UnicodeText, _refuse_to_flatten)
