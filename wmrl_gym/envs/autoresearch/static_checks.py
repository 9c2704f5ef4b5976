"""Faults that can be found in a script without running it: against what is installed, and the task's files and columns."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

_PUBLIC_FILES = frozenset({"train.csv", "test.csv", "sample_submission.csv", "submission.csv"})


def unbound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are read somewhere and bound nowhere: each one is a NameError where it is reached.

    >>> unbound_names(ast.walk(ast.parse("import numpy as np\\nx = np.zeros(n)")))
    {'n'}
    """
    read, bound = set[str](), set(dir(builtins)) | {"__name__", "__file__"}
    for node in nodes:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            bound |= _starred(node.module or "") or {"*"}
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
    """What is imported and is not installed, or, inside scikit-learn, is not there.

    >>> sorted(failing_imports(ast.walk(ast.parse("import os, no_such_library\\nfrom sklearn.svm import SVC, SVD"))))
    ['no_such_library', 'sklearn.svm.SVD']
    """
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
    """Keyword arguments that the installed scikit-learn's class or function does not take, as (callable, keyword).

    >>> unknown_keywords(ast.walk(ast.parse("from sklearn.linear_model import Ridge\\nRidge(alpha=1, depth=3)")))
    {('Ridge', 'depth')}
    """
    nodes = list(nodes)
    unknown = set()
    for name, origin, node in _calls(nodes):
        allowed = _keywords(*origin)
        if allowed is not None:
            unknown |= {(name, k.arg) for k in node.keywords if k.arg is not None and k.arg not in allowed}
    return unknown


def bad_values(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Keyword arguments whose written value the installed scikit-learn's class refuses when it is fitted.

    >>> bad_values(ast.walk(ast.parse("from sklearn.linear_model import Ridge\\nRidge(alpha=-1.0, solver='svd')")))
    {('Ridge', 'alpha')}
    """
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
    """Names of csv files that no task has.

    >>> unknown_files(ast.walk(ast.parse("read(data / 'Test.csv'), read(data + '/train.csv')")))
    {'Test.csv'}
    """
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = {text for text in texts if text.endswith(".csv") and len(text) < 200 and "\n" not in text}
    return {text for text in named if PurePosixPath(text).as_posix().lstrip("/") not in _PUBLIC_FILES}


def unknown_columns(nodes: Iterable[ast.AST], columns: frozenset[str]) -> set[str]:
    """Columns that are subscripted and that the task's files do not have, nor the script makes.

    >>> unknown_columns(ast.walk(ast.parse("train['price'], train[['size', 'wdth']]")), frozenset({"price", "size", "width"}))
    {'wdth'}
    """
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


@functools.lru_cache(maxsize=1024)
def _importable(module: str) -> bool:
    if module.split(".")[0] == "sklearn":
        return _sklearn(module) is not None
    try:
        return importlib.util.find_spec(module.split(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@functools.lru_cache(maxsize=256)
def _sklearn(module: str) -> Any:
    """A public module of the installed scikit-learn; None if it is none. Nothing else is ever imported for a script's sake."""
    parts = module.split(".")
    if parts[0] != "sklearn" or any(part.startswith("_") or "test" in part for part in parts):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _holds(module: str, name: str) -> bool:
    return hasattr(_sklearn(module), name) or _sklearn(f"{module}.{name}") is not None


def _starred(module: str) -> set[str]:
    """What ``from module import *`` binds, of scikit-learn's public modules; nothing if it is not known."""
    return set(getattr(_sklearn(module), "__all__", ()))


@functools.lru_cache(maxsize=1024)
def _keywords(module: str, name: str) -> frozenset[str] | None:
    """The keywords that a callable of scikit-learn takes; None if any will do or it is not there."""
    try:
        parameters = inspect.signature(getattr(_sklearn(module), name)).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def _accepts(module: str, name: str, keyword: str, value: Any) -> bool:
    """Whether a class of scikit-learn says that it takes a value; True where it does not say."""
    constraints = getattr(getattr(_sklearn(module), name, None), "_parameter_constraints", {}).get(keyword)
    if not isinstance(constraints, list):
        return True
    try:
        from sklearn.utils._param_validation import make_constraint

        return any(make_constraint(constraint).is_satisfied_by(value) for constraint in constraints)
    except Exception:  # private parts of scikit-learn, whose forms change: then nothing is known
        return True
