"""Checks of numbers that people give a model by hand, in Python, on a command line or in a saved file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

MOST = 2**31 - 1
"""The largest whole number that any argument may be."""


def check_whole(name: str, value: Any, *, least: int) -> None:
    """Check that an argument is a whole number in [least, MOST].

    Raises:
        TypeError: it is something else than a whole number.
        ValueError: it is out of range.

    >>> check_whole("capacity", 1e9, least=1)
    Traceback (most recent call last):
        ...
    TypeError: capacity must be a whole number, got 1000000000.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > MOST:
        raise ValueError(f"{name} must be at most {MOST}, got {value}")


def check_all_whole(named: Mapping[str, tuple[Any, int]]) -> None:
    """Check several arguments, each given with the least that it may be; see :func:`check_whole`."""
    for name, (value, least) in named.items():
        check_whole(name, value, least=least)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Check that an argument is a positive, finite number.

    Raises:
        TypeError: it is something else than a number.
        ValueError: it is out of range.
    """
    _check_number(name, value)
    if not (value > 0 and isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def check_not_negative(name: str, value: Any) -> None:
    """Check that an argument is a finite number, 0 or more.

    Raises:
        TypeError: it is something else than a number.
        ValueError: it is out of range.
    """
    _check_number(name, value)
    if not (value >= 0 and isfinite(value)):
        raise ValueError(f"{name} must be 0 or more and finite, got {value}")


def check_widths(hidden: Any, *, networks: int, most: int = 2**28) -> None:
    """Check the widths of the hidden layers of so many networks, and that these are not senselessly large.

    Args:
        hidden: widths.
        networks: how many have them.
        most: weights between hidden layers, of all networks together. Training takes four times their memory.

    Raises:
        TypeError: no list of whole numbers.
        ValueError: out of range.
    """
    if isinstance(hidden, (str, bytes, Mapping)) or not isinstance(hidden, Iterable):
        raise TypeError(f"hidden must be a list of widths, got {hidden!r}")
    widths = list(hidden)
    if not widths or any(isinstance(each, (int, np.integer)) and each < 1 for each in widths):
        raise ValueError(f"hidden must be the widths of at least one layer, got {tuple(widths)}")
    for width in widths:
        check_whole("each width in hidden", width, least=1)
    weights = networks * (int(widths[0]) + sum(int(a) * int(b) for a, b in pairwise(widths)))
    if weights > most:
        raise ValueError(f"hidden={widths} makes {weights:,} weights in {networks} networks, at most {most:,} can be trained")
