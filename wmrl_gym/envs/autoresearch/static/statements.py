"""A script in statements, so that what was learnt of one holds in any script that it stands in."""

from __future__ import annotations

import ast
import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_BEGINNING = r"^(?!(?:else|elif|except|finally)\b)(?=[^\s#)\]}])"
_START = re.compile(_BEGINNING, re.MULTILINE)
_TEXTS = ('"""', "'''")
_START_OR_TEXT = re.compile(
    rf"(?P<start>{_BEGINNING})"
    r"|#[^\n]*"
    r"|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}"
    r"|\"(?:\\.|[^\\\n\"])*\"|'(?:\\.|[^\\\n'])*'",
    re.MULTILINE | re.DOTALL,
)
"""Texts are passed over, so that their lines begin no statement; only scripts with long ones are worth it."""
_WHOLE = ("\r", "\f", "\\\n", "\ufeff")
"""Where one of these is, lines say little about where statements begin."""
_WARNINGS = threading.Lock()
_AT_HAND = 16_384
"""Statements that are remembered."""


@functools.lru_cache(maxsize=2048)
def statements(code: str) -> tuple[str, ...]:
    r"""A script in pieces, which are statements that begin a line.

    Where each piece can be parsed by itself, the script's tree is theirs put together: what is read before a piece ends is the
    same whatever follows. A piece that cannot be parsed, such as a part of a text that looks like a statement, says nothing.

    >>> statements("import os\n\nif os:\n    a = 1\nelse:\n    a = [\n]\n# done\n")
    ('import os\n\n', 'if os:\n    a = 1\nelse:\n    a = [\n]\n# done\n')
    """
    if any(mark in code for mark in _WHOLE):
        return (code,)
    if any(mark in code for mark in _TEXTS):
        starts = [match.start() for match in _START_OR_TEXT.finditer(code) if match["start"] is not None]
    else:
        starts = [match.start() for match in _START.finditer(code)]
    # A decorator belongs to what follows.
    starts = [start for start, before in zip(starts, [-1, *starts], strict=False) if before < 0 or code[before] != "@"]
    if len(starts) < 2:
        return (code,)
    starts[0] = 0
    return tuple([code[start:end] for start, end in zip(starts, [*starts[1:], len(code)], strict=True)])


class Remembered(dict[Any, Any]):
    """By statement; all are forgotten where there are too many. Each use is one step, so that threads may share it."""

    def keep(self, found: dict[Any, Any]) -> None:
        """Remember some more."""
        if len(self) > _AT_HAND:
            self.clear()
        self.update(found)


COMPILES = Remembered()
"""Statements that are known to compile."""
FEW = 4
"""So many new statements are parsed one by one; if there are more, the whole script is, once."""


def certainly_compiles(code: str, compiles: Callable[[str], bool]) -> bool:
    """Whether a script is made of statements that were compiled before, and a few new ones that compile; False says nothing.

    Args:
        code: the script.
        compiles: tells of a new statement whether it does.
    """
    pieces = statements(code)
    new = [piece for piece in pieces if piece not in COMPILES]
    if len(new) > FEW or len(pieces) <= FEW or among_others(code) or not all(map(compiles, new)):
        return False
    COMPILES.keep(dict.fromkeys(new, True))
    return True


def among_others(code: str) -> bool:
    """Whether a statement may be right or wrong for what stands around it, which it is by these words only."""
    return "global" in code or "__future__" in code


def bodies_of(tree: ast.Module, pieces: tuple[str, ...]) -> list[list[ast.stmt]] | None:
    """The statements of each piece; None where a piece does not begin with one, as it is a part of one."""
    line, firsts = 1, list[int]()
    for piece in pieces:
        firsts.append(line)
        line += piece.count("\n")
    bodies: list[list[ast.stmt]] = [[] for _ in pieces]
    number, begun = 0, {0}
    for node in tree.body:
        decorators = getattr(node, "decorator_list", ())
        at = min([node.lineno, *(each.lineno for each in decorators)])
        while number + 1 < len(firsts) and firsts[number + 1] <= at:
            number += 1
        # Behind the end of a text, a line holds a statement that does not begin it.
        if firsts[number] == at and (node.col_offset == 0 or decorators):
            begun.add(number)
        bodies[number].append(node)
    return bodies if len(begun) == len(pieces) else None


def parsed(code: str) -> ast.Module:
    with unwarned():
        return ast.parse(code)


@contextmanager
def unwarned() -> Iterator[None]:
    """For the block, what a script does doubtfully is nobody's business: a filter of "error" would make it a syntax error."""
    with _WARNINGS, warnings.catch_warnings():  # Python's filters are global
        warnings.simplefilter("ignore")
        yield
