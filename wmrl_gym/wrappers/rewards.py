"""What the correction wrappers do to a batch of rewards; the single and the vector wrappers share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections import (
    ActionSigns,
    AdaptiveKappa,
    ContextualCalibration,
    Judgement,
    OnlineCalibration,
    PairMeasures,
    ResidualVariance,
    RewardGuard,
    residual_reward,
)
from wmrl_gym.wrappers.base import RIGHT_ORDER, Correction, Denoising, OrderError, payable

__all__ = ["Correction", "Debiasing", "Denoising", "OrderError", "Residual", "payable"]

if TYPE_CHECKING:
    from wmrl_gym.engine.describing import Features
    from wmrl_gym.engine.engine import Engine
    from wmrl_gym.engine.info import StepInfo as Info

_WAITING_PAIRS = 100_000
"""Background anchors whose truth is awaited; beyond that the oldest, which nobody has asked for, are forgotten."""


class Debiasing(Correction):
    """Replaces predicted rewards by f of them, the real reward to be expected, and refits f as anchor pairs arrive."""

    name = "OnlineDebiasing"
    written: tuple[str, ...] = ("calibrated_reward", "residual_var")

    def __init__(
        self, calibration: OnlineCalibration, *, guard: RewardGuard | None = None, features: Features | None = None
    ) -> None:
        self.calibration = calibration
        self.features = features
        span = calibration.reward_range
        self.residual = ResidualVariance(width=1.0 if span is None else span[1] - span[0])
        self.measures = PairMeasures()
        self.guard = guard
        if guard is not None:
            self.written = (*type(self).written, "anchor", "propensity", "real_reward")
        self._stale = 0
        self._unconfirmed, self._verified = 0, 0
        self._inverse = (0, 1.0)
        self._updates = 0
        self.evidence = calibration.evidence
        """How sure the calibration was at the newest step, before its pairs, that predictions err by more than noise."""

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        super().check_order(below)
        if below:
            raise OrderError(f"{cls.name} must stand below {below[0].name}, which needs its calibrated rewards; {RIGHT_ORDER}")

    def attach(self, engine: Engine, below: list[Correction]) -> None:
        """See :meth:`Correction.attach`; with a guard the engine records imagined episodes, so that they can be executed."""
        super().attach(engine, below)
        if isinstance(self.calibration, ContextualCalibration):
            engine.describe(self.features)
        if self.guard is not None:
            engine.keep_log()

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        rows = payable(info)
        paying = np.count_nonzero(rows)
        if paying:
            at = slice(None) if paying == len(rows) else rows
            columns = ("wm_reward", "wm_reward_std", "context", "depth")
            said = self.calibrated(*(info[name][at] for name in columns), features=self._done(at))
            if self.guard is not None and said.unconfirmed.any():
                self._verify(np.flatnonzero(rows)[said.unconfirmed], info)
            calibrated = info["calibrated_reward"]
            calibrated[at] = said.value
            info["residual_var"][at] = self.residual.variance
            imagined = rows
            if info.has("real_reward"):
                imagined = rows & ~np.isfinite(info["real_reward"])
                reward = np.where(rows, info["real_reward"], reward)
            self._stale += int(np.count_nonzero(imagined))
            reward = np.where(imagined, calibrated, reward)
        self.evidence = self.calibration.evidence
        # Only now may this step's own pairs be learnt from: otherwise f would have seen the truth it is to predict.
        self.learn()
        self._refresh()
        return reward

    def _refresh(self) -> None:
        """Where the model has learnt, let it predict old pairs anew: a contextual correction is one of today's model."""
        updates, calibration = self.engine.learner.updates, self.calibration
        if updates == self._updates or not isinstance(calibration, ContextualCalibration):
            return
        self._updates = updates
        again = self.engine.repredicted(calibration.keys) if len(calibration.keys) else None
        if again is not None and len(again.key):
            calibration.repredict(again.key, again.predicted, again.features)

    def calibrated(
        self,
        predicted: NDArray[np.float64],
        std: NDArray[np.float64],
        context: NDArray[np.int64],
        depth: NDArray[np.int64],
        *,
        features: NDArray[np.float64] | None = None,
    ) -> Judgement:
        """f of n raw predictions as it is now, held down by the guard if there is one.

        Args:
            predicted: float64, shape (n,).
            std: the model's own standard deviations, float64, shape (n,); NaN where it does not know.
            context: int64, shape (n,).
            depth: int64, shape (n,).
            features: what was done, float64, shape (n, F), for a contextual correction; see :meth:`features_now`.
        """
        x = predicted.astype(np.float64)
        f = self.calibration.predict(x, context=self.contexts(context, depth), features=features)
        if self.guard is None or not self.guard.ready:
            return Judgement(f, np.zeros(len(f), bool))
        span = self.calibration.reward_range or (0.0, 1.0)
        error, width = self.calibration.standard_error(x, features=features), span[1] - span[0]
        said = self.guard.judge(x, calibrated=f, standard_error=error, std=std.astype(np.float64), width=width)
        return Judgement(np.maximum(said.value, span[0]), said.unconfirmed)

    @property
    def features_now(self) -> NDArray[np.float64] | None:
        """What was done at the newest step of each slot, float64, shape (num_slots, F); None where no correction asks."""
        descriptions = self.engine.descriptions
        return None if descriptions is None else descriptions.now

    def _done(self, at: slice | NDArray[np.bool_]) -> NDArray[np.float64] | None:
        now = self.features_now
        return None if now is None else now[at]

    def _verify(self, slots: NDArray[np.int64], info: Info) -> None:
        """Have some of the episodes executed whose predictions nothing confirms, the highest first."""
        self._unconfirmed += len(slots)
        for key in ("real_reward", "anchor", "propensity"):  # the engine's own arrays are not to be written
            info[key] = info[key].copy()
        imagined = slots[~np.isfinite(info["real_reward"][slots]) & ~info["anchor"][slots]]
        if len(imagined):
            taken, truths = self.engine.verify(imagined[np.argsort(-info["wm_reward"][imagined], kind="stable")])
            self._verified += int(taken.sum())
            for slot, truth in truths.items():
                info["real_reward"][slot], info["anchor"][slot] = truth, True
        if self.engine.options.anchor_mode == "blocking":
            # Those that ran did so because of what was predicted, and not by chance.
            info["propensity"][slots[np.isfinite(info["real_reward"][slots])]] = 1.0

    def learn(self) -> None:
        """Take in the pairs that have arrived, once they are a 32nd of those that f knows, or 128: fewer would not move it."""
        if self.stream.added - self.cursor < max(1, min(self.calibration.n_pairs // 32, 128)):
            return
        pairs, self.cursor = self.stream.since(self.cursor)
        context = self.contexts(pairs.context, pairs.step)
        done = pairs.features if pairs.features.shape[1] else None
        before = self.calibration.predict(pairs.predicted, context=context, features=done)
        self.residual.update(before, pairs.real, weight=self._evened(pairs.propensity))
        self.measures.update(pairs.predicted, before, pairs.real, group=pairs.group, context=context, propensity=pairs.propensity)
        self.calibration.push(pairs.predicted, pairs.real, context=context, features=done, key=self.engine.keys_of(pairs))
        if self.guard is not None:
            self.guard.learn(pairs.predicted, pairs.real, pairs.predicted_std)
        self._stale = 0

    def _evened(self, propensity: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inverse propensities over their running mean: 1, where anchors are chosen evenly. float64, shape (n,)."""
        count, mean = self._inverse
        weight = np.ones(len(propensity))
        for at, inverse in enumerate((1.0 / propensity).tolist()):
            count += 1
            mean += (inverse - mean) / min(count, 500)
            weight[at] = inverse / mean
        self._inverse = count, float(mean)
        return weight

    def stats(self) -> dict[str, float]:
        own = {
            "debias/pairs": float(self.calibration.n_pairs),
            "debias/rejected": float(self.calibration.n_rejected),
            "debias/rmse": float(np.sqrt(self.residual.variance)),
            "debias/stale": float(self._stale),
            "debias/contextual": float(isinstance(self.calibration, ContextualCalibration)),
        }
        if isinstance(self.calibration, ContextualCalibration):
            own |= {"debias/share": self.calibration.share, "debias/evidence": self.calibration.evidence}
        if self.guard is not None:
            own |= {"guard/unconfirmed": float(self._unconfirmed), "guard/verified": float(self._verified)}
        return own | {f"debias/{name}": value for name, value in self.measures.stats().items()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "calibration": self.calibration.state_dict(),
            "residual": self.residual.state_dict(),
            "measures": self.measures.state_dict(),
            "guard": None if self.guard is None else self.guard.state_dict(),
            "counts": (self._stale, self._unconfirmed, self._verified),
            "inverse": self._inverse,
            "evidence": self.evidence,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: it is of a contextual calibration, and this one is not, or the other way round.
        """
        names = "smooth or binned", "contextual"
        saved, own = "contextual" in state["calibration"], isinstance(self.calibration, ContextualCalibration)
        if saved != own:
            raise ValueError(
                f"the state was saved with a {names[saved]} calibration, and this one is {names[own]}: make the environment as "
                f'it was; the preset "recommended" of earlier versions is called "smooth", and it is "contextual" now where '
                "attempts have features"
            )
        super().load_state_dict(state)
        self.calibration.load_state_dict(state["calibration"])
        self.residual.load_state_dict(state["residual"])
        self.measures.load_state_dict(state["measures"])
        if self.guard is not None and state["guard"] is not None:
            self.guard.load_state_dict(state["guard"])
        self._stale, self._unconfirmed, self._verified = state["counts"]
        self._inverse = state["inverse"]
        self.evidence = state.get("evidence", self.evidence)


class Residual(Correction):
    """Adds to each anchor's reward the difference between its true reward and f, scaled by how rare anchors are."""

    name = "ResidualCorrection"
    written = ()

    def __init__(self, kappa: float | AdaptiveKappa, *, late: bool, max_gain: float) -> None:
        if not isinstance(kappa, AdaptiveKappa) and not 0.0 <= kappa <= 1.0:
            raise ValueError(f"kappa must be in [0, 1], got {kappa}")
        if not max_gain > 0:
            raise ValueError(f"max_gain must be positive, got {max_gain}")
        self._kappa = kappa
        self.late = late
        self.max_gain = max_gain
        self._waiting: dict[int, tuple[float, float, NDArray[np.float64] | None]] = {}
        self.below = []
        self._signs = ActionSigns()

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        super().check_order(below)
        if Debiasing not in below:
            raise OrderError(f"{cls.name} needs OnlineDebiasing below it: its residuals are taken against f; {RIGHT_ORDER}")
        if any(issubclass(each, Denoising) for each in below):
            raise OrderError(f"{cls.name} must stand below {Denoising.name}; {RIGHT_ORDER}")

    @property
    def kappa(self) -> float:
        """The share of an anchor's residual that is passed on."""
        return self._kappa.kappa if isinstance(self._kappa, AdaptiveKappa) else self._kappa

    def gain(self, propensity: NDArray[np.float64]) -> NDArray[np.float64]:
        """kappa / p, the factor of a residual: float64, shape (n,). At p = 1 every truth is known, so kappa is never below p.

        On a contextual correction it is the nearer to 1, which mixes real and predicted rewards, the less that is sure of itself.
        """
        gain = np.minimum(np.maximum(self.kappa, propensity) / propensity, self.max_gain)
        return 1.0 + self._evidence() * (gain - 1.0)

    def _evidence(self) -> float:
        """How sure the correction below is that predictions err by more than noise: 1 where it does not say."""
        return next((each.evidence for each in self.below if isinstance(each, Debiasing)), 1.0)

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        if not (info.has("real_reward") or info.has("pair")):
            return reward
        f, real = info["calibrated_reward"], info["real_reward"]
        rows = np.isfinite(f) & np.isfinite(real)
        if rows.any():
            p = info["propensity"][rows]
            reward = reward.copy()
            reward[rows] = residual_reward(f[rows], real[rows], anchor=True, propensity=p, kappa=self.gain(p) * p)
            if isinstance(self._kappa, AdaptiveKappa):
                self._kappa.update(real[rows] - f[rows], self._features(action, info, rows))
        late = (info["pair"] >= 0) & np.isfinite(f) & ~np.isfinite(real)
        if late.any():
            features = self._features(action, info, late) if isinstance(self._kappa, AdaptiveKappa) else None
            for at, row in enumerate(np.flatnonzero(late)):
                feature = None if features is None else features[[at]]
                self._waiting[int(info["pair"][row])] = (float(f[row]), float(info["propensity"][row]), feature)
        while len(self._waiting) > _WAITING_PAIRS:
            self._waiting.pop(next(iter(self._waiting)))
        return reward

    def _features(self, action: Any, info: Info, rows: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        """What was done, in numbers that a bias may depend on; None for actions of several parts."""
        if action is None or isinstance(action, dict):
            return None
        chosen = [each for each, wanted in zip(action, rows, strict=True) if wanted]
        if not chosen or isinstance(chosen[0], (dict, tuple)):
            return None
        return self._signs(np.asarray(chosen), info["context"][rows])

    def late_reward(self, pair: int, real: float, *, completion: float = 1.0) -> float:
        """The corrected reward of a background anchor whose truth has arrived.

        Args:
            pair: its number.
            real: its truth.
            completion: share of the anchors whose truth arrives; the propensity is multiplied by it.
        """
        f, p, features = self._waiting.pop(pair)
        if isinstance(self._kappa, AdaptiveKappa):
            self._kappa.update(np.array([real - f]), features)
        return f + float(self.gain(np.array([p * completion]))[0]) * (real - f)

    def __contains__(self, pair: int) -> bool:
        """Whether the truth of this pair is awaited."""
        return pair in self._waiting

    def forget(self, pair: int) -> None:
        """The truth of this anchor will not arrive."""
        self._waiting.pop(pair, None)

    def stats(self) -> dict[str, float]:
        return {"residual/kappa": self.kappa, "residual/waiting": float(len(self._waiting))}

    def state_dict(self) -> dict[str, Any]:
        adaptive = self._kappa.state_dict() if isinstance(self._kappa, AdaptiveKappa) else None
        return super().state_dict() | {"waiting": dict(self._waiting), "adaptive": adaptive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._waiting = dict(state["waiting"])
        if isinstance(self._kappa, AdaptiveKappa):
            self._kappa.load_state_dict(state["adaptive"])
