"""Names of a module that are looked up when they are first asked for: heavy imports, and names of former versions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package whose public names lie in modules that are heavy to import.

    Args:
        package: its name, ``__name__``.
        modules: for each public name the module below the package that has it, such as ``{"LocalModel": "llm.local"}``; ``""``
            where the name is a module itself.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not modules[name]:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        held = vars(sys.modules[package])
        return sorted({*held.get("__all__", held), *modules, *(name for name in held if name.startswith("__"))})

    return get, names


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """``__getattr__`` for a module some of whose names have changed: the old names work, with a ``DeprecationWarning``.

    Args:
        module: its name, ``__name__``.
        names: for each old name the new one, which may stand in another module: ``{"Cost": "wmrl_gym.engine.ledger.Cost"}``.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name] if "." in names[name] else f"{module}.{names[name]}"
        warnings.warn(f"{module}.{name} is {new} now; the old name goes with version 0.3", DeprecationWarning, stacklevel=2)
        place, _, today = new.rpartition(".")
        return getattr(import_module(place), today)

    return get
