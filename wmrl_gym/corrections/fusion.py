"""The adaptive form: fuse truth and predictions by what their noise and their bias have been measured to be.

A step gives three estimates of one policy gradient: g1 from the predictions of rollouts that are no anchors, g2 from the
anchors' truths, g3 from the anchors' own predictions. With v the variance of a rollout's share and H the horizon over which
noise averages out while bias does not, their errors have the covariance

    ====  ==================  ===========  ==================
          g1                  g2           g3
    ====  ==================  ===========  ==================
    g1    v_f / n0 + H b^2    0            H b^2
    g2    0                   v_r / n1     c_fr / n1
    g3    H b^2               c_fr / n1    v_f / n1 + H b^2
    ====  ==================  ===========  ==================

and expectations lam g, g, lam g (calibration shrinks what is noisy; a group's scale does not mind). The weights that are
unbiased for g and have the least variance follow. Without bias they are the paper's inverse-variance weights; with a bias that
dwarfs the noise they are the residual form at kappa = 1; in between they are neither, and better than both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_gym.corrections.advantages import Advantages, clip_rms, group_rollouts
from wmrl_gym.corrections.kappa import BiasEvidence
from wmrl_gym.corrections.pairs import Floats, as_floats
from wmrl_gym.corrections.residual import ResidualVariance, graded_anchors


@dataclass(frozen=True, slots=True)
class StreamWeights:
    """What a rollout's centred values are multiplied by.

    Args:
        others: the prediction of a rollout that is no graded anchor.
        real: the truth of a graded anchor.
        predicted: the prediction of a graded anchor; mostly negative.
        kappa: share of the model's bias that this removes.
    """

    others: float
    real: float
    predicted: float
    kappa: float


def fuse_streams(
    *, n_others: int, n_anchors: int, moments: tuple[float, float, float], bias: float = 0.0, shrunk: float = 1.0
) -> StreamWeights:
    """The unbiased weights of least variance.

    Args:
        n_others: rollouts that are no graded anchors.
        n_anchors: graded anchors.
        moments: v_f, the variance of a centred prediction; v_e, that of a residual truth - prediction; c_fe, their covariance.
        bias: H b^2 in the units of the moments.
        shrunk: lam, by how much predictions are shrunk towards their mean, in (0, 1].

    Raises:
        ValueError: if there is no rollout at all.

    Unbiased predictions with a noise of half the truth's variance: the weight of an anchor is the ratio of the variances, as in
    the paper, and its own prediction tells nothing more.

    >>> w = fuse_streams(n_others=90, n_anchors=10, moments=(1.5, 0.5, -0.5))
    >>> round(w.real / w.others, 3), abs(round(w.predicted, 3))
    (1.5, 0.0)

    A large bias: its predictions serve only to cancel noise.

    >>> round(fuse_streams(n_others=90, n_anchors=10, moments=(1.5, 0.5, -0.5), bias=1e6).kappa, 3)
    1.0
    """
    if n_others + n_anchors < 1:
        raise ValueError(f"need a rollout, got {n_others} others and {n_anchors} anchors")
    v_f, v_e, c_fe = moments
    limit = 0.99 * float(np.sqrt(v_f * v_e))
    c_fe = float(np.clip(c_fe, -limit, limit))
    n0, n1 = max(n_others, 1), max(n_anchors, 1)
    v_r, c_fr = v_f + 2.0 * c_fe + v_e, v_f + c_fe
    covariance = np.array(
        [
            [v_f / n0 + bias, 0.0, bias],
            [0.0, v_r / n1, c_fr / n1],
            [bias, c_fr / n1, v_f / n1 + bias],
        ]
    )
    there = np.array([n_others > 0, n_anchors > 0, n_anchors > 0])
    signal = np.array([shrunk, 1.0, shrunk])[there]
    best: Floats = np.zeros(3)
    covariance = covariance[np.ix_(there, there)]
    best[there] = np.linalg.solve(covariance + 1e-9 * np.trace(covariance) * np.eye(len(signal)), signal)
    best /= best[there] @ signal
    total = n_others + n_anchors
    kappa = 1.0 - shrunk * (best[0] + best[2])
    others, truth, own = (float(b) * total / n for b, n in zip(best, (n0, n1, n1), strict=True))
    return StreamWeights(others, truth, own, float(kappa))


class FusedAdvantages:
    """Group advantages whose weights adapt to the measured noise and bias: the ``"adaptive"`` preset at the trainer's level.

    Each step: :meth:`advantages`, with f from before the step's own pairs, then :meth:`update` with the same rollouts' scores,
    the gradients of their log-probabilities or any features that span them (for a network: the last layer's, or a random
    projection). Without :meth:`update` the weights stay at their prior.

    The group's scale is ``sqrt(var f + floor s^2)``: smaller than the recommended form's, since the weights already know the
    noise.

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
        prior: float = 1.0 / 3.0,
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
        self._evidence = BiasEvidence(horizon=horizon, prior_steps=prior_steps, memory=memory)
        self._variance = ResidualVariance(width=width)
        # v_f, v_e, c_fe in units of a group's scale, until measured.
        self._moments: Floats = np.array([1.0, 0.2, 0.0])
        self._steps = 0
        self._last: tuple[Floats, Floats, NDArray[np.bool_], NDArray[np.bool_]] | None = None
        self.weights = StreamWeights(1.0, 1.0, 0.0, self.prior)

    @property
    def kappa(self) -> float:
        """The share of the bias that the last step's weights removed."""
        return self.weights.kappa

    def advantages(
        self,
        calibrated: ArrayLike,
        real: ArrayLike,
        group: ArrayLike,
        *,
        anchor: ArrayLike,
        propensity: ArrayLike | None = None,
        valid: ArrayLike | None = None,
    ) -> Advantages:
        """One step's advantages.

        Args:
            calibrated: f, float64, shape (B,).
            real: float64, shape (B,), NaN where unknown or not executed.
            group: int64, shape (B,).
            anchor: bool, shape (B,).
            propensity: float64, shape (B,): where anchors had different probabilities. None: all the same.
            valid: bool, shape (B,); None is all.
        """
        f = as_floats("calibrated", calibrated)
        r = as_floats("real", real, size=f.size)
        groups = group_rollouts(f, group, valid)
        centre = groups.mean(f)
        scale = np.sqrt(groups.mean((f - centre) ** 2) + self.floor * self._variance.variance)
        graded = graded_anchors(r, anchor) & groups.used
        predicted = np.where(groups.used, (f - centre) / scale, 0.0)
        residual = np.where(graded, (np.where(graded, r, 0.0) - f) / scale, 0.0)
        n1, n0 = int(graded.sum()), int(groups.used.sum() - graded.sum())
        if n0 + n1 == 0:
            return groups.finish(predicted, predicted, None)
        self.weights = w = self._weigh(n0, n1)
        share = np.ones(f.size)
        if propensity is not None and n1 > 0:
            inverse = 1.0 / as_floats("propensity", propensity, size=f.size)[graded]
            share[graded] = inverse / inverse.mean()
        value = np.where(graded, share * (w.real * (predicted + residual) + w.predicted * predicted), w.others * predicted)
        self._variance.update(f[graded], r[graded])
        self._last = predicted, residual, graded, groups.used
        return groups.finish(clip_rms(value, groups.used, self.clip), predicted + residual, None)

    def _weigh(self, n_others: int, n_anchors: int) -> StreamWeights:
        v_f, v_e, c_fe = (float(m) for m in self._moments)
        prior = self.prior / (1.0 - self.prior) * v_e / max(n_anchors, 1)
        bias, shrunk = self._evidence.estimate(prior=prior, variance=v_e)
        return fuse_streams(n_others=n_others, n_anchors=n_anchors, moments=(v_f, v_e, c_fe), bias=bias, shrunk=shrunk)

    def update(self, score: ArrayLike | None = None) -> None:
        """Learn from the step just weighted.

        Args:
            score: float64, shape (B, D), of the same rollouts; None learns the noise only.
        """
        if self._last is None:
            return
        predicted, residual, graded, used = self._last
        self._last = None
        if not graded.any():
            return
        p, e = predicted[graded], residual[graded]
        now = np.array([(predicted[used] ** 2).mean(), (e**2).mean(), (p * e).mean()])
        self._steps += 1
        self._moments = self._moments + max(0.05, 1.0 / (1.0 + self._steps)) * (now - self._moments)
        if score is not None:
            s = np.asarray(score, dtype=np.float64).reshape(predicted.size, -1)
            self._evidence.update(e @ s[graded] / e.size, predicted[used] @ s[used] / used.sum(), n_anchors=e.size)

    def state_dict(self) -> dict[str, Any]:
        """Moments, evidence and the residual variance; call it between :meth:`update` and :meth:`advantages`."""
        return {
            "moments": self._moments.copy(),
            "steps": self._steps,
            "evidence": self._evidence.state_dict(),
            "variance": self._variance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._moments, self._steps = np.array(state["moments"], dtype=np.float64), int(state["steps"])
        self._evidence.load_state_dict(state["evidence"])
        self._variance.load_state_dict(state["variance"])
        self._last = None
