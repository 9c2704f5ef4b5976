"""Measures, from anchors, how biased predictions are, and so how much of the anchors' residuals to add to rewards.

The noise of successive gradients is independent, their bias is not: the product of two successive residual gradients estimates
the squared bias without the noise, while their own squares estimate squared bias plus variance. :class:`GradientEvidence` keeps
these products, :class:`AdaptiveKappa` reads a share of the residual from them, and :class:`ActionSigns` stands in for the scores
of a policy where none are at hand.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.anchor_pairs import Floats, as_floats, as_ints
from wmrl_gym.randomness import scramble

_UInts = NDArray[np.uint64]


class GradientEvidence:
    """Running products of successive gradients, of K predictions and of the truth.

    Args:
        horizon: steps H over which noise averages out and bias does not.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.

    Raises:
        ValueError: if an argument is not positive.
    """

    def __init__(self, *, horizon: float = 30.0, prior_steps: float = 20.0, memory: float = 200.0) -> None:
        for name, value in (("horizon", horizon), ("prior_steps", prior_steps), ("memory", memory)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.horizon, self.prior_steps, self.memory = float(horizon), float(prior_steps), float(memory)
        self._last: Floats = np.zeros((0, 0))
        self._products: Floats = np.zeros((0, 0))
        self._noise = 0.0
        self._steps = 0.0

    def update(self, gradients: Floats, *, n_anchors: int) -> None:
        """Take in the gradients of one step.

        Args:
            gradients: float64, shape (K + 1, D): the mean gradient that each prediction gives over all rollouts, and the mean
                gradient of the first one's residual over the anchors.
            n_anchors: how many.

        Raises:
            ValueError: if the shape changed.
        """
        if self._last.size:
            if self._last.shape != gradients.shape:
                raise ValueError(f"gradients must have shape {self._last.shape} as before, got {gradients.shape}")
            self._steps = min(self._steps + 1.0, self.memory)
            rate = 1.0 / self._steps
            product = self._with_truth(gradients) @ self._with_truth(self._last).T
            self._products = self._products + rate * (0.5 * (product + product.T) - self._products)
            residual, before = gradients[-1], self._last[-1]
            self._noise += rate * (n_anchors * float(residual @ residual - residual @ before) - self._noise)
        else:
            self._products = np.zeros((len(gradients), len(gradients)))
        self._last = gradients

    @staticmethod
    def _with_truth(gradients: Floats) -> Floats:
        # The truth's gradient as prediction plus residual: its noise is the residual's, not the truth's.
        return np.concatenate([gradients[:-1], gradients[:1] + gradients[-1:]])

    def form(self, k: int, *, prior: float, variance: float) -> Floats:
        """``H |sum_k w_k G_k - q g|^2`` as a form in (w_1, ..., w_k, q), in units of one rollout's variance.

        Shape (k + 1, k + 1), without a negative eigenvalue.

        Args:
            k: number of predictions.
            prior: H b^2 before there is evidence, the same for all predictions.
            variance: mean squared residual, in the same units.
        """
        # Before evidence: no shrinkage (sum w = q, held by a stiff spring), and one bias common to all predictions.
        sign = np.append(np.ones(k), -1.0)
        known = np.append(np.ones(k), 0.0)
        before = prior * (np.outer(known, known) + 100.0 * np.outer(sign, sign))
        if self._steps == 0.0:
            return before
        # The trace of the noise over the variance of one residual is the mean squared length of a score.
        length = max(max(self._noise, 1e-300) / max(variance, 1e-300), 1e-9)
        values, vectors = np.linalg.eigh(self.horizon / length * self._products)
        measured = (vectors * np.maximum(values, 0.0)) @ vectors.T * np.outer(sign, sign)
        share = self._steps / (self._steps + self.prior_steps)
        out: Floats = share * measured + (1.0 - share) * before
        return out

    @property
    def steps(self) -> float:
        """How many pairs of successive steps have been seen, up to the memory."""
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        """The running products and the last gradients."""
        return {
            "last": self._last.copy(),
            "products": self._products.copy(),
            "noise": self._noise,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._last, self._products = (np.array(state[key], dtype=np.float64) for key in ("last", "products"))
        self._noise, self._steps = float(state["noise"]), float(state["steps"])


class AdaptiveKappa:
    """The kappa of the residual form from the evidence: ``H b^2 / (H b^2 + v / n)``, with v / n the noise of a step's anchors.

    For rewards, and for trainers that take one kappa. A trainer that forms its own advantages does better with
    :class:`wmrl_gym.corrections.FusedAdvantages`. Residuals alone cannot tell a bias that a policy exploits from noise, since
    calibration makes their mean 0 either way: what was done must be given along, as scores or :class:`ActionSigns`.

    Args:
        horizon: steps over which noise averages out and bias does not.
        prior: kappa before there is evidence.
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.
        floor: least kappa; the anchor fraction is a good one, at which an anchor's reward is the truth.
        batch: anchors a step of evidence; those that come fewer at a time are collected, in any order.

    Raises:
        ValueError: if an argument is out of its range.

    >>> kappa = AdaptiveKappa()
    >>> kappa.kappa
    0.5
    >>> for _ in range(200):
    ...     kappa.update([0.3, -0.3] * 8, [[1.0], [-1.0]] * 8)
    >>> kappa.kappa > 0.95
    True
    """

    def __init__(
        self,
        *,
        horizon: float = 30.0,
        prior: float = 0.5,
        prior_steps: float = 20.0,
        memory: float = 200.0,
        floor: float = 0.1,
        batch: int = 16,
    ) -> None:
        if not 0.0 < prior < 1.0:
            raise ValueError(f"prior must be in (0, 1), got {prior}")
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor must be in [0, 1], got {floor}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.prior, self.floor = float(prior), float(floor)
        self._evidence = GradientEvidence(horizon=horizon, prior_steps=prior_steps, memory=memory)
        self.batch = int(batch)
        self._anchors, self._waiting = 1, 0
        self._sums: Floats = np.zeros((0, 0))

    @property
    def kappa(self) -> float:
        """The share of the residual to pass on, in [floor, 1]."""
        if self._evidence.steps == 0.0:
            return max(self.prior, self.floor)
        noise = 1.0 / self._anchors
        form = self._evidence.form(1, prior=self.prior / (1.0 - self.prior) * noise, variance=1.0)
        # What no multiple of the predicted gradient explains: the rest is shrinkage and does no harm.
        bias = max(float(form[1, 1] - form[0, 1] ** 2 / max(form[0, 0], 1e-300)), 0.0)
        return float(np.clip(bias / (bias + noise), self.floor, 1.0))

    def update(self, residual: ArrayLike, score: ArrayLike | None = None, *, predicted_gradient: ArrayLike | None = None) -> None:
        """Learn from graded anchors as they arrive.

        Args:
            residual: r - f, float64, shape (B,); not finite where unknown. A step without one known residual changes nothing.
            score: float64, shape (B, D): the policy's scores or any fixed features of what was done. None is no evidence, and
                kappa stays.
            predicted_gradient: float64, shape (D,), the gradient that the predictions give, so that what lies along it is not
                held against them; None counts all of it.
        """
        e = as_floats("residual", residual)
        known = np.isfinite(e)
        n = int(known.sum())
        if n == 0 or score is None:
            return
        s = np.asarray(score, dtype=np.float64).reshape(e.size, -1)
        gradient = np.zeros(s.shape[1]) if predicted_gradient is None else as_floats("predicted_gradient", predicted_gradient)
        new = np.stack([n * gradient, e[known] @ s[known]])
        if self._sums.size and self._sums.shape != new.shape:
            raise ValueError(f"score must have {self._sums.shape[1]} columns as before, got {new.shape[1]}")
        self._sums = self._sums + new if self._sums.size else new
        self._waiting += n
        if self._waiting >= self.batch:
            self._anchors = self._waiting
            self._evidence.update(self._sums / self._waiting, n_anchors=self._waiting)
            self._sums, self._waiting = np.zeros_like(self._sums), 0

    def state_dict(self) -> dict[str, Any]:
        """The evidence, and what waits for a batch to fill."""
        waiting = {"anchors": self._anchors, "sums": self._sums.copy(), "waiting": self._waiting}
        return {**waiting, **self._evidence.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._anchors, self._waiting = int(state["anchors"]), int(state["waiting"])
        self._sums = np.array(state["sums"], dtype=np.float64)
        self._evidence.load_state_dict(state)


class ActionSigns:
    """Random signs of the parts of an action and of its context: the same parts, the same signs, in every process.

    A bias that a policy can exploit depends on what is done. Residuals times these signs, averaged over anchors, are a random
    projection of that bias, whatever the policy is. Integer actions are taken apart by position, texts by word; a real-valued
    action is projected linearly.

    Args:
        dimension: number of features.
        seed: of the signs.

    Raises:
        ValueError: if ``dimension`` is not positive.

    >>> signs = ActionSigns(4)
    >>> signs([[0, 2], [0, 2]], [1, 1]).tolist()[0] == signs([[0, 2]], [1]).tolist()[0]
    True
    >>> signs(["fit a tree", "fit a line"]).shape
    (2, 4)
    """

    def __init__(self, dimension: int = 256, *, seed: int = 0) -> None:
        if dimension < 1:
            raise ValueError(f"dimension must be at least 1, got {dimension}")
        self.dimension, self.seed = int(dimension), int(seed)
        salt = np.random.default_rng(seed).integers(0, 2**63, dimension, dtype=np.uint64)
        self._salt = scramble(salt)

    def _signs(self, keys: _UInts) -> Floats:
        """Shape (..., D), of values -1 and 1, for keys of shape (...)."""
        bits = scramble(keys[..., None] ^ self._salt) >> np.uint64(63)
        return 2.0 * bits.astype(np.float64) - 1.0

    def __call__(self, action: ArrayLike, context: ArrayLike | None = None) -> Floats:
        """The features of B actions.

        Args:
            action: shape (B, ...): integers or booleans, reals, or texts.
            context: int64, shape (B,), e.g. the task.

        Returns:
            float64, shape (B, D), of about unit size.
        """
        actions = np.asarray(action)
        c = as_ints("context", context, size=len(actions)).astype(np.uint64)
        where = scramble(c + np.uint64(self.seed) + np.uint64(1))
        if actions.dtype.kind in "OUS":
            return np.stack([self._text(str(text), key) for text, key in zip(actions.ravel(), where, strict=True)])
        parts = actions.reshape(len(actions), -1)
        place = scramble(np.arange(parts.shape[1], dtype=np.uint64) + np.uint64(1))
        if parts.dtype.kind == "f":
            signs = self._signs(where[:, None] ^ place)
            projected: Floats = np.einsum("bp,bpd->bd", np.nan_to_num(parts), signs) / np.sqrt(max(parts.shape[1], 1))
            return projected
        keys = scramble(where[:, None] ^ place ^ scramble(parts.astype(np.int64).astype(np.uint64) + np.uint64(7)))
        out: Floats = self._signs(keys).sum(axis=1) / np.sqrt(max(parts.shape[1], 1))
        return out

    def _text(self, text: str, key: np.uint64) -> Floats:
        words = sorted(set(text.split())) or [""]
        codes = np.array([zlib.crc32(word.encode()) for word in words], dtype=np.uint64)
        out: Floats = self._signs(scramble(codes) ^ key).sum(axis=0) / np.sqrt(len(words))
        return out
