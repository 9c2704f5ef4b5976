"""A fidelity report as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wmrl_gym.world_models.evaluation.report import FidelityReport

_COLOUR, _REFERENCE = "#1f77b4", "#999999"


def draw(report: FidelityReport, path: Path) -> None:
    """Draw a panel for each part of ``report`` that there is into the image file ``path``.

    Raises:
        DependencyNotInstalled: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        from gymnasium.error import DependencyNotInstalled

        raise DependencyNotInstalled(f"matplotlib is not installed, run `pip install 'wmrl-gym[demo]'` ({error})") from error
    panels = [_scatter]
    panels += [_coverage] * (report.calibration is not None)
    panels += [_horizon] * (report.horizon is not None)
    panels += [_confusion] * (report.status is not None and bool(report.status.confusion.any()))
    figure = Figure(figsize=(3.6 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, report)
    figure.suptitle(f"{report.model} on {report.transitions:,} real steps")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _scatter(axes: Any, report: FidelityReport) -> None:
    axes.set_xlabel("real")
    axes.set_ylabel("predicted")
    if not len(report.scatter):
        axes.set_title("nothing was answered", fontsize=10)
        return
    real, predicted = report.scatter.T
    axes.scatter(real, predicted, s=6, alpha=0.4, color=_COLOUR, linewidths=0)
    ends = [float(min(real.min(), predicted.min())), float(max(real.max(), predicted.max()))]
    axes.plot(ends, ends, color=_REFERENCE, linewidth=1)
    axes.set_title(f"rewards, MAE {report.reward.mae:.3g}", fontsize=10)


def _coverage(axes: Any, report: FidelityReport) -> None:
    assert report.calibration is not None
    axes.plot([0, 1], [0, 1], color=_REFERENCE, linewidth=1)
    axes.plot(report.calibration.levels, report.calibration.coverage, marker="o", markersize=4, color=_COLOUR)
    axes.set_xlabel("share that should lie inside")
    axes.set_ylabel("share that does")
    axes.set_title("intervals of reward_std", fontsize=10)


def _horizon(axes: Any, report: FidelityReport) -> None:
    assert report.horizon is not None
    axes.plot(report.horizon.steps, report.horizon.error, marker="o", markersize=4, color=_COLOUR, label="model")
    axes.plot(report.horizon.steps, report.horizon.still, linestyle="--", color=_REFERENCE, label="standing still")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("error, in standard deviations")
    axes.set_title("observations", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _confusion(axes: Any, report: FidelityReport) -> None:
    assert report.status is not None
    counts = report.status.confusion
    kept = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1))
    shown = counts[np.ix_(kept, kept)]
    names = [report.status.names[status] for status in kept]
    share = shown / np.maximum(shown.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(shown):
        axes.text(column, row, str(count), ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("real")
    axes.set_title(f"statuses, {report.status.accuracy:.0%} right", fontsize=10)
