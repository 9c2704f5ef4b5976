"""The static features again, the plain way: each is looked for in the tree of the whole script. Slow, and an oracle."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.static.checks import _PUBLIC_FILES, _accepts, _holds, _importable, _keywords, _starred
from wmrl_gym.envs.autoresearch.static.facts import SCRIPT
from wmrl_gym.envs.autoresearch.static.features import _MODULES, FAMILIES, PIECES, STATIC_FEATURES


def compiles(code: str) -> bool:
    """Whether the whole script does."""
    try:
        compile(code.encode("utf-8", "surrogatepass"), SCRIPT, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def plain_features(code: str, columns: tuple[str, ...], data_columns: frozenset[str]) -> NDArray[np.float32]:
    """float32, shape (len(STATIC_FEATURES),)."""
    features = np.zeros(len(STATIC_FEATURES), dtype=np.float32)
    if not code.strip() or not compiles(code):
        return features
    nodes = list(ast.walk(ast.parse(code.encode())))
    checks = _checks(code, nodes, columns, data_columns)
    return np.array([*checks, *_sizes(code, nodes), *_vocabulary(nodes)], dtype=np.float32)


def _checks(code: str, nodes: list[ast.AST], columns: tuple[str, ...], data_columns: frozenset[str]) -> list[float]:
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = " ".join(texts)
    stems = {column.split("_")[0] for column in columns}
    found: tuple[Collection[Any], ...] = (
        unbound_names(nodes),
        unknown_keywords(nodes),
        failing_imports(nodes),
        bad_values(nodes),
        unknown_files(nodes),
        unknown_columns(nodes, data_columns | frozenset(columns) if data_columns else data_columns),
    )
    return [
        1.0,
        *(float(min(len(faults), 5)) for faults in found),
        float("DATA_DIR" in code),
        float("SUBMISSION_PATH" in code),
        float(all(any(stem in text for text in texts) for stem in stems) or "sample_submission" in words),
    ]


def _sizes(code: str, nodes: list[ast.AST]) -> list[float]:
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    numbers = [value for value in constants if isinstance(value, (int, float)) and not isinstance(value, bool)]
    largest = max((float(min(abs(number), 1e12)) for number in numbers), default=0.0)

    def count(*kinds: type[ast.AST]) -> float:
        return float(sum(isinstance(node, kinds) for node in nodes))

    return [
        float(np.log1p(code.count("\n"))),
        float(np.log1p(len(nodes))),
        count(ast.For, ast.While),
        count(ast.FunctionDef, ast.Lambda),
        count(ast.Try),
        float(np.log1p(count(ast.Call))),
        float(np.log1p(largest)),
    ]


def _vocabulary(nodes: list[ast.AST]) -> list[float]:
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    modules = _imported(nodes)
    return [
        *(float(module in modules) for module in _MODULES),
        *(float(any(name.startswith(stems) for name in names)) for stems in FAMILIES.values()),
        *(float(piece in names) for piece in PIECES),
    ]


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in found}


def unbound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are read somewhere and bound nowhere: each one is a NameError where it is reached."""
    read, bound = set[str](), set(dir(builtins)) | {"__name__", "__file__"}
    for node in nodes:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            bound |= set(_starred(node.module or "")) or {"*"}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return set() if "*" in bound else read - bound


def failing_imports(nodes: Iterable[ast.AST]) -> set[str]:
    """What is imported and is not installed, or, inside scikit-learn, is not there."""
    failing = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            failing |= {alias.name for alias in node.names if not _importable(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if not _importable(node.module):
                failing.add(node.module)
            elif node.module.split(".")[0] == "sklearn":
                asked = {alias.name for alias in node.names} - {"*"}
                failing |= {f"{node.module}.{name}" for name in asked if not _holds(node.module, name)}
    return failing


def unknown_keywords(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Keyword arguments that the installed scikit-learn's class or function does not take, as (callable, keyword)."""
    nodes = list(nodes)
    unknown = set()
    for name, origin, node in _calls(nodes):
        allowed = _keywords(*origin)
        if allowed is not None:
            unknown |= {(name, k.arg) for k in node.keywords if k.arg is not None and k.arg not in allowed}
    return unknown


def bad_values(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Keyword arguments whose written value the installed scikit-learn's class refuses when it is fitted."""
    bad = set()
    for name, origin, node in _calls(list(nodes)):
        for keyword in node.keywords:
            if keyword.arg is not None and isinstance(keyword.value, (ast.Constant, ast.UnaryOp)):
                try:
                    value = ast.literal_eval(keyword.value)
                except (ValueError, TypeError):
                    continue
                if not _accepts(*origin, keyword.arg, value):
                    bad.add((name, keyword.arg))
    return bad


def unknown_files(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of csv files that no task has."""
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = {text for text in texts if text.endswith(".csv") and len(text) < 200 and "\n" not in text}
    return {text for text in named if PurePosixPath(text).as_posix().lstrip("/") not in _PUBLIC_FILES}


def unknown_columns(nodes: Iterable[ast.AST], columns: frozenset[str]) -> set[str]:
    """Columns that are subscripted and that the task's files do not have, nor the script makes."""
    made, asked = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Subscript) and not _is_environment(node.value):
            names = set(_texts(node.slice))
            (asked if isinstance(node.ctx, ast.Load) else made).update(names)
        elif isinstance(node, ast.Dict):
            made.update(key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        elif isinstance(node, ast.Call):
            made.update(keyword.arg for keyword in node.keywords if keyword.arg)
        elif isinstance(node, (ast.List, ast.Tuple)):
            listed = set(_texts(node))
            if len(listed & columns) * 2 > len(listed):  # a list of columns, by its company
                asked |= listed
    return asked - made - columns if columns else set()


def _texts(node: ast.AST) -> list[str]:
    """The strings that are written here, alone or in a list."""
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _is_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def _calls(nodes: list[ast.AST]) -> list[tuple[str, tuple[str, str], ast.Call]]:
    """Calls by name of what is imported from scikit-learn: the name, its (module, name) there, and the call."""
    origin: dict[str, tuple[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sklearn":
            for alias in node.names:
                if alias.name == "*":
                    origin |= {name: (node.module, name) for name in _starred(node.module)}
                else:
                    origin[alias.asname or alias.name] = (node.module, alias.name)
    return [
        (node.func.id, origin[node.func.id], node)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in origin
    ]
