"""What a comparison of a world model with real steps says: numbers, a table and plots."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.files import write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class RewardFidelity:
    """Errors of predicted rewards (predicted minus real), in the reward's units.

    Args:
        n: steps compared.
        n_unknown: steps with a real reward on which the model did not answer; they are not compared.
        mae: mean absolute error; this and what follows is NaN where no step was answered.
        bias: mean error.
        variance: of the error around the bias.
        real_variance: of the real rewards: an error of this variance is that of a constant.
        rank_correlation: Spearman's, within groups, their mean: what an algorithm that compares within a group sees. NaN where
            no group has two different real rewards.
        n_groups: groups with at least two different real rewards.
    """

    n: int
    n_unknown: int
    mae: float
    bias: float
    variance: float
    real_variance: float
    rank_correlation: float
    n_groups: int

    @property
    def unknown(self) -> float:
        """Share of the steps with a real reward on which the model did not answer."""
        return self.n_unknown / (self.n + self.n_unknown)

    @property
    def r2(self) -> float:
        """Share of the real variance that is explained; NaN where real rewards do not vary."""
        return 1.0 - (self.variance + self.bias**2) / self.real_variance if self.real_variance > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Whether ``reward_std`` is right: how often the real reward lies in the interval that it implies.

    Args:
        n: steps on which the model gave a standard deviation.
        levels: what share should lie inside.
        coverage: what share does, for each level.
        mean_std: mean standard deviation.
    """

    n: int
    levels: tuple[float, ...]
    coverage: tuple[float, ...]
    mean_std: float

    def at(self, level: float) -> float:
        """The coverage at one of the levels."""
        return self.coverage[self.levels.index(level)]


@dataclass(frozen=True, slots=True)
class StatusFidelity:
    """Predicted against real statuses of executed attempts.

    Args:
        names: of the S statuses.
        confusion: int64, shape (S, S). Attempts by real (row) and predicted (column) status.
        n_error_types: attempts whose real feedback names an exception.
        error_type_accuracy: share of them for which the predicted feedback names the same; NaN where there are none.
    """

    names: tuple[str, ...]
    confusion: NDArray[np.int64]
    n_error_types: int
    error_type_accuracy: float

    @property
    def accuracy(self) -> float:
        """Share of the attempts whose status is predicted; NaN where none was answered."""
        return _share(int(np.trace(self.confusion)), int(self.confusion.sum()))

    @property
    def commonest(self) -> float:
        """Share of the commonest real status: the accuracy of always predicting it."""
        return _share(int(self.confusion.sum(axis=1).max()), int(self.confusion.sum()))


@dataclass(frozen=True, slots=True)
class HorizonFidelity:
    """Errors of observations that were imagined some steps ahead along real actions.

    Args:
        steps: the horizons.
        error: root mean square error, each entry in units of its own standard deviation over the data.
        still: the same of a model that predicts that nothing moves.
        starts: rollouts compared.
    """

    steps: tuple[int, ...]
    error: tuple[float, ...]
    still: tuple[float, ...]
    starts: int


