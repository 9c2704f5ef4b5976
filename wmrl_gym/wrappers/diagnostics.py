"""What every layer of a wrapped environment has to say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def diagnostics(env: Any) -> dict[str, float]:
    """The ``stats()`` of every layer of ``env``, single or vector, under common names such as ``cost/executions``."""
    collected: dict[str, float] = {}
    for layer in layers(env):
        # Looked up on the class: wrappers forward unknown attributes, and a layer must not be asked twice.
        if hasattr(type(layer), "stats"):
            collected |= layer.stats()
    return collected


def layers(env: Any) -> Iterator[Any]:
    """``env`` and everything that it wraps, outermost first."""
    while env is not None:
        yield env
        env = vars(env).get("env")
