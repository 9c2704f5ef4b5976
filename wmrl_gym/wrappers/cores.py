"""What the correction wrappers do to a batch of rewards; the single and the vector wrappers share it.

A core reads and writes the info arrays of one step (n rows) and returns the rewards. It never touches a step on which no reward
is due, one whose reward is not valid, or the step at which a vector environment resets a slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections import ActionSigns, AdaptiveKappa, AnchorWeight, OnlineCalibration, ResidualVariance, residual_reward
from wmrl_gym.corrections.stream import AnchorStream

Info = dict[str, NDArray[Any]]

STEP_KEYS = (
    "anchor",
    "group",
    "propensity",
    "context",
    "pair",
    "wm_reward",
    "wm_reward_std",
    "real_reward",
    "calibrated_reward",
    "residual_var",
    "reward_due",
    "reward_valid",
    "weight",
)
"""The info keys that are there at every reset and step of an environment with a world model."""


_PARTIAL_GROUPS = 256
"""Groups that wait for their last members; the oldest, one of whose grades was lost, is then measured without it."""


_WAITING_PAIRS = 100_000
"""Background anchors whose truth is awaited; beyond that the oldest, which nobody has asked for, are forgotten."""


class OrderError(ValueError):
    """Wrappers stand in an order that makes no sense; the message gives the one that does."""


class Correction(ABC):
    """One correction of rewards, fed by the anchor stream."""

    name: ClassVar[str]
    written: ClassVar[tuple[str, ...]] = ()
    """Info keys that :meth:`correct` changes."""

    def attach(self, stream: AnchorStream, below: list[Correction], *, group_size: int = 1) -> None:
        """Meet the anchor stream, the corrections that act before this one, and the size of the groups.

        Raises:
            OrderError: this correction does not belong above those.
        """
        self.check_order([type(correction) for correction in below])
        self.stream = stream
        self.cursor = stream.added
        self.below = below
        self.group_size = group_size

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        """Raise :class:`OrderError` unless this correction may stand above those."""
        if cls in below:
            raise OrderError(f"{cls.name} is there twice; {RIGHT_ORDER}")

    @abstractmethod
    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        """The corrected rewards of n steps, float64, shape (n,); the arrays in ``info`` may be changed.

        Args:
            reward: float64, shape (n,).
            info: arrays of n rows.
            action: the n actions, for corrections that learn from what was done.
        """

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """What a log should say."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run."""
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to what :meth:`state_dict` described."""
        self.cursor = int(state["cursor"])


def payable(info: Info) -> NDArray[np.bool_]:
    """The steps that owe a valid reward which the model predicted: bool, shape (n,)."""
    rows: NDArray[np.bool_] = info["reward_due"].astype(bool) & info["reward_valid"].astype(bool)
    return rows & np.isfinite(info["wm_reward"])


class Debiasing(Correction):
    """Passes predicted rewards through f, and refits f on the pairs that have arrived since."""

    name = "OnlineDebiasing"
    written = ("calibrated_reward", "residual_var")

    def __init__(self, calibration: OnlineCalibration) -> None:
        self.calibration = calibration
        span = calibration.reward_range
        self.residual = ResidualVariance(width=1.0 if span is None else span[1] - span[0])
        self.bias = 0.0
        self._seen = 0

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        super().check_order(below)
        if below:
            raise OrderError(f"{cls.name} must stand below {below[0].name}, which needs its calibrated rewards; {RIGHT_ORDER}")

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        rows = payable(info)
        if rows.any():
            calibrated = self.calibration.predict(info["wm_reward"][rows], context=info["context"][rows])
            info["calibrated_reward"][rows] = calibrated
            info["residual_var"][rows] = self.residual.variance
            imagined = rows & ~np.isfinite(info["real_reward"])
            reward = reward.copy()
            reward[imagined] = info["calibrated_reward"][imagined]
        # Only now may this step's own pairs be learnt from: otherwise f would have seen the truth it is to predict.
        self.learn()
        return reward

    def learn(self) -> None:
        """Take in the pairs that have arrived."""
        pairs, self.cursor = self.stream.since(self.cursor)
        if len(pairs):
            before = self.calibration.predict(pairs.predicted, context=pairs.context)
            self.residual.update(before, pairs.real)
            residual = pairs.real - before
            self._seen += len(pairs)
            self.bias += (float(residual.mean()) - self.bias) * len(pairs) / min(self._seen, 500)
            self.calibration.push(pairs.predicted, pairs.real, context=pairs.context)

    def stats(self) -> dict[str, float]:
        return {
            "debias/pairs": float(self.calibration.n_pairs),
            "debias/rejected": float(self.calibration.n_rejected),
            "debias/rmse": float(np.sqrt(self.residual.variance)),
            "debias/bias": self.bias,
        }

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "calibration": self.calibration.state_dict(),
            "residual": self.residual.state_dict(),
            "bias": self.bias,
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.calibration.load_state_dict(state["calibration"])
        self.residual.load_state_dict(state["residual"])
        self.bias, self._seen = float(state["bias"]), int(state["seen"])


class Residual(Correction):
    """Adds to each anchor's reward what its truth says against f, scaled by how rare anchors are."""

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
        self._signs = ActionSigns()

    @classmethod
    def check_order(cls, below: list[type[Correction]]) -> None:
        super().check_order(below)
        if Debiasing not in below:
            raise OrderError(f"{cls.name} needs OnlineDebiasing below it: its residuals are taken against f; {RIGHT_ORDER}")
        if Denoising in below:
            raise OrderError(f"{cls.name} must stand below {Denoising.name}; {RIGHT_ORDER}")

    @property
    def kappa(self) -> float:
        """The share of an anchor's residual that is passed on."""
        return self._kappa.kappa if isinstance(self._kappa, AdaptiveKappa) else self._kappa

    def gain(self, propensity: NDArray[np.float64]) -> NDArray[np.float64]:
        """kappa / p, the factor of a residual: float64, shape (n,). At p = 1 every truth is known, so kappa is never below p."""
        return np.minimum(np.maximum(self.kappa, propensity) / propensity, self.max_gain)

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
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


