"""What every layer of a wrapped environment has to say."""

from __future__ import annotations

from typing import Any


def diagnostics(env: Any) -> dict[str, float]:
    """The ``stats()`` of every layer of ``env``, single or vector, under their common names (``debias/bias``, ``cost/executions``...)."""
    collected: dict[str, float] = {}
    layer = env
    while layer is not None:
        # Looked up on the class: wrappers forward unknown attributes, and a layer must not be asked twice.
        if hasattr(type(layer), "stats"):
            collected |= layer.stats()
        layer = getattr(layer, "env", None)
    return collected
