"""Reads a script: whether it compiles, and what it says (names, calls, imports, columns, sizes).

An agent's text may be written to exhaust whoever parses it, so that this file is also a program: :mod:`scripts
<wmrl_gym.envs.autoresearch.static.scripts>` starts it as a process of its own, with bounds on its time and memory, and asks it.
It needs the standard library only. What it reads are the script's bytes, as the interpreter will: declared encodings and
byte-order marks mean here what they mean there.
"""

from __future__ import annotations

import ast
import io
import marshal
import os
import resource
import struct
import sys
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Origin: TypeAlias = tuple[str, tuple[str, str]]
"""A name, and the (module, name) that it is imported from; "*" stands for all that a module gives away."""

SCRIPT = "/workspace/solution.py"
"""What a sandbox calls the script in a traceback."""
MEMORY_MB, CPU_S = 512, 3
"""What reading one script may take: MiB of address space, and seconds of CPU time."""
TOO_COMPLEX = f"SyntaxError: the script needs more than {CPU_S} s or {MEMORY_MB} MiB to be compiled"
"""The verdict on a script that exceeds these bounds."""
LENGTH = struct.Struct("<I")
"""Stands before each message, in bytes."""
READY = b"+"
"""What the process writes first: how it ends after this is the script's doing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is read off a script.

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
        origins: what is imported from scikit-learn, level by level as it stands in the tree.
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
    origins: tuple[Origin, ...] = ()
    asked_of: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]], ...] = ()
    made: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    listed: frozenset[frozenset[str]] = frozenset()


@dataclass(slots=True)
class _Reading:
    """Facts while they are gathered."""

    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    largest: float = 0.0
    sets: defaultdict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))
    origins: list[Origin] = field(default_factory=list)
    asked_of: list[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]]] = field(default_factory=list)


def facts_of(tree: ast.Module) -> Facts:
    """What a script says: one walk over its tree, level by level, so that no depth is too deep.

    >>> facts = facts_of(ast.parse("from math import pi\\nprint(pi * 2)"))
    >>> facts.largest, sorted(facts.read), sorted(facts.bound)
    (2.0, ['pi', 'print'], ['pi'])
    """
    reading, level, nodes = _Reading(), list[ast.AST](tree.body), 1
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
        level = below
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
        to.origins.extend((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)


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


def compile_error(source: bytes) -> str | None:
    """What running a script would print if it does not compile, None if it does.

    >>> print(compile_error(b"x = = 1"))
      File "/workspace/solution.py", line 1
        x = = 1
            ^
    SyntaxError: invalid syntax
    """
    try:
        compile(source, SCRIPT, "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = io.StringIO(source.decode("utf-8", "replace"), newline=None).read().split("\n")
        if error.text is None and error.lineno is not None and 0 < error.lineno <= len(lines):
            error.text = lines[error.lineno - 1]  # the compiler's later stages look for it in a file
        return "".join(traceback.format_exception_only(error)).rstrip()
    except MemoryError:
        return TOO_COMPLEX
    except Exception as error:  # the compiler refuses what it cannot take in many ways
        return "".join(traceback.format_exception_only(error)).rstrip()
    return None


def read(source: bytes) -> tuple[str | None, bytes | None]:
    """What running a script would print if it does not compile, else the fields of its :class:`Facts`, packed."""
    error = compile_error(source)
    if error is not None:
        return error, None
    try:
        facts = facts_of(ast.parse(source, SCRIPT))
    except MemoryError:
        return TOO_COMPLEX, None
    return None, marshal.dumps(tuple(getattr(facts, name) for name in Facts.__slots__))


def serve() -> None:
    """Answer one script after the other, until there are none."""
    warnings.simplefilter("ignore")  # what a script does doubtfully is for its own run to say
    sys.setrecursionlimit(1000)
    _bound(resource.RLIMIT_AS, MEMORY_MB << 20)
    _bound(resource.RLIMIT_CORE, 0)
    _write(READY)
    while len(head := _read_exactly(LENGTH.size)) == LENGTH.size:
        source = _read_exactly(*LENGTH.unpack(head))
        # The soft bound alone ends the process by a signal of its own; a whole second is the smallest step.
        _bound(resource.RLIMIT_CPU, int(time.process_time()) + 1 + CPU_S)
        try:
            answer = marshal.dumps(read(source))
        except Exception:  # no memory to say it with
            answer = marshal.dumps((TOO_COMPLEX, None))
        _write(LENGTH.pack(len(answer)) + answer)


def _bound(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _read_exactly(count: int) -> bytes:
    """So many bytes of standard input; fewer at its end."""
    parts = []
    while count > 0 and (part := os.read(0, min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    serve()
