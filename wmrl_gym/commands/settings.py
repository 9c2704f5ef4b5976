"""``--set KEY=VALUE``, as several subcommands take it."""

from __future__ import annotations

import json
from typing import Any


def settings_of(given: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts as arguments; a value that is not JSON is a text.

    Raises:
        ValueError: a text without ``=``.

    >>> settings_of(["hidden=[64, 64]", "propagation=ts_inf"])
    {'hidden': [64, 64], 'propagation': 'ts_inf'}
    """
    settings: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, got {setting!r}")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings
