"""Faults that can be found in a script without running it: against what is installed, and the task's files and columns."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
from pathlib import PurePosixPath
from typing import Any

from wmrl_gym.envs.autoresearch.static.facts import Facts, facts_of  # noqa: F401 - examples read scripts with it

_PUBLIC_FILES = frozenset({"train.csv", "test.csv", "sample_submission.csv", "submission.csv"})
_ALWAYS_BOUND = frozenset(dir(builtins)) | {"__name__", "__file__"}


def unbound_names(facts: Facts) -> set[str]:
    """Names that are read somewhere and bound nowhere: each one is a NameError where it is reached.

    >>> unbound_names(facts_of("import numpy as np\\nx = np.zeros(n)"))
    {'n'}
    """
    missing = set(facts.read - facts.bound - _ALWAYS_BOUND)
    for module in facts.stars if missing else ():
        given = _starred(module)
        if not given:  # nobody knows what it binds
            return set()
        missing -= given
    return missing


def failing_imports(facts: Facts) -> set[str]:
    """What is imported and is not installed, or, inside scikit-learn, is not there.

    >>> sorted(failing_imports(facts_of("import os, no_such_library\\nfrom sklearn.svm import SVC, SVD")))
    ['no_such_library', 'sklearn.svm.SVD']
    """
    failing = {module for module in facts.imports if not _importable(module)}
    for module, name in facts.members:
        if module.split(".")[0] == "sklearn" and module not in failing and not _holds(module, name):
            failing.add(f"{module}.{name}")
    return failing


def unknown_keywords(facts: Facts) -> set[tuple[str, str]]:
    """Keyword arguments that the installed scikit-learn's class or function does not take, as (callable, keyword).

    >>> unknown_keywords(facts_of("from sklearn.linear_model import Ridge\\nRidge(alpha=1, depth=3)"))
    {('Ridge', 'depth')}
    """
    unknown, origin = set(), _origins(facts)
    for name, keywords, _ in facts.asked_of:
        allowed = _keywords(*origin[name]) if name in origin else None
        if allowed is not None:
            unknown |= {(name, keyword) for keyword in keywords if keyword not in allowed}
    return unknown


def bad_values(facts: Facts) -> set[tuple[str, str]]:
    """Keyword arguments whose written value the installed scikit-learn's class refuses when it is fitted.

    >>> bad_values(facts_of("from sklearn.linear_model import Ridge\\nRidge(alpha=-1.0, solver='svd')"))
    {('Ridge', 'alpha')}
    """
    origin = _origins(facts)
    return {
        (name, keyword)
        for name, _, values in facts.asked_of
        if name in origin
        for keyword, value in values
        if not _accepts(*origin[name], keyword, value)
    }


def unknown_files(facts: Facts) -> set[str]:
    """Names of csv files that no task has.

    >>> unknown_files(facts_of("read(data / 'Test.csv'), read(data + '/train.csv')"))
    {'Test.csv'}
    """
    named = {text for text in facts.texts if text.endswith(".csv") and len(text) < 200 and "\n" not in text}
    return {text for text in named if PurePosixPath(text).as_posix().lstrip("/") not in _PUBLIC_FILES}


def unknown_columns(facts: Facts, columns: frozenset[str]) -> set[str]:
    """Columns that are subscripted and that the task's files do not have, nor the script makes.

    >>> unknown_columns(facts_of("train['price'], train[['size', 'wdth']]"), frozenset({"price", "size", "width"}))
    {'wdth'}
    """
    if not columns:
        return set()
    # A list of columns is known by its company.
    listed = [texts for texts in facts.listed if len(texts & columns) * 2 > len(texts)]
    return set(facts.asked.union(*listed) - facts.made - columns)


def _origins(facts: Facts) -> dict[str, tuple[str, str]]:
    """What is imported from scikit-learn, by the name it has in the script: its (module, name) there."""
    origin: dict[str, tuple[str, str]] = {}
    for _, given in facts.origins:
        for name, (module, there) in given:
            if there == "*":
                origin |= {each: (module, each) for each in _starred(module)}
            else:
                origin[name] = (module, there)
    return origin


@functools.lru_cache(maxsize=1024)
def _importable(module: str) -> bool:
    if module.split(".")[0] == "sklearn":
        return _sklearn(module) is not None
    try:
        return importlib.util.find_spec(module.split(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@functools.lru_cache(maxsize=1024)
def _sklearn(module: str) -> Any:
    """A public module of the installed scikit-learn; None if it is none. Nothing else is ever imported for a script's sake."""
    parts = module.split(".")
    if parts[0] != "sklearn" or any(part.startswith("_") or "test" in part for part in parts):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


@functools.lru_cache(maxsize=4096)
def _holds(module: str, name: str) -> bool:
    return hasattr(_sklearn(module), name) or _sklearn(f"{module}.{name}") is not None


@functools.lru_cache(maxsize=256)
def _starred(module: str) -> frozenset[str]:
    """What ``from module import *`` binds, of scikit-learn's public modules; nothing if it is not known."""
    return frozenset(getattr(_sklearn(module), "__all__", ()))


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


@functools.lru_cache(maxsize=8192, typed=True)
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
