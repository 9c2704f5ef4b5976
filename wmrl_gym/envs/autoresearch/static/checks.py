"""Faults that can be found in a script without running it: against what is installed, and the task's files and columns."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
from pathlib import PurePosixPath
from typing import Any

from wmrl_gym.envs.autoresearch.static.facts import Facts

_PUBLIC_FILES = frozenset({"train.csv", "test.csv", "sample_submission.csv", "submission.csv"})
_ALWAYS_BOUND = frozenset(dir(builtins)) | {"__name__", "__file__"}
_LONGEST = 200
"""Characters of a name or a value that are looked at: nothing installed has longer ones, and what is looked at is remembered."""


def unbound_names(facts: Facts) -> set[str]:
    """Names that are read somewhere and bound nowhere: each one is a NameError where it is reached.

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> unbound_names(read_script("import numpy as np\\nx = np.zeros(n)").facts)
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

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> sorted(failing_imports(read_script("import os, no_such_library\\nfrom sklearn.svm import SVC, SVD").facts))
    ['no_such_library', 'sklearn.svm.SVD']
    """
    failing = {module for module in facts.imports if not _importable(module)}
    experimental = any(module.startswith("sklearn.experimental") for module in facts.imports)
    for module, name in facts.members:
        if module.split(".")[0] != "sklearn" or _left_alone(f"{module}.{name}") or module in failing:
            continue
        if not _holds(module, name) and not (experimental and _is_experimental(module, name)):
            failing.add(f"{module}.{name}")
    return failing


def unknown_keywords(facts: Facts) -> set[tuple[str, str]]:
    """Keyword arguments that the installed scikit-learn's class or function does not take, as (callable, keyword).

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> unknown_keywords(read_script("from sklearn.linear_model import Ridge\\nRidge(alpha=1, depth=3)").facts)
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

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> bad_values(read_script("from sklearn.linear_model import Ridge\\nRidge(alpha=-1.0, solver='svd')").facts)
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

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> unknown_files(read_script("read(data / 'Test.csv'), read(data + '/train.csv')").facts)
    {'Test.csv'}
    """
    named = {text for text in facts.texts if text.endswith(".csv") and len(text) < 200 and "\n" not in text}
    return {text for text in named if PurePosixPath(text).as_posix().lstrip("/") not in _PUBLIC_FILES}


def unknown_columns(facts: Facts, columns: frozenset[str]) -> set[str]:
    """Columns that are subscripted and that the task's files do not have, nor the script makes.

    >>> from wmrl_gym.envs.autoresearch.static.scripts import read_script
    >>> unknown_columns(read_script("train['price'], train[['size', 'wdth']]").facts, frozenset({"price", "size", "width"}))
    {'wdth'}
    """
    if not columns:
        return set()
    # A list is taken for one of columns where most of its texts are columns.
    listed = [texts for texts in facts.listed if len(texts & columns) * 2 > len(texts)]
    return set(facts.asked.union(*listed) - facts.made - columns)


def _origins(facts: Facts) -> dict[str, tuple[str, str]]:
    """What is imported from scikit-learn, by the name it has in the script: its (module, name) there."""
    origin: dict[str, tuple[str, str]] = {}
    for name, (module, there) in facts.origins:
        if there == "*":
            origin |= {each: (module, each) for each in _starred(module)}
        else:
            origin[name] = (module, there)
    return origin


def _importable(module: str) -> bool:
    """Whether a module is installed; of scikit-learn, whether it is there and public."""
    if module.split(".")[0] == "sklearn":
        return _left_alone(module) or _sklearn(module) is not None
    return len(module) <= _LONGEST and _installed(module.split(".")[0])


@functools.lru_cache(maxsize=1024)
def _installed(name: str) -> bool:
    if name == "__main__":  # every script is it, however this process was started
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # finders may be anybody's
        return False


def _left_alone(module: str) -> bool:
    """Whether nothing is asked of a module of scikit-learn, since importing it brings other libraries, or changes the others."""
    return module.split(".")[1:2] in (["externals"], ["experimental"])


def _is_experimental(module: str, name: str) -> bool:
    """Whether a module gives a name only to those who import a module of ``sklearn.experimental``."""
    try:
        getattr(_sklearn(module), name)
    except ImportError as error:
        return "sklearn.experimental" in str(error)
    except Exception:
        pass
    return False


def _sklearn(module: str) -> Any:
    """A public module of the installed scikit-learn; None if it is none. Nothing else is ever imported for a script's sake."""
    parts = module.split(".")
    if (
        len(module) > _LONGEST
        or _left_alone(module)
        or parts[0] != "sklearn"
        or any(part.startswith("_") or "test" in part for part in parts)
    ):
        return None
    return _imported(module)


@functools.lru_cache(maxsize=1024)
def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception:  # there are modules that refuse to be imported, each in its way
        return None


def _member(module: str, name: str) -> Any:
    """What a module of scikit-learn has under a name; None if it has nothing, or refuses to give it, as ``load_boston`` is."""
    try:
        return getattr(_sklearn(module), name, None)
    except Exception:
        return None


def _holds(module: str, name: str) -> bool:
    return _member(module, name) is not None or _sklearn(f"{module}.{name}") is not None


@functools.lru_cache(maxsize=256)
def _starred(module: str) -> frozenset[str]:
    """What ``from module import *`` binds, of scikit-learn's public modules; nothing if it is not known."""
    return frozenset(getattr(_sklearn(module), "__all__", ()))


def _keywords(module: str, name: str) -> frozenset[str] | None:
    """The keywords that a callable of scikit-learn takes; None if any will do or it is not there."""
    return _signature(module, name) if _member(module, name) is not None else None


@functools.lru_cache(maxsize=1024)
def _signature(module: str, name: str) -> frozenset[str] | None:
    try:
        parameters = inspect.signature(_member(module, name)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def _accepts(module: str, name: str, keyword: str, value: Any) -> bool:
    """Whether a class of scikit-learn says that it takes a value; True where it does not say, or the value is a long one."""
    long = len(value) > _LONGEST if isinstance(value, (str, bytes)) else isinstance(value, int) and value.bit_length() > _LONGEST
    constraints = getattr(_member(module, name), "_parameter_constraints", {}).get(keyword)
    return long or not isinstance(constraints, list) or _satisfied(module, name, keyword, value)


@functools.lru_cache(maxsize=8192, typed=True)
def _satisfied(module: str, name: str, keyword: str, value: Any) -> bool:
    try:
        from sklearn.utils._param_validation import make_constraint

        constraints = _member(module, name)._parameter_constraints[keyword]
        return any(make_constraint(constraint).is_satisfied_by(value) for constraint in constraints)
    except Exception:  # private parts of scikit-learn, whose forms change: then nothing is known
        return True
