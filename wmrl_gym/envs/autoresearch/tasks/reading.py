"""Reads csv files, the same way for submissions, answers, samples and a metric's process. Needs the standard library only.

A byte-order mark is no part of a name, a field may be of any length, and every cell is text. Ids are text above all: ``00001``,
``NA`` and ``1.10`` are three different ids. Whoever reads a file with pandas and writes it again changes them, though, to ``1``,
nothing and ``1.1``: where only one id can be meant by such a spelling, it is that one.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT = threading.Lock()


def _let_go() -> None:
    """In a forked child: a thread of the parent may hold the lock for ever."""
    global _LIMIT
    _LIMIT = threading.Lock()


os.register_at_fork(after_in_child=_let_go)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_NOTHING = frozenset(
    {"", "na", "nan", "null", "none", "n/a", "#n/a", "<na>", "-nan", "#na", "1.#ind", "1.#qnan", "-1.#ind", "-1.#qnan"}
)
"""What pandas takes for a missing value, in lower case."""
_MOST_KEYS = 3
"""Columns that name a row together, at most."""

Key = tuple[str, ...]


class BadTable(ValueError):
    """Some bytes are no table; the message completes a sentence that begins with their name."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table as text.

    Args:
        header: the columns' names.
        rows: the rows, each as long as the header.
        lines: the line on which each row ends.
    """

    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def keys(self, columns: Sequence[str]) -> list[Key]:
        """What names each row."""
        places = [self.header.index(name) for name in columns]
        return [tuple(row[place].strip() for place in places) for row in self.rows]

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]


def parse_rows(content: bytes, *, columns: Sequence[str] | None = None) -> Rows:
    r"""A table out of the bytes of a csv file.

    Args:
        content: the file.
        columns: those that it must have, in any order; None for any.

    Raises:
        BadTable: with what is wrong.

    >>> parse_rows(b"\xef\xbb\xbfid,y\n01,a\n").rows
    [['01', 'a']]
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadTable("is not UTF-8 text") from error
    if not text.strip():
        raise BadTable("is empty")
    if "\0" in text:
        raise BadTable("is not valid csv: it holds a NUL character")
    with _fields_of_any_length(len(text)):
        reader = csv.reader(io.StringIO(text, newline=""))
        try:
            found = [(row, reader.line_num) for row in reader if row]
        except csv.Error as error:
            raise BadTable(f"is not valid csv: {error}") from error
    header = tuple(name.strip() for name in found[0][0])
    if columns is not None and sorted(header) != sorted(columns):
        raise BadTable(f"has wrong columns: expected {_brief(columns)}, got {_brief(header)}")
    for row, line in found[1:]:
        if len(row) != len(header):
            raise BadTable(f"is not valid: line {line} has {len(row)} fields, expected {len(header)}")
    return Rows(header, [row for row, _ in found[1:]], [line for _, line in found[1:]])


def _brief(names: Sequence[str]) -> str:
    text = repr(list(names))
    return text if len(text) <= 120 else f"{text[:117]}..."


def read_rows_of(path: Path) -> Rows:
    """A table out of a file: csv, or one object of JSON on each line.

    Raises:
        BadTable: it cannot be read, or with what is wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadTable(f"cannot be read: {error.strerror}") from error
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return parse_rows(content)
    try:
        objects = [json.loads(line) for line in content.decode("utf-8-sig").splitlines() if line.strip()]
        header = tuple(dict.fromkeys(name for each in objects for name in each))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadTable(f"is not valid JSON lines: {error}") from error
    rows = [[_cell(each.get(name)) for name in header] for each in objects]
    return Rows(header, rows, list(range(1, len(rows) + 1)))


def _cell(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


@contextlib.contextmanager
def _fields_of_any_length(length: int) -> Iterator[None]:
    """Let csv fields have any length in the block; the csv module's limit is one for the whole process."""
    with _LIMIT:
        before = csv.field_size_limit(max(length, 1 << 17))
        try:
            yield
        finally:
            csv.field_size_limit(before)


def spelling(text: str) -> str:
    """How a cell is spelt after a program has read it as a number or a missing value and written it again.

    >>> [spelling(text) for text in ("00001", "1.10", "NA", "1e3", "r01")]
    ['1', '1.1', '', '1000', 'r01']
    """
    if text.lower() in _NOTHING:
        return ""
    if len(text) > 300 or not _NUMBER.fullmatch(text):
        return text
    if text.lstrip("+-").isdigit():
        return str(int(text))
    value = float(text)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


class Keys:
    """Finds rows by what names them, exactly, or else by a spelling that only one of them can have.

    Args:
        keys: those that there are.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._exact = {key: place for place, key in enumerate(keys)}
        spelled = [tuple(map(spelling, key)) for key in keys]
        count = Counter(spelled)
        self._spelled = {key: place for place, key in enumerate(spelled) if count[key] == 1}
        self.count = len(keys)

    def place(self, key: Key) -> int | None:
        """The place of the row that a key means; None where it means none."""
        place = self._exact.get(key)
        return self._spelled.get(tuple(map(spelling, key))) if place is None else place

    def order(self, keys: Iterable[Key]) -> list[int]:
        """For each key that there is, the place of the given one that means it.

        Raises:
            BadTable: one is given twice, unknown or missing.
        """
        found, unknown = [-1] * self.count, 0
        for number, key in enumerate(keys):
            place = self.place(key)
            if place is None:
                unknown += 1
            elif found[place] >= 0:
                raise BadTable(f"an id appears more than once: {', '.join(key)[:100]!r}")
            else:
                found[place] = number
        missing = found.count(-1)
        if missing or unknown:
            raise BadTable(f"{missing} ids are missing and {unknown} are unknown")
        return found


def find_keys(sample: Rows, answers: Rows) -> tuple[str, ...] | None:
    """The columns that name rows: the first that is unique and the same in both tables, else the first two or three together."""
    shared = [name for name in sample.header if name in answers.header]
    for count in range(1, _MOST_KEYS + 1):
        for columns in itertools.combinations(shared, count):
            keys = sample.keys(columns)
            if len(set(keys)) < len(keys):
                continue
            try:
                Keys(keys).order(answers.keys(columns))
            except BadTable:
                continue
            return columns
    return None


def to_csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The text of a csv file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