@dataclass(frozen=True, slots=True)
class TerminationFidelity:
    """Predicted against real ends of episodes, step by step.

    Args:
        n_real: steps that really terminated.
        n_predicted: steps that the model predicted to terminate.
        n_both: steps that both did.
    """

    n_real: int
    n_predicted: int
    n_both: int

    @property
    def precision(self) -> float:
        """Share of the predicted ends that were real; NaN without any."""
        return self.n_both / self.n_predicted if self.n_predicted else float("nan")

    @property
    def recall(self) -> float:
        """Share of the real ends that were predicted; NaN without any."""
        return self.n_both / self.n_real if self.n_real else float("nan")

    @property
    def f1(self) -> float:
        """Harmonic mean of both; NaN where no episode ended and none was predicted to."""
        total = self.n_real + self.n_predicted
        return 2 * self.n_both / total if total else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class FidelityReport:
    """How good a world model is on real steps that it has not learnt from.

    Args:
        model: the name of its class.
        transitions: real steps given.
        reward: errors of the rewards; of a factored environment, of each attempt's value.
        calibration: of ``reward_std``; None where the model never gave one.
        status: statuses and error types; None where the environment is not factored.
        horizon: observation errors over several steps; None where nothing follows on anything, or observations are no numbers.
        termination: ends of episodes; None in factored environments, whose bookkeeping ends them exactly.
        scatter: float64, shape (M, 2). Real and predicted rewards of at most 2,000 of the steps, for the plot.
    """

    model: str
    transitions: int
    reward: RewardFidelity
    calibration: Calibration | None
    status: StatusFidelity | None
    horizon: HorizonFidelity | None
    termination: TerminationFidelity | None
    scatter: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """All but the scatter, as numbers, texts, lists and dicts; what is unknown is None."""
        parts = {name: getattr(self, name) for name in ("reward", "calibration", "status", "horizon", "termination")}
        document: dict[str, Any] = {"model": self.model, "transitions": self.transitions}
        document |= {name: None if part is None else _plain(asdict(part)) for name, part in parts.items()}
        document["reward"] |= {"unknown": self.reward.unknown, "r2": _plain(self.reward.r2)}
        if self.status is not None:
            document["status"] |= {name: _plain(getattr(self.status, name)) for name in ("accuracy", "commonest")}
        if self.termination is not None:
            names = ("precision", "recall", "f1")
            document["termination"] |= {name: _plain(getattr(self.termination, name)) for name in names}
        return document

    def table(self) -> Table:
        """The measures, for people."""
        from rich.table import Table

        shown = Table(title=f"{self.model} on {self.transitions:,} real steps")
        for heading in ("measure", "value", "what it says"):
            shown.add_column(heading, justify="right" if heading == "value" else "left")
        for row in self._rows():
            shown.add_row(*row)
        return shown

    def confusion_table(self) -> Table | None:
        """Attempts by real and predicted status; statuses that never occur are left out. None where there are no attempts."""
        from rich.table import Table

        if self.status is None or not self.status.confusion.any():
            return None
        counts = self.status.confusion
        kept = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1))
        shown = Table("really \\ predicted", *(self.status.names[column] for column in kept), title="statuses")
        for row in kept:
            shown.add_row(self.status.names[row], *(str(counts[row, column]) for column in kept))
        return shown

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self.table())
        confusion = self.confusion_table()
        if confusion is not None:
            console.print(confusion)

    def plot(self, path: str | Path) -> None:
        """Draw all that was measured into one image file."""

        draw(self, Path(path))

    def _rows(self) -> list[tuple[str, str, str]]:
        reward = self.reward
        what = "value of an attempt" if self.status is not None else "reward"
        rows = [
            (f"{what}: MAE", _number(reward.mae), f"of the {reward.n:,} steps that were answered"),
            ("not answered", f"{reward.n_unknown:,}", f"{reward.unknown:.1%}: unknown, and not scored"),
            ("bias", _number(reward.bias, sign="+"), "mean of predicted minus real"),
            ("variance", _number(reward.variance), f"of the error; real ones vary by {_number(reward.real_variance)}"),
            ("R²", _number(reward.r2), "share of the real variance explained"),
            ("rank correlation", _number(reward.rank_correlation), f"within {reward.n_groups:,} groups, Spearman's"),
        ]
        if self.calibration is not None:
            for level in (0.5, 0.9):
                rows.append((f"coverage at {level:.0%}", f"{self.calibration.at(level):.0%}", "by reward_std"))
        if self.status is not None:
            accuracy, commonest = _percent(self.status.accuracy), _percent(self.status.commonest)
            rows.append(("status accuracy", accuracy, f"the commonest alone: {commonest}"))
            note = f"of {self.status.n_error_types:,} named exceptions"
            rows.append(("error type accuracy", _number(self.status.error_type_accuracy), note))
        if self.termination is not None:
            ends = f"{self.termination.n_real:,} real and {self.termination.n_predicted:,} predicted ends"
            rows.append(("termination F1", _number(self.termination.f1), ends))
        if self.horizon is not None:
            for steps, error, still in zip(self.horizon.steps, self.horizon.error, self.horizon.still, strict=True):
                rows.append(
                    (f"observation, {steps} ahead", _number(error), f"of a standard deviation; standing still {still:.3g}")
                )
        return rows


def _number(value: float, sign: str = "") -> str:
    return "-" if np.isnan(value) else f"{value:{sign}.4g}"


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{share:.0%}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and np.isnan(value) else value


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
    write_whole(path, lambda part: figure.savefig(part, dpi=130, format=path.suffix.removeprefix(".") or "png"))


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
