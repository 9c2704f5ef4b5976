"""What MLE-bench's graders import from ``mlebench``, for a metric's process where that is not installed: same names, own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class InvalidSubmissionError(Exception):
    """The verdict on a submission that cannot be scored."""


def prepare_for_accuracy_metric(submission: Any, answers: Any, target_column: str, id_column: str) -> dict[str, Any]:
    """Labels in the same order: ``y_true`` and ``y_pred``."""
    truth, said = _aligned(submission, answers, id_column, target_column)
    return {"y_true": truth, "y_pred": said}


def prepare_for_auroc_metric(submission: Any, answers: Any, id_col: str, target_col: str) -> dict[str, Any]:
    """Labels and probabilities in the same order: ``y_true`` and ``y_score``."""
    truth, said = _aligned(submission, answers, id_col, target_col)
    try:
        numbers = said.astype(float)
    except (TypeError, ValueError) as error:
        raise InvalidSubmissionError(f"{target_col} must hold numbers") from error
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise InvalidSubmissionError(f"{target_col} must hold probabilities, which lie between 0 and 1")
    return {"y_true": truth, "y_score": said}


def _aligned(submission: Any, answers: Any, key: str, target: str) -> tuple[Any, Any]:
    for column in (key, target):
        if column not in submission.columns:
            raise InvalidSubmissionError(f"the submission has no column {column!r}")
    if len(submission) != len(answers):
        raise InvalidSubmissionError(f"the submission has {len(submission)} rows, expected {len(answers)}")
    mine, theirs = submission.sort_values(key), answers.sort_values(key)
    if list(mine[key]) != list(theirs[key]):
        raise InvalidSubmissionError(f"the submission has other values of {key!r} than the answers")
    return theirs[target].to_numpy(), mine[target].to_numpy()


def df_to_one_hot(df: Any, id_column: str, target_column: str, classes: list[str]) -> Any:
    """A column for each class, 1 where a row is of it and 0 elsewhere, after the column of ids."""
    columns = {name: (df[target_column] == name).astype(int) for name in classes}
    return df[[id_column]].assign(**columns)[[id_column, *classes]]


def one_hot_dfs_to_log_loss_inputs(
    submission_one_hot: Any, answers_one_hot: Any, id_column: str = "id", apply_softmax: bool = True
) -> dict[str, Any]:
    """Probabilities in the order of the answers' rows and columns: ``y_true`` and ``y_pred``."""
    from scipy.special import softmax

    missing = set(answers_one_hot.columns) - set(submission_one_hot.columns)
    if missing:
        raise InvalidSubmissionError(f"the submission lacks the columns {sorted(missing)}")
    theirs = answers_one_hot.sort_values(id_column)
    mine = submission_one_hot[list(answers_one_hot.columns)].sort_values(id_column)
    if list(mine[id_column]) != list(theirs[id_column]):
        raise InvalidSubmissionError(f"the submission has other values of {id_column!r} than the answers")
    truth, said = (frame.drop(columns=[id_column]).to_numpy() for frame in (theirs, mine))
    return {"y_true": truth, "y_pred": softmax(said, axis=-1) if apply_softmax and not is_one_hot_encoded(said) else said}


def is_one_hot_encoded(xs: Any) -> bool:
    """Whether every row of a matrix has one 1, and 0 elsewhere."""
    return bool(np.isin(xs, (0, 1)).all() and (np.asarray(xs).sum(axis=-1) == 1).all())


def rle_decode(rle_string: str, height: int, width: int) -> Any:
    """The mask, bool of shape (height, width), of runs "start length" that count pixels from 1, down the columns."""
    numbers = np.array(rle_string.split(), dtype=np.int64)
    starts, lengths = numbers[0::2] - 1, numbers[1::2]
    if len(starts) != len(lengths) or (starts < 0).any() or (lengths < 1).any():
        raise InvalidSubmissionError("a run is a start and a length, both of at least 1")
    if (starts[1:] < starts[:-1] + lengths[:-1]).any() or (len(starts) and starts[-1] + lengths[-1] > height * width):
        raise InvalidSubmissionError("runs must be sorted, apart, and inside the picture")
    edges = np.zeros(height * width + 1, dtype=np.int64)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + lengths, -1)
    return (np.cumsum(edges)[:-1] > 0).reshape(width, height).T


def rle_encode(x: Any, fg_val: int = 1) -> list[int]:
    """Starts and lengths of the runs in which a mask is ``fg_val``, as :func:`rle_decode` reads them."""
    inside = np.concatenate([[0], (np.asarray(x).T.ravel() == fg_val).astype(np.int8), [0]])
    starts, ends = np.flatnonzero(np.diff(inside) == 1), np.flatnonzero(np.diff(inside) == -1)
    return [int(each) for run in zip(starts + 1, ends - starts, strict=True) for each in run]


def rles_to_masks(rl_encodings: Sequence[str], image_heights: Sequence[int], image_widths: Sequence[int]) -> list[Any]:
    """The masks of several pictures."""
    sizes = zip(rl_encodings, image_heights, image_widths, strict=True)
    return [rle_decode(runs, height, width) for runs, height, width in sizes]
