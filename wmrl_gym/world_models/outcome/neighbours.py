"""The executed attempts that are most like a predicted one: what ``info`` lists, and what text environments show."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.factored import Outcome
from wmrl_gym.world_models.outcome.forests import Evidence


def nearest_executions(evidence: Evidence | None, distance: NDArray[np.float64], count: int) -> dict[str, NDArray[Any]]:
    """The nearest executed attempts, for ``info``."""
    n = len(distance)
    info: dict[str, NDArray[Any]] = {
        "neighbour": np.full((n, count), -1, np.int64),
        "neighbour_distance": np.full((n, count), np.nan),
        "neighbour_status": np.full((n, count), -1, np.int64),
        "neighbour_value": np.full((n, count), np.nan),
    }
    if evidence is not None and distance.shape[1]:
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
        there = slice(0, nearest.shape[1])
        info["neighbour"][:, there] = evidence.number[nearest]
        info["neighbour_distance"][:, there] = np.take_along_axis(distance, nearest, axis=1)
        info["neighbour_status"][:, there] = evidence.outcome.status[nearest]
        info["neighbour_value"][:, there] = evidence.outcome.value[nearest]
    return info


def nearest_feedback(evidence: Evidence | None, outcome: Outcome, distance: NDArray[np.float64]) -> NDArray[np.object_]:
    """What the most similar executed attempt with the predicted status got as feedback; "" where there is none."""
    feedback = np.full(len(distance), "", dtype=object)
    if evidence is None or not distance.shape[1]:
        return feedback
    alike = evidence.outcome.status[: distance.shape[1]] == outcome.status[:, None]
    found = alike.any(axis=1)
    feedback[found] = evidence.outcome.feedback[np.where(alike, distance, np.inf).argmin(axis=1)[found]]
    return feedback
