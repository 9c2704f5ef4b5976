"""Agents as users write them, good and bad."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

SUBMIT = """I take the sample.
```python
import os, shutil
shutil.copy(os.environ["DATA_DIR"] + "/sample_submission.csv", os.environ["SUBMISSION_PATH"])
```"""


def submits(observation: Mapping[str, Any]) -> str:
    print("what an agent prints is no reply")
    return SUBMIT


def submits_once_and_raises(observation: Mapping[str, Any]) -> str:
    if observation["turn"]:
        raise KeyError("no idea")
    return SUBMIT


def raises(observation: Mapping[str, Any]) -> str:
    raise ValueError("I cannot")


def says_nothing(observation: Mapping[str, Any]) -> None:
    return None


def counts(observation: Mapping[str, Any]) -> int:
    return 3


def hangs(observation: Mapping[str, Any]) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"left by the agent of {os.getppid()}"])
    time.sleep(600)


def sleeps(observation: Mapping[str, Any]) -> None:
    time.sleep(600)


def dies(observation: Mapping[str, Any]) -> None:
    os._exit(3)


def leaves(observation: Mapping[str, Any]) -> None:
    sys.exit(0)


def writes_without_end(observation: Mapping[str, Any]) -> str:
    return "x" * 3_000_000


class Remembers:
    """Says its seed and how often it was asked."""

    def __init__(self, seed: int) -> None:
        self.seed, self.asked = seed, 0

    def act(self, observation: Mapping[str, Any]) -> str:
        self.asked += 1
        return f"{self.seed} {self.asked}"
