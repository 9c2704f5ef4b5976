"""What the anchors say of a correction at work: bias within groups, effective numbers, alarms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.contexts import ChangeDetector
from wmrl_gym.corrections.pairs import Floats, as_floats, as_ints


class PairMeasures:
    """Running measures of the anchor pairs, before and after calibration.

    *Bias within groups* is what group baselines do not cancel: the root mean square of prediction less truth, centred on its
    group's mean; pairs that arrive alone are centred on their context's running mean instead. *Effective pairs* are how many
    pairs chosen with even chances those at hand are worth, ``(sum w)^2 / sum w^2`` with w the inverse propensities.

    Args:
        memory: pairs beyond which means become exponential.
        max_contexts: contexts beyond so many share one mean.

    Raises:
        ValueError: if an argument is not positive.

    >>> measures = PairMeasures()
    >>> measures.update([0.9, 0.1], [0.6, 0.4], [0.7, 0.5], group=[1, 1], propensity=[0.1, 0.1])
    >>> {name: round(value, 2) for name, value in measures.stats().items()}
    {'bias': 0.1, 'group_bias_raw': 0.42, 'group_bias': 0.0, 'effective_pairs': 2.0, 'alarms': 0.0}
    """

    def __init__(self, *, memory: int = 500, max_contexts: int = 4096) -> None:
        if memory < 1 or max_contexts < 1:
            raise ValueError(f"memory and max_contexts must be positive, got {memory} and {max_contexts}")
        self.memory, self.max_contexts = int(memory), int(max_contexts)
        self.detector = ChangeDetector()
        self._seen = 0
        self._bias = 0.0
        self._squares: Floats = np.zeros(2)
        self._weights: Floats = np.zeros(2)
        self._offsets: dict[int, Floats] = {}

    def update(
        self,
        predicted: ArrayLike,
        calibrated: ArrayLike,
        real: ArrayLike,
        *,
        group: ArrayLike,
        context: ArrayLike | None = None,
        propensity: ArrayLike = 1.0,
    ) -> None:
        """Pairs that arrived together.

        Args:
            predicted: float64, shape (B,).
            calibrated: f from before these pairs, float64, shape (B,).
            real: float64, shape (B,).
            group: int64, shape (B,).
            context: int64, shape (B,).
            propensity: float64, shape (B,) or a scalar.
        """
        f = as_floats("calibrated", calibrated)
        r = as_floats("real", real, size=f.size)
        errors = np.stack([as_floats("predicted", predicted, size=f.size) - r, f - r])
        groups, contexts = as_ints("group", group, size=f.size), as_ints("context", context, size=f.size)
        weight = 1.0 / np.broadcast_to(np.asarray(propensity, dtype=np.float64), f.shape)
        self._weights = self._weights + np.array([weight.sum(), (weight**2).sum()])
        self.detector.update(-errors[1])
        _, index, count = np.unique(groups, return_inverse=True, return_counts=True)
        for at in range(f.size):
            self._seen += 1
            rate = 1.0 / min(self._seen, self.memory)
            alone = count[index[at]] == 1
            own = errors[:, groups == groups[at]]
            centre = self._offset(int(contexts[at]), errors[:, at]) if alone else own.mean(axis=1)
            # A mean of n takes its own share out of each member: n / (n - 1) puts it back.
            grow = 1.0 if alone else own.shape[1] / (own.shape[1] - 1.0)
            self._squares = self._squares + rate * (grow * (errors[:, at] - centre) ** 2 - self._squares)
            self._bias += rate * (-float(errors[1, at]) - self._bias)

    def _offset(self, context: int, error: Floats) -> Floats:
        """The running mean error of a context, from before this one."""
        key = context if context in self._offsets or len(self._offsets) < self.max_contexts else -1
        count, *mean = self._offsets.get(key, np.zeros(3))
        before: Floats = np.array(mean) if count else error
        rate = 1.0 / min(count + 1.0, self.memory)
        self._offsets[key] = np.concatenate([[count + 1.0], before + rate * (error - before)])
        return before

    def stats(self) -> dict[str, float]:
        """``bias`` (truth less calibrated), ``group_bias_raw``, ``group_bias``, ``effective_pairs``, ``alarms``."""
        raw, after = np.sqrt(self._squares)
        total, square = self._weights
        return {
            "bias": self._bias,
            "group_bias_raw": float(raw),
            "group_bias": float(after),
            "effective_pairs": float(total**2 / square) if square > 0 else 0.0,
            "alarms": float(self.detector.n_alarms),
        }

    def state_dict(self) -> dict[str, Any]:
        """The running sums."""
        return {
            "seen": self._seen,
            "bias": self._bias,
            "squares": self._squares.copy(),
            "weights": self._weights.copy(),
            "offsets": {str(key): value.copy() for key, value in self._offsets.items()},
            "detector": self.detector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._seen, self._bias = int(state["seen"]), float(state["bias"])
        self._squares, self._weights = np.array(state["squares"]), np.array(state["weights"])
        self._offsets = {int(key): np.array(value) for key, value in state["offsets"].items()}
        self.detector.load_state_dict(state["detector"])
