"""What a scripted agent has in mind: a plan is a script in a few words, which can be varied and mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CHOICES: dict[str, tuple[Any, ...]] = {
    "columns": ("numeric", "dummies", "codes", "transformer", "words", "letters"),
    "fill": ("none", "zero", "median", "drop"),
    "scale": (False, True),
    "model": (
        "linear",
        "neighbours",
        "tree",
        "random forest",
        "extra trees",
        "boosting",
        "gradient boosting",
        "support vectors",
        "bayes",
        "network",
        "dummy",
    ),
    "size": (0, 1, 2),
    "strength": (0, 1, 2),
    "extra": ("none", "cross-validation", "search", "blend", "log target", "ratios"),
    "frame": ("sample", "built"),
    "style": (0, 1, 2),
}
"""What a plan chooses among: how columns become numbers, what fills gaps, the model and two of its knobs, something extra, how
the submission is made, and how the script is laid out."""
_WEIGHTS: dict[str, Sequence[float]] = {
    "columns": (3, 4, 2, 5, 1, 1),
    "fill": (3, 2, 4, 1),
    "model": (4, 2, 1, 5, 2, 5, 3, 2, 1, 2, 0.5),
    "size": (2, 4, 2),
    "strength": (2, 4, 2),
    "extra": (6, 2, 1, 1, 1, 1),
}
_FOR_TEXT: dict[str, Sequence[float]] = {"columns": (0.5, 1, 0.5, 1, 6, 4), "model": (6, 1, 0.5, 2, 1, 1, 1, 2, 3, 1, 0.5)}


@dataclass(frozen=True, slots=True)
class Plan:
    """One choice each among :data:`CHOICES`."""

    columns: str
    fill: str
    scale: bool
    model: str
    size: int
    strength: int
    extra: str
    frame: str
    style: int

    @classmethod
    def drawn(cls, rng: np.random.Generator, *, text: bool) -> Plan:
        """A plan at random, what is common more often; ``text`` where the rows are known to hold documents."""
        return cls(**{name: pick(rng, name, text=text) for name in CHOICES})

    def varied(self, rng: np.random.Generator, *, text: bool) -> Plan:
        """Another plan that is like this one: one or two choices are made anew, of the model's own most often."""
        weights = np.array([{"model": 5, "size": 3, "strength": 3, "style": 0, "frame": 0.5}.get(name, 2) for name in CHOICES])
        names = rng.choice(list(CHOICES), size=int(rng.integers(1, 3)), replace=False, p=weights / weights.sum())
        return replace(self, **{str(name): pick(rng, str(name), text=text) for name in names})

    def mended(self, rng: np.random.Generator, status: str, error: str, *, text: bool) -> Plan:
        """This plan, without what a failed run points at; another one where it says nothing."""
        if status == "timeout":
            return replace(self, size=0, extra="none", model=str(rng.choice(["linear", "tree", "boosting"])))
        if "NaN" in error or "missing values" in error:
            return replace(self, fill=str(rng.choice(["median", "zero"])))
        if "could not convert string" in error or "Cannot use median strategy" in error:
            return replace(self, columns=str(rng.choice(["dummies", "transformer", "words"])))
        if "0 feature" in error or "at least one array" in error or "no columns" in error.lower():
            return replace(self, columns=str(rng.choice(["words", "letters", "dummies"])))
        if "Negative values" in error or "sparse" in error.lower() or "dense data" in error:
            return replace(self, model=str(rng.choice(["linear", "random forest"])), scale=False)
        return Plan.drawn(rng, text=text) if rng.random() < 0.5 else self.varied(rng, text=text)


def pick(rng: np.random.Generator, name: str, *, text: bool) -> Any:
    """One of the choices of that name."""
    weights = np.asarray((_FOR_TEXT if text and name in _FOR_TEXT else _WEIGHTS).get(name, np.ones(len(CHOICES[name]))), float)
    return CHOICES[name][int(rng.choice(len(weights), p=weights / weights.sum()))]