class Denoising(Correction):
    """Gives each step the weight that the noise of its reward deserves (mode "paper": anchors count more)."""

    name = "InverseVarianceDenoising"
    written = ("weight",)

    def __init__(self, weight: AnchorWeight) -> None:
        self.weight = weight
        self._partial: dict[int, list[tuple[float, float, int]]] = {}

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        info["weight"] = np.where(info["anchor"].astype(bool), self.weight.weight, 1.0)
        pairs, self.cursor = self.stream.since(self.cursor)
        for group, predicted, real, context in zip(pairs.group, pairs.predicted, pairs.real, pairs.context, strict=True):
            # The members of a group finish one by one; their spread is known when all have.
            members = self._partial.setdefault(int(group), [])
            members.append((float(predicted), float(real), int(context)))
            if len(members) == self.group_size:
                self._measure(int(group))
        while len(self._partial) > _PARTIAL_GROUPS:
            self._measure(next(iter(self._partial)))
        return reward

    def _measure(self, group: int) -> None:
        predicted, real, context = (np.array(column) for column in zip(*self._partial.pop(group), strict=True))
        for correction in self.below:
            if isinstance(correction, Debiasing):
                # The paper measures the disagreement after the pairs went into f.
                predicted = correction.calibration.predict(predicted, context=context)
        self.weight.update(predicted, real, np.full(len(real), group))

    def stats(self) -> dict[str, float]:
        return {"denoise/weight": self.weight.weight, "denoise/disagreement": self.weight.disagreement}

    def state_dict(self) -> dict[str, Any]:
        partial = {group: list(members) for group, members in self._partial.items()}
        return super().state_dict() | {"weight": self.weight.state_dict(), "partial": partial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weight.load_state_dict(state["weight"])
        self._partial = {group: list(members) for group, members in state["partial"].items()}


RIGHT_ORDER = "the order is WorldModelWrapper, OnlineDebiasing, ResidualCorrection, InverseVarianceDenoising (innermost first)"
