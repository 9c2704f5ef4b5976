"""What a report says of comparisons: curves with bands over seeds, results, and where the time went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.report.charts import curves, stacked
from wmrl_gym.study.config import ARMS, MARKER

_POINTS = 25
"""Places of a band."""


class UnreadableStudy(ValueError):
    """A folder's files are not those of a comparison."""


@dataclass(frozen=True, slots=True)
class ArmCurve:
    """One arm of one comparison.

    Args:
        seconds: float64, shape (n,). Of training, before each evaluated policy.
        executions: float64, shape (n,). Real ones, likewise.
        reward: float64, shape (n,).
        final: mean reward of the final policy and its standard error.
        where: seconds by what they were spent on.
        steps: of the environment, in training.
    """

    seconds: NDArray[np.float64]
    executions: NDArray[np.float64]
    reward: NDArray[np.float64]
    final: tuple[float, float]
    where: dict[str, float]
    steps: int


def study_sections(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A section for each comparison; those that differ in their seed alone share one.

    Raises:
        UnreadableStudy: a folder cannot be read.
    """
    by_settings: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for folder in folders:
        settings = _json(folder / MARKER)
        if not isinstance(settings, dict) or not isinstance(settings.get("arms"), list):
            raise UnreadableStudy(f"{folder / MARKER} is not the document of a comparison")
        same = json.dumps({name: value for name, value in settings.items() if name != "seed"}, sort_keys=True)
        by_settings.setdefault(same, []).append((folder, settings))
    return [_section(number, runs) for number, runs in enumerate(by_settings.values())]


def _section(number: int, runs: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    settings = runs[0][1]
    arms = {arm: [found for folder, _ in runs if (found := _arm(folder / arm)) is not None] for arm in settings["arms"]}
    done = {arm: found for arm, found in arms.items() if found}
    notes = [
        f"{_title(arm)}: {len(found)} of {len(runs)} runs are evaluated so far."
        for arm, found in arms.items()
        if len(found) < len(runs)
    ]
    by_seconds = [_series(arm, found, "seconds") for arm, found in done.items()]
    by_executions = [_series(arm, found, "executions") for arm, found in done.items()]
    charts: dict[str, Any] = {}
    if done:
        charts = {
            f"seconds-{number}": curves(by_seconds, x="seconds of training", y="mean ladder reward"),
            f"executions-{number}": curves(by_executions, x="real executions", y="mean ladder reward"),
            f"where-{number}": stacked({_title(arm): _where(found) for arm, found in done.items()}, axis="seconds"),
        }
    return {
        "names": ", ".join(str(folder) for folder, _ in runs),
        "seeds": len(runs),
        "seconds": settings.get("seconds"),
        "rows": [_row(arm, found) for arm, found in done.items()],
        "notes": notes,
        "charts": charts,
    }


def _arm(folder: Path) -> ArmCurve | None:
    """An arm that is trained and evaluated; None while it is not."""
    run, grades = folder / "run.json", folder / "grades.json"
    if not (run.is_file() and grades.is_file()):
        return None
    trained, graded = _json(run), _json(grades)
    try:
        final = np.array([each["reward"] for each in graded["final"]], np.float64)
        error = float(final.std(ddof=1) / np.sqrt(len(final))) if len(final) > 1 else float("nan")
        found = ArmCurve(
            np.array([each["seconds"] for each in trained["snapshots"]], np.float64),
            np.array([each["executions"] for each in trained["snapshots"]], np.float64),
            reward=np.array([*graded["curve"][:-1], final.mean()], np.float64),
            final=(float(final.mean()), error),
            where={str(name): float(value) for name, value in trained["where"].items()},
            steps=int(trained["steps"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnreadableStudy(
            f"{folder} is not an arm of a comparison, or is damaged: {type(error).__name__}: {error}"
        ) from error
    if len(found.reward) != len(found.seconds) or len(found.reward) == 0:
        raise UnreadableStudy(f"{folder} has {len(found.seconds)} policies and {len(found.reward)} grades of them")
    return found


def _series(arm: str, found: Sequence[ArmCurve], along: str) -> dict[str, Any]:
    """One curve: of a single run with the error of its end, of several their mean with a band of two standard errors."""
    common = {"name": _title(arm), "colour": _colour(arm), "low": [], "high": []}
    if len(found) == 1:
        end = found[0].final[1]
        error = [0.0] * (len(found[0].reward) - 1) + [0.0 if np.isnan(end) else end]
        return common | {"x": getattr(found[0], along).tolist(), "y": found[0].reward.tolist(), "error": error}
    last = min(float(getattr(each, along)[-1]) for each in found)
    places = np.linspace(0.0, last, _POINTS) if last > 0 else np.zeros(1)
    values = np.stack([np.interp(places, getattr(each, along), each.reward) for each in found])
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(found))
    band = {"low": (mean - 2 * error).tolist(), "high": (mean + 2 * error).tolist()}
    return common | {"x": places.tolist(), "y": mean.tolist()} | band


def _where(found: Sequence[ArmCurve]) -> dict[str, float]:
    parts = dict.fromkeys(part for each in found for part in each.where)
    return {part: float(np.mean([each.where.get(part, 0.0) for each in found])) for part in parts}


def _row(arm: str, found: Sequence[ArmCurve]) -> dict[str, str]:
    finals = np.array([each.final[0] for each in found])
    error = float(finals.std(ddof=1) / np.sqrt(len(finals))) if len(finals) > 1 else found[0].final[1]
    return {
        "arm": _title(arm),
        "reward": f"{finals.mean():.3f}" + ("" if np.isnan(error) else f" ± {error:.3f}"),
        "executions": f"{np.mean([each.executions[-1] for each in found]):,.0f}",
        "steps": f"{np.mean([each.steps for each in found]):,.0f}",
        "seconds": f"{np.mean([each.seconds[-1] for each in found]):,.1f}",
    }


def _title(arm: str) -> str:
    return ARMS[arm].title if arm in ARMS else arm


def _colour(arm: str) -> str:
    colour = ARMS[arm].colour if arm in ARMS else "#7f7f7f"
    return "#888888" if colour == "#444444" else colour  # which is seen on dark ground too


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableStudy(f"{path} cannot be read: {error}") from error
