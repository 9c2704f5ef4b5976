"""The adaptive form: weighs true and predicted rewards by their noise and their bias, which are measured online.

A step has one or more predictions of each reward (a calibrated one, a linear one, members of an ensemble) and the truth of its
anchors. Each prediction gives a gradient from the rollouts that are no anchors and one from the anchors, the truth one from the
anchors. Let a prediction k have the weight a_k on the others and c_k on the anchors, w_k = a_k + c_k in all, and the truth w on
the anchors. The fused gradient ``w g + sum_k w_k G_k`` should be g up to a factor, with little noise. So minimise, under ``w +
q = 1``,

    H |sum_k w_k G_k - q g|^2  +  a' V_others a / n_others  +  (c, w)' V_anchors (c, w) / n_anchors

with H the number of steps over which noise averages out while bias does not. That prediction gradients may be shrunk
(calibration shrinks what is noisy) costs nothing: only what points away from g does. Without bias the solution is the paper's
inverse-variance weight; with a bias that dwarfs the noise it is the residual form at kappa = 1; in between it is neither, and
better than both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.advantages import Advantages, clip_rms, group_rollouts
from wmrl_gym.corrections.anchor_pairs import Floats, as_floats
from wmrl_gym.corrections.bias_evidence import GradientEvidence
from wmrl_gym.corrections.residual import ResidualVariance, graded_anchors


@dataclass(frozen=True, slots=True)
class StreamWeights:
    """What a rollout's centred values are multiplied by.

    Args:
        others: the predictions of a rollout that is no graded anchor; float64, shape (K,).
        anchors: the predictions of a graded anchor, mostly negative; float64, shape (K,).
        real: the truth of a graded anchor.
        kappa: share of the gradient that is taken from the truth: w, in the notation above.
    """

    others: Floats
    anchors: Floats
    real: float
    kappa: float


def fuse_streams(*, n_others: int, n_anchors: int, others: ArrayLike, anchors: ArrayLike, bias: ArrayLike) -> StreamWeights:
    """The weights that minimise bias and noise together; see the head of this module.

    Args:
        n_others: rollouts that are no graded anchors.
        n_anchors: graded anchors.
        others: second moments of the centred predictions, V_others: float64, shape (K, K).
        anchors: second moments of an anchor's centred predictions and truth, V_anchors: float64, shape (K + 1, K + 1), truth
            last.
        bias: the form ``H |sum_k w_k G_k - q g|^2`` in (w_1, ..., w_K, q), in the units of the moments: float64, shape (K + 1,
            K + 1).

    Raises:
        ValueError: if there is no rollout at all.

    Unbiased predictions with a noise of half the truth's variance: an anchor's truth has the ratio of the variances as its
    weight, as in the paper, and its own prediction tells nothing more.

    >>> exact = 1e6 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    >>> moments = np.array([[1.5, 1.0], [1.0, 1.0]])
    >>> w = fuse_streams(n_others=90, n_anchors=10, others=[[1.5]], anchors=moments, bias=exact)
    >>> round(float(w.real / w.others[0]), 2), abs(round(float(w.anchors[0]), 2))
    (1.5, 0.0)

    A bias that dwarfs everything: predictions serve only to cancel noise, and weigh nothing in all.

    >>> w = fuse_streams(n_others=90, n_anchors=10, others=[[1.5]], anchors=moments, bias=1e6 * np.eye(2))
    >>> round(w.kappa, 2), abs(round(float(90 * w.others[0] + 10 * w.anchors[0]), 1))
    (1.0, 0.0)
    """
    if n_others + n_anchors < 1:
        raise ValueError(f"need a rollout, got {n_others} others and {n_anchors} anchors")
    v_others, v_anchors = np.atleast_2d(others), np.atleast_2d(anchors)
    k = len(v_others)
    # Unknowns: a (k), c (k), w, q. The bias sees them through w_k = a_k + c_k and q.
    total = np.zeros((k + 1, 2 * k + 2))
    total[:k, :k] = total[:k, k : 2 * k] = np.eye(k)
    total[k, -1] = 1.0
    form = total.T @ np.asarray(bias, dtype=np.float64) @ total
    n0, n1 = max(n_others, 1), max(n_anchors, 1)
    form[:k, :k] += v_others / n0
    form[k:-1, k:-1] += v_anchors / n1
    # A ridge: predictions that agree closely must not get huge opposite weights.
    form += 1e-4 * np.trace(v_others) / n0 * np.eye(2 * k + 2)
    there = np.concatenate([np.full(k, n_others > 0), np.full(k + 1, n_anchors > 0), [True]])
    constraint = np.zeros(2 * k + 2)
    constraint[-2:] = 1.0
    best: Floats = np.zeros(2 * k + 2)
    best[there] = np.linalg.solve(form[np.ix_(there, there)], constraint[there])
    best /= best @ constraint
    scale = n_others + n_anchors
    return StreamWeights(best[:k] * scale / n0, best[k : 2 * k] * scale / n1, float(best[2 * k]) * scale / n1, float(best[2 * k]))


@dataclass(frozen=True, slots=True)
class _Step:
    """A step between its advantages and the update: centred, scaled predictions (B, K), residual (B,), and masks (B,)."""

    predicted: Floats
    residual: Floats
    graded: NDArray[np.bool_]
    used: NDArray[np.bool_]


class FusedAdvantages:
    """Group advantages whose weights adapt to the measured noise and bias: the ``"adaptive"`` preset of a trainer.

    Each step: :meth:`advantages`, with predictions from before the step's own pairs, then :meth:`update` with the same rollouts'
    scores, the gradients of their log-probabilities or any features that span them (for a network: the last layer's, or a random
    projection), or :meth:`update_gradients`. Without them the weights stay at their prior.

    The first prediction should be a calibrated one. A second, linear in the raw prediction (``SmoothMonotone(ramps=1)``),
    helps: a calibration's expectation of the truth flattens where predictions are noisy, and the fusion takes from each what
    points right. The group's scale is ``sqrt(var f + floor s^2)``, smaller than the recommended form's, since the weights
    already know the noise.

    Args:
        horizon: steps H over which noise averages out.
        prior: kappa that the evidence starts from, in (0, 1).
        prior_steps: how many steps the prior counts for.
        memory: steps beyond which old evidence fades.
        floor: share of the residual variance s^2 under a group's scale.
        clip: advantages are clipped at so many root mean squares; None does not clip.
        width: width of the reward's range.

    Raises:
        ValueError: if an argument is out of its range.

    >>> fused = FusedAdvantages()
    >>> out = fused.advantages([0.4, 0.6, 0.5, 0.5], [np.nan, 1.0, np.nan, np.nan], [0, 0, 0, 0], anchor=[0, 1, 0, 0])
    >>> bool(out.mask.all()), bool(out.value[1] > out.value[2] > out.value[0])
    (True, True)
    """

    def __init__(
        self,
        *,
        horizon: float = 30.0,
        prior: float = 1.0 / 6.0,
        prior_steps: float = 20.0,
        memory: float = 200.0,
        floor: float = 0.03,
        clip: float | None = 3.0,
        width: float = 1.0,
    ) -> None:
        if not 0.0 < prior < 1.0:
            raise ValueError(f"prior must be in (0, 1), got {prior}")
        if not floor > 0 or (clip is not None and not clip > 0):
            raise ValueError(f"floor and clip must be positive, got {floor} and {clip}")
        self.prior, self.floor, self.clip = float(prior), float(floor), clip
        self._evidence = GradientEvidence(horizon=horizon, prior_steps=prior_steps, memory=memory)
        self._variance = ResidualVariance(width=width)
        # Second moments, in units of a group's scale: of predictions on all rollouts, with the truth on anchors, of the residual.
        self._others: Floats = np.ones((0, 0))
        self._anchors: Floats = np.ones((0, 0))
        self._residual = 0.2
        self._steps = 0
        self._last: _Step | None = None
        self.weights = StreamWeights(np.ones(1), np.zeros(1), 1.0, self.prior)

    @property
    def kappa(self) -> float:
        """The share of the gradient that the last step took from the truth."""
        return self.weights.kappa

    def advantages(
        self,
        calibrated: ArrayLike,
        real: ArrayLike,
        group: ArrayLike,
        *,
        anchor: ArrayLike,
        more: Sequence[ArrayLike] = (),
        propensity: ArrayLike | None = None,
        valid: ArrayLike | None = None,
    ) -> Advantages:
        """One step's advantages.

        Args:
            calibrated: f, float64, shape (B,).
            real: float64, shape (B,), NaN where unknown or not executed.
            group: int64, shape (B,).
            anchor: bool, shape (B,).
            more: further predictions of the same rewards, float64, shape (B,) each; equally many at every step.
            propensity: float64, shape (B,): where anchors had different probabilities. None: all the same.
            valid: bool, shape (B,); None is all.

        Raises:
            ValueError: if the number of predictions changes.
        """
        f = as_floats("calibrated", calibrated)
        r = as_floats("real", real, size=f.size)
        self._begin(1 + len(more))
        groups = group_rollouts(f, group, valid)
        used = groups.used
        centre = groups.mean(f)
        scale = np.sqrt(groups.mean((f - centre) ** 2) + self.floor * self._variance.variance)
        columns = [f, *(as_floats("more", other, size=f.size) for other in more)]
        predicted = np.stack([np.where(used, (x - groups.mean(x)) / scale, 0.0) for x in columns], axis=-1)
        graded = graded_anchors(r, anchor) & used
        truth = np.where(graded, (np.where(graded, r, 0.0) - centre) / scale, 0.0)
        residual = np.where(graded, truth - predicted[:, 0], 0.0)
        if not used.any():
            return groups.finish(truth, truth, None)
        self.weights = w = self._weigh(int(used.sum() - graded.sum()), int(graded.sum()))
        share = _importance(f.size, graded, propensity)
        value = np.where(graded, share * (w.real * truth + predicted @ w.anchors), predicted @ w.others)
        self._variance.update(f[graded], r[graded])
        self._last = _Step(predicted, residual, graded, used)
        return groups.finish(clip_rms(value, used, self.clip), predicted[:, 0] + residual, None)

    def _begin(self, k: int) -> None:
        if len(self._others) == 0:
            self._others, self._anchors = np.ones((k, k)), np.ones((k + 1, k + 1))
            self._anchors[k, k] += 0.2
        elif len(self._others) != k:
            raise ValueError(f"expected {len(self._others)} predictions as before, got {k}")

    def _weigh(self, n_others: int, n_anchors: int) -> StreamWeights:
        prior = self.prior / (1.0 - self.prior) * self._residual / max(n_anchors, 1)
        bias = self._evidence.form(len(self._others), prior=prior, variance=self._residual)
        return fuse_streams(n_others=n_others, n_anchors=n_anchors, others=self._others, anchors=self._anchors, bias=bias)

    def probes(self) -> Floats:
        """Coefficients, float64, shape (K + 1, B), whose sums with the rollouts' scores :meth:`update_gradients` asks for.

        For trainers that get gradients by differentiation rather than by scores: ``sum_i coefficient_i log pi(rollout i)``. One
        row a prediction, and the first one's residual last.

        Raises:
            RuntimeError: if no step has been weighted since the last update.
        """
        if self._last is None:
            raise RuntimeError("probes belong to a step: call advantages() first")
        step = self._last
        predicted = step.predicted.T / max(int(step.used.sum()), 1)
        return np.concatenate([predicted, step.residual[None] / max(int(step.graded.sum()), 1)])

    def update(self, score: ArrayLike | None = None) -> None:
        """Learn from the step just weighted.

        Args:
            score: float64, shape (B, D), of the same rollouts; None learns the noise only.
        """
        if score is None or self._last is None:
            self.update_gradients(None)
            return
        self.update_gradients(self.probes() @ np.asarray(score, dtype=np.float64).reshape(len(self._last.used), -1))

    def update_gradients(self, gradients: ArrayLike | None) -> None:
        """Learn from the step just weighted, given the gradients of its :meth:`probes`: float64, shape (K + 1, D)."""
        step, self._last = self._last, None
        if step is None or not step.graded.any():
            return
        rate = max(0.05, 1.0 / (2.0 + self._steps))
        self._steps += 1
        used, residual = step.predicted[step.used], step.residual[step.graded]
        known = step.predicted[step.graded]
        known = np.concatenate([known, known[:, :1] + residual[:, None]], axis=1)
        self._others = self._others + rate * (used.T @ used / len(used) - self._others)
        self._anchors = self._anchors + rate * (known.T @ known / len(known) - self._anchors)
        self._residual += rate * (float((residual**2).mean()) - self._residual)
        if gradients is not None:
            self._evidence.update(np.asarray(gradients, dtype=np.float64), n_anchors=len(residual))

    def state_dict(self) -> dict[str, Any]:
        """Moments, evidence and the residual variance; call it between :meth:`update` and :meth:`advantages`."""
        return {
            "others": self._others.copy(),
            "anchors": self._anchors.copy(),
            "residual": self._residual,
            "steps": self._steps,
            "evidence": self._evidence.state_dict(),
            "variance": self._variance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._others, self._anchors = (np.array(state[key], dtype=np.float64) for key in ("others", "anchors"))
        self._residual, self._steps = float(state["residual"]), int(state["steps"])
        self._evidence.load_state_dict(state["evidence"])
        self._variance.load_state_dict(state["variance"])
        self._last = None


def _importance(size: int, graded: NDArray[np.bool_], propensity: ArrayLike | None) -> Floats:
    """Inverse probabilities of the graded anchors, of mean 1; 1 for other rollouts."""
    share = np.ones(size)
    if propensity is not None and graded.any():
        inverse = 1.0 / as_floats("propensity", propensity, size=size)[graded]
        share[graded] = inverse / inverse.mean()
    return share
