"""Measures, from anchor pairs, how well a correction works: bias within groups, effective number of pairs, alarms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_gym.corrections.anchor_pairs import Floats, Ints, as_floats, as_ints
from wmrl_gym.corrections.contexts import ChangeDetector

_BATCH = 64
"""Pairs that are taken in together."""


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
        self._waiting: list[tuple[Floats, Ints, Ints, Floats]] = []
        self._pending = 0

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
        self._waiting.append((errors, groups, contexts, weight))
        self._pending += f.size
        # Nobody reads this at every step, and a batch costs hardly more than a pair.
        if self._pending >= _BATCH:
            self._settle()

    def _settle(self) -> None:
        """Take in the pairs that wait."""
        waiting, self._waiting, self._pending = self._waiting, [], 0
        if not waiting:
            return
        errors, groups, contexts, weight = (np.concatenate(parts, axis=-1) for parts in zip(*waiting, strict=True))
        self._weights = self._weights + np.array([weight.sum(), (weight**2).sum()])
        self.detector.update(-errors[1])
        squares = self._centred(errors, groups, contexts) ** 2
        n = errors.shape[1]
        self._seen += n
        if n:
            rate = min(n / min(self._seen, self.memory), 1.0)
            self._squares = self._squares + rate * (squares.mean(axis=1) - self._squares)
            self._bias += rate * (-float(errors[1].mean()) - self._bias)

    def _centred(self, errors: Floats, groups: Ints, contexts: Ints) -> Floats:
        """Errors less their group's mean, or their context's running mean where they are alone: float64, shape (2, B)."""
        _, index, count = np.unique(groups, return_inverse=True, return_counts=True)
        alone = count[index] == 1
        mean = np.stack([np.bincount(index, row, count.size) / count for row in errors])
        # A mean of n takes its own share out of each member: n / (n - 1) puts it back.
        grow = np.sqrt(count / np.maximum(count - 1.0, 1.0))[index]
        out: Floats = grow * (errors - mean[:, index])
        if alone.any():
            known, index, count = np.unique(contexts[alone], return_inverse=True, return_counts=True)
            means = np.stack([np.bincount(index, row, count.size) / count for row in errors[:, alone]])
            before = [self._offset(*each) for each in zip(known.tolist(), count.tolist(), means.T, strict=True)]
            out[:, alone] = errors[:, alone] - np.stack(before, axis=1)[:, index]
        return out

    def _offset(self, context: int, n: int, new: Floats) -> Floats:
        """The running mean error of a context from before these n, whose mean is ``new``: float64, shape (2,). Takes them in."""
        key = context if context in self._offsets or len(self._offsets) < self.max_contexts else -1
        count, *mean = self._offsets.get(key, np.zeros(3)).tolist()
        before: Floats = np.array(mean) if count else new
        rate = n / min(count + n, max(self.memory, n))
        self._offsets[key] = np.array([count + n, *(before + rate * (new - before))])
        return before

    def stats(self) -> dict[str, float]:
        """``bias`` (truth less calibrated), ``group_bias_raw``, ``group_bias``, ``effective_pairs``, ``alarms``."""
        self._settle()
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
        self._settle()
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
        self._waiting, self._pending = [], 0
        self._seen, self._bias = int(state["seen"]), float(state["bias"])
        self._squares, self._weights = np.array(state["squares"]), np.array(state["weights"])
        self._offsets = {int(key): np.array(value) for key, value in state["offsets"].items()}
        self.detector.load_state_dict(state["detector"])
