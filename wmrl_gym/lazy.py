"""Names of a package that are imported when they are first asked for, so that importing the package stays cheap."""

from __future__ import annotations

import sys
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
