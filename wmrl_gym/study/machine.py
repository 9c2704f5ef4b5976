"""What a run ran on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from wmrl_gym.envs.manipulation.versions import SIMULATORS, versions_of


def machine() -> dict[str, Any]:
    """The processor, how many of it, and the versions: what a run ran on."""
    import platform

    name = platform.processor() or platform.machine()
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    versions = versions_of("gymnasium", "numpy", "stable-baselines3", "torch", *SIMULATORS)
    found = {"cpu": name, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    return {**found, "versions": versions}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
