"""A contextual correction that never forgets what was executed: an experiment, to say what the others leave on the table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections import ContextualCalibration


class RememberingCalibration(ContextualCalibration):
    """The package's contextual calibration, but an attempt that was executed is worth what it brought, on average.

    A regression smooths: it pulls the best attempt that was seen towards its neighbours, by as much as it mistrusts itself. Where
    outcomes hardly vary from one execution to the next, what was seen needs no regression.

    >>> calibration = RememberingCalibration()
    >>> calibration.push([0.6, 0.6], [0.9, 0.2], features=[[0.0], [1.0]])
    >>> calibration.predict([0.6, 0.6, 0.6], features=[[0.0], [1.0], [2.0]]).round(2)[:2]
    array([0.9, 0.2])
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: dict[bytes, tuple[float, int]] = {}

    def push(
        self,
        predicted: ArrayLike,
        real: ArrayLike,
        *,
        context: ArrayLike | None = None,
        features: Any = None,
        key: ArrayLike | None = None,
    ) -> None:
        """See :meth:`ContextualCalibration.push`."""
        super().push(predicted, real, context=context, features=features, key=key)
        if features is not None:
            for name, truth in zip(_names(features), np.asarray(real, np.float64).tolist(), strict=True):
                if np.isfinite(truth):
                    total, count = self._seen.get(name, (0.0, 0))
                    self._seen[name] = total + truth, count + 1

    def predict(self, predicted: ArrayLike, *, context: ArrayLike | None = None, features: Any = None) -> np.ndarray[Any, Any]:
        """See :meth:`ContextualCalibration.predict`."""
        said = super().predict(predicted, context=context, features=features)
        if features is None or not self._seen:
            return said
        said = said.copy()
        for row, name in enumerate(_names(features)):
            if name in self._seen:
                total, count = self._seen[name]
                said[row] = total / count
        return said


def _names(features: Any) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(features, np.float64)]
