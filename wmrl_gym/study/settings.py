"""What is set for each arm of a comparison that begins with the pretrained model, tuned for each on the same grid.

The table is ``tuned.json`` beside this file; ``python -m benchmarks.speedup tune`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "tuned.json"
SECONDS = 35.0
"""Seconds of training that numbers of anchors and rollouts are meant for."""


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """How an arm's policy is trained, and when its anchors come.

    Args:
        rate: Adam's learning rate.
        entropy: weight of the entropy bonus.
        epochs: passes over a rollout, each of one minibatch.
        num_envs: episodes a rollout.
        anchors: episodes that are anchors, in :data:`SECONDS` of training.
        rollouts: rollouts that the anchors are spread over, in the same time.
        early: share of the anchors that come in the first tenth of these rollouts; the rest is spread over all of them.
        learns: executions between two updates of the world model; 0 leaves it as it is.
        max_in_flight: anchor episodes that wait or run; training waits before it starts one more.

    Raises:
        ValueError: a number out of range.
    """

    rate: float
    entropy: float
    epochs: int = 4
    num_envs: int = 128
    anchors: int = 56
    rollouts: int = 300
    early: float = 0.0
    learns: int = 24
    max_in_flight: int = 8

    def __post_init__(self) -> None:
        if not self.rate > 0 or self.entropy < 0 or not 0 <= self.early <= 1:
            raise ValueError(f"need rate > 0, entropy >= 0 and early in [0, 1], got {self}")
        for name, least in (("epochs", 1), ("num_envs", 1), ("rollouts", 1), ("max_in_flight", 1), ("anchors", 0), ("learns", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ArmSettings:
        """As a table holds them; what it holds besides is left alone."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})


LIKE = {"denoise": "paper", "debias": "paper", "smooth": "recommended", "contextual": "recommended", "adaptive": "recommended"}
"""Arms that were not tuned, and whose settings they take."""


def tuned(arm: str) -> ArmSettings:
    """The settings of an arm."""
    return ArmSettings.of(table()[LIKE.get(arm, arm)]["settings"])


def table() -> dict[str, dict[str, Any]]:
    """By arm: the settings that were chosen, and the value of each that was tried."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
