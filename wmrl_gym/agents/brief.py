"""What an agent gathers from the texts of the text environment: what to predict, how that is scored, how the last reply went."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

REGRESSION_METRICS = ("rmse", "mae")
LABEL_METRICS = ("accuracy", "macro-f1")


@dataclass(frozen=True, slots=True)
class Brief:
    """A task, as its statement and its description tell it.

    Args:
        target: the column to predict.
        metric: its name.
        id_column: the column that names rows.
        predictions: the other columns of a submission.
        columns: of the training file, where the description was read; () before.
        missing: whether the description says that cells may be empty.
    """

    target: str
    metric: str
    id_column: str
    predictions: tuple[str, ...]
    columns: tuple[str, ...] = ()
    missing: bool = False

    @classmethod
    def of(cls, statement: str) -> Brief:
        """Read the observation's ``task``.

        >>> Brief.of("Predict 'fare' for each row. Metric: mae (smaller).\\nThe submission is a csv with the columns id, fare.")
        Brief(target='fare', metric='mae', id_column='id', predictions=('fare',), columns=(), missing=False)

        Raises:
            ValueError: it does not say what to predict, or which columns a submission has.
        """
        target = re.search(r"Predict '([^']+)'", statement)
        metric = re.search(r"Metric: ([\w-]+)", statement)
        columns = re.search(r"with the columns ([^\n]+)", statement)
        if target is None or metric is None or columns is None:
            raise ValueError(
                "expected a statement of the text environment, with what to predict, the metric and the submission's columns, "
                f"got {statement[:200]!r}"
            )
        first, *others = columns[1].rstrip(".").split(", ")
        return cls(target[1], metric[1], first, tuple(others))

    def described(self, description: str) -> Brief:
        """This brief, having read the description of the data as well."""
        found = re.search(r"train\.csv:.*; columns ([^\n]+)", description)
        columns = () if found is None else tuple(found[1].split(", "))
        return replace(self, columns=columns, missing="missing" in description)

    @property
    def kind(self) -> str:
        """What a submission holds: "number", "label", "probability" (of one column) or "probabilities" (one of each label)."""
        if self.metric in REGRESSION_METRICS:
            return "number"
        if self.metric in LABEL_METRICS:
            return "label"
        return "probability" if len(self.predictions) == 1 else "probabilities"


@dataclass(frozen=True, slots=True)
class Report:
    """How the last reply went.

    Args:
        status: its name; "" where the feedback names none, as a description does.
        beaten: the share of the leaderboard that it beats; None where no score is shown.
        error: the last line of the traceback, "" where there is none.
    """

    status: str
    beaten: float | None
    error: str

    @classmethod
    def of(cls, feedback: str) -> Report:
        """Read the observation's ``feedback``.

        >>> Report.of("status: valid\\nexit code: 0\\nvalidation mae: about 2.5 (smaller), beats 35% of the leaderboard")
        Report(status='valid', beaten=0.35, error='')
        """
        status = re.match(r"status: (\w+)", feedback)
        beaten = re.search(r"beats (\d+)% of the leaderboard", feedback)
        lines = feedback.rstrip().splitlines()
        raised = lines[-1] if lines and re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", lines[-1]) else ""
        return cls("" if status is None else status[1], None if beaten is None else int(beaten[1]) / 100, raised)
