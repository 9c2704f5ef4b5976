"""What a script says, statement by statement: each is read once, and known again in whatever script it stands."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from wmrl_gym.envs.autoresearch.static.statements import COMPILES, FEW, Remembered, among_others, bodies_of, parsed, statements

Origin: TypeAlias = tuple[str, tuple[str, str]]
"""A name, and the (module, name) that it is imported from; "*" stands for all that a module gives away."""

_NOTHING: frozenset[Any] = frozenset()
_SEEN, _KNOWN = Remembered(), Remembered()
"""Hashes of statements that occurred, and facts of those that occurred again."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is read off some statements, or a whole script.

    Args:
        nodes: of the syntax tree.
        loops: ``for`` and ``while``.
        functions: ``def`` and ``lambda``.
        tries: ``try``.
        calls: calls.
        largest: the largest number that is written, at most 1e12; 0 for none.
        texts: the texts that are written.
        names: names, attributes and keywords.
        imports: modules that are imported, or imported from, with their dots.
        members: (module, name) of what is imported from modules.
        stars: modules of which everything is imported.
        read: names that are read.
        bound: names that are bound, other than by a star.
        origins: (depth in the tree, what is imported from scikit-learn there), in the tree's order, level by level.
        asked_of: calls of a name that have keywords: the name, the keywords, and the values of those that are written out.
        made: columns that are made.
        asked: columns that are subscripted.
        listed: the texts of each list or tuple that has any.
    """

    nodes: int = 0
    loops: int = 0
    functions: int = 0
    tries: int = 0
    calls: int = 0
    largest: float = 0.0
    texts: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    members: frozenset[tuple[str, str]] = frozenset()
    stars: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    origins: tuple[tuple[int, tuple[Origin, ...]], ...] = ()
    asked_of: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]], ...] = ()
    made: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    listed: frozenset[frozenset[str]] = frozenset()


def facts_of(code: str, *, compiles: bool = False) -> Facts:
    """What a script says.

    Args:
        code: the script.
        compiles: whether it is known to compile, so that its statements are known to as well.

    Raises:
        SyntaxError: it cannot be parsed.
        RecursionError: it is nested too deeply.

    >>> facts = facts_of("from math import pi\\nprint(pi * 2)")
    >>> facts.largest, sorted(facts.read), sorted(facts.bound)
    (2.0, ['pi', 'print'], ['pi'])
    """
    pieces = statements(code)
    found = {piece: _KNOWN.get(piece) for piece in pieces}
    new = [piece for piece, known in found.items() if known is None]
    if len(new) <= FEW < len(pieces):
        try:
            read = {piece: _read(parsed(piece).body) for piece in new}
        except (SyntaxError, ValueError):
            new = list(pieces)  # they are no statements
        else:
            _KNOWN.keep(read)
            return _joined([found[piece] or read[piece] for piece in pieces])
    if not new:
        return _joined([found[piece] for piece in pieces])  # type: ignore[misc]
    return _joined(_read_whole(code, pieces, compiles=compiles))


def _read_whole(code: str, pieces: tuple[str, ...], *, compiles: bool) -> list[Facts]:
    """Facts of a script with many new statements: of each, to be remembered, or of all at once."""
    tree = parsed(code)
    # What never comes again is not worth remembering.
    again = sum([hash(piece) in _SEEN for piece in pieces])
    _SEEN.keep(dict.fromkeys(map(hash, pieces), True))
    bodies = bodies_of(tree, pieces) if 2 * again >= len(pieces) else None
    if bodies is None:
        return [_read(tree.body)]
    parts = [_KNOWN.get(piece) or _read(body) for piece, body in zip(pieces, bodies, strict=True)]
    _KNOWN.keep(dict(zip(pieces, parts, strict=True)))
    if compiles and not among_others(code):
        COMPILES.keep(dict.fromkeys(pieces, True))
    return parts


def _joined(parts: list[Facts]) -> Facts:
    # Level by level, as a walk over the whole tree would meet them.
    origins = sorted((each for part in parts for each in part.origins), key=lambda each: each[0])
    facts: dict[str, Any] = {name: sum([getattr(part, name) for part in parts]) for name in _COUNTS}
    facts["nodes"] += 1  # the module
    facts |= {name: _NOTHING.union(*[getattr(part, name) for part in parts]) for name in _SETS}
    return Facts(
        largest=max([part.largest for part in parts], default=0.0),
        origins=tuple(origins),
        asked_of=tuple([each for part in parts for each in part.asked_of]),
        **facts,
    )


_COUNTS = ("nodes", "loops", "functions", "tries", "calls")
_SETS = ("texts", "names", "imports", "members", "stars", "read", "bound", "made", "asked", "listed")


@dataclass(slots=True)
class _Reading:
    """Facts while they are gathered."""

    depth: int = 1
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    largest: float = 0.0
    sets: defaultdict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))
    origins: list[tuple[int, tuple[Origin, ...]]] = field(default_factory=list)
    asked_of: list[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]]] = field(default_factory=list)


def _read(body: list[ast.stmt]) -> Facts:
    """One walk, level by level."""
    reading, level, nodes = _Reading(), list[ast.AST](body), 0
    while level:
        below: list[ast.AST] = []
        for node in level:
            kind = type(node)
            read = _READERS.get(kind)
            if read is not None:
                read(reading, node)
            leaves, names = _BELOW.get(kind) or (0, node._fields)
            nodes += leaves
            for name in names:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    if value._fields:
                        below.append(value)
                    else:  # an operator or a context, which says nothing by itself
                        nodes += 1
                elif isinstance(value, list):
                    for each in value:
                        if isinstance(each, ast.AST):
                            below.append(each)
        nodes += len(level)
        level, reading.depth = below, reading.depth + 1
    facts: dict[str, Any] = {name: frozenset(found) for name, found in reading.sets.items()}
    facts |= reading.counts | {"nodes": nodes}
    return Facts(largest=reading.largest, origins=tuple(reading.origins), asked_of=tuple(reading.asked_of), **facts)


def _read_name(to: _Reading, node: ast.Name) -> None:
    to.sets["names"].add(node.id)
    to.sets["read" if isinstance(node.ctx, ast.Load) else "bound"].add(node.id)


def _read_attribute(to: _Reading, node: ast.Attribute) -> None:
    to.sets["names"].add(node.attr)


def _read_constant(to: _Reading, node: ast.Constant) -> None:
    value = node.value
    if isinstance(value, str):
        to.sets["texts"].add(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        to.largest = max(to.largest, float(min(abs(value), 1e12)))


def _read_import(to: _Reading, node: ast.Import) -> None:
    for alias in node.names:
        to.sets["imports"].add(alias.name)
        to.sets["bound"].add((alias.asname or alias.name).split(".")[0])


def _read_import_from(to: _Reading, node: ast.ImportFrom) -> None:
    if node.names[0].name == "*":
        to.sets["stars"].add(node.module or "")
    else:
        to.sets["bound"].update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    if node.module and not node.level:
        to.sets["imports"].add(node.module)
        to.sets["members"].update((node.module, alias.name) for alias in node.names if alias.name != "*")
    if node.module and node.module.split(".")[0] == "sklearn":
        given = tuple((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)
        to.origins.append((to.depth, given))


def _read_call(to: _Reading, node: ast.Call) -> None:
    to.counts["calls"] += 1
    keywords = [keyword for keyword in node.keywords if keyword.arg]
    if not keywords:
        return
    names = tuple(str(keyword.arg) for keyword in keywords)
    to.sets["made"].update(names)
    to.sets["names"].update(names)
    if isinstance(node.func, ast.Name):
        values = []
        for keyword in keywords:
            if isinstance(keyword.value, (ast.Constant, ast.UnaryOp)):
                try:
                    values.append((str(keyword.arg), ast.literal_eval(keyword.value)))
                except (ValueError, TypeError, RecursionError):
                    continue
        to.asked_of.append((node.func.id, names, tuple(values)))


def _read_subscript(to: _Reading, node: ast.Subscript) -> None:
    if not (isinstance(node.value, ast.Attribute) and node.value.attr == "environ"):
        to.sets["asked" if isinstance(node.ctx, ast.Load) else "made"].update(_texts(node.slice))


def _read_dict(to: _Reading, node: ast.Dict) -> None:
    to.sets["made"].update(_texts_among(key for key in node.keys if key is not None))


def _read_list(to: _Reading, node: ast.List | ast.Tuple) -> None:
    listed = frozenset(_texts(node))
    if listed:
        to.sets["listed"].add(listed)


def _read_definition(to: _Reading, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    to.sets["bound"].add(node.name)
    to.counts["functions"] += isinstance(node, ast.FunctionDef)


def _read_named(to: _Reading, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
    if node.name:
        to.sets["bound"].add(node.name)


def _read_mapping(to: _Reading, node: ast.MatchMapping) -> None:
    if node.rest:
        to.sets["bound"].add(node.rest)


def _read_argument(to: _Reading, node: ast.arg) -> None:
    to.sets["bound"].add(node.arg)


def _read_class_keyword(to: _Reading, node: ast.keyword) -> None:
    if node.arg:  # of calls as well, where it is no news
        to.sets["names"].add(node.arg)


def _counts(name: str) -> Callable[[_Reading, Any], None]:
    def count(to: _Reading, node: Any) -> None:
        to.counts[name] += 1

    return count


_READERS: dict[type[ast.AST], Callable[[_Reading, Any], None]] = {
    ast.Name: _read_name,
    ast.Attribute: _read_attribute,
    ast.Constant: _read_constant,
    ast.Import: _read_import,
    ast.ImportFrom: _read_import_from,
    ast.Call: _read_call,
    ast.keyword: _read_class_keyword,
    ast.Subscript: _read_subscript,
    ast.Dict: _read_dict,
    ast.List: _read_list,
    ast.Tuple: _read_list,
    ast.FunctionDef: _read_definition,
    ast.AsyncFunctionDef: _read_definition,
    ast.ClassDef: _read_definition,
    ast.arg: _read_argument,
    ast.ExceptHandler: _read_named,
    ast.MatchAs: _read_named,
    ast.MatchStar: _read_named,
    ast.MatchMapping: _read_mapping,
    ast.For: _counts("loops"),
    ast.While: _counts("loops"),
    ast.Lambda: _counts("functions"),
    ast.Try: _counts("tries"),
}


_BELOW: dict[type[ast.AST], tuple[int, tuple[str, ...]]] = {
    ast.Name: (1, ()),
    ast.Constant: (0, ()),
    ast.alias: (0, ()),
    ast.Attribute: (1, ("value",)),
    ast.keyword: (0, ("value",)),
    ast.arg: (0, ("annotation",)),
    ast.Subscript: (1, ("value", "slice")),
    ast.List: (1, ("elts",)),
    ast.Tuple: (1, ("elts",)),
}
"""Of the commonest kinds, how many nodes below say nothing (whether a name is read or bound), and where the others are."""


def _texts(node: ast.AST) -> list[str]:
    """The strings that are written here, alone or in a list."""
    return _texts_among(node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node])


def _texts_among(nodes: Iterable[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
