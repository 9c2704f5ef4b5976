"""The modes of InverseVarianceDenoising, shared by the single and the vector wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.corrections import AnchorWeight, GradientFusion, OnlineCalibration, RewardFusion, RewardShrinkage
from wmrl_gym.wrappers.rewards import Correction, Debiasing, Denoising, payable

if TYPE_CHECKING:
    from wmrl_gym.engine.info import StepInfo as Info

Mode = Literal["paper", "gradient", "reward"]
Method = Literal["delta", "bootstrap"]

_PARTIAL_GROUPS = 256
"""Groups that wait for their last members; the oldest, one of whose grades was lost, is then measured without it."""


def make_denoising(mode: Mode, method: Method = "delta") -> Denoising:
    """The correction that a mode of InverseVarianceDenoising stands for.

    Raises:
        ValueError: an unknown mode, or a method for a mode that has none.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, got {mode!r}")
    if method != "delta" and mode != "gradient":
        raise ValueError(f'method={method!r} is for mode "gradient", got mode {mode!r}')
    if mode == "paper":
        return PaperDenoising(AnchorWeight())
    return GradientDenoising(RewardFusion(GradientFusion(method=method))) if mode == "gradient" else RewardDenoising()


def calibration_of(below: list[Correction]) -> OnlineCalibration | None:
    """The calibration of the debiasing below, if there is one."""
    return next((each.calibration for each in below if isinstance(each, Debiasing)), None)


def prediction_of(info: Info) -> NDArray[np.float64]:
    """The predictions to denoise: calibrated where there is calibration, else raw; NaN where no reward is due."""
    calibrated = info["calibrated_reward"].astype(np.float64)
    return np.where(np.isfinite(calibrated), calibrated, info["wm_reward"].astype(np.float64))


class Weighing(Denoising):
    """Sets the weight of each step: that of an anchor, or 1."""

    written = ("weight",)

    def __init__(self) -> None:
        self._moments = (1.0, 1.0)

    def _weigh(self, info: Info, weight: float) -> None:
        paying = payable(info)
        n = int(np.count_nonzero(paying))
        heavy, anchors = 0, info["anchor"]
        if np.count_nonzero(anchors):
            info["weight"] = np.where(anchors, weight, 1.0)
            heavy = int(np.count_nonzero(paying & anchors))
        if n:
            keep = max(0.0, 1.0 - n / 500.0)
            mean, square = self._moments
            share = (1.0 - keep) * heavy / n
            rest = (1.0 - keep) - share
            self._moments = keep * mean + rest + share * weight, keep * square + rest + share * weight**2

    def stats(self) -> dict[str, float]:
        mean, square = self._moments
        return {"denoise/effective_share": float(mean**2 / square)}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"moments": np.array(self._moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._moments = float(state["moments"][0]), float(state["moments"][1])


class PaperDenoising(Weighing):
    """The steps of anchors get the weight ``clip(1 + c s^2, 1, 4)``, all others 1."""

    def __init__(self, weight: AnchorWeight) -> None:
        super().__init__()
        self.weight = weight
        self._partial: dict[int, list[tuple[float, float, int]]] = {}

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        self._weigh(info, self.weight.weight)
        # Fewer than a group measure nothing; of singletons some pools are measured at once.
        if self.stream.added - self.cursor >= (self.group_size if self.group_size > 1 else 16 * self.weight.pool):
            pairs, self.cursor = self.stream.since(self.cursor)
            context = self.contexts(pairs.context, pairs.step)
            self._measure(list(self._complete(pairs.group, pairs.predicted, pairs.real, context)))
        return reward

    def _complete(self, *columns: NDArray[Any]) -> Iterator[tuple[int, list[tuple[float, float, int]]]]:
        """Take pairs in, and give the groups of which all members have finished: only then is their spread known."""
        for group, *pair in zip(*(column.tolist() for column in columns), strict=True):
            members = self._partial.setdefault(group, [])
            members.append((pair[0], pair[1], pair[2]))
            if len(members) == self.group_size:
                yield group, self._partial.pop(group)
        while len(self._partial) > _PARTIAL_GROUPS:
            oldest = next(iter(self._partial))
            yield oldest, self._partial.pop(oldest)

    def _measure(self, groups: list[tuple[int, list[tuple[float, float, int]]]]) -> None:
        if not groups:
            return
        label = np.repeat([group for group, _ in groups], [len(members) for _, members in groups])
        predicted, real, context = (np.array(column) for column in zip(*(m for _, each in groups for m in each), strict=True))
        calibration = calibration_of(self.below)
        if calibration is not None:
            # The paper measures the disagreement after the pairs went into f.
            predicted = calibration.predict(predicted, context=context)
        self.weight.update(predicted, real, label)

    def stats(self) -> dict[str, float]:
        own = {"denoise/weight": self.weight.weight, "denoise/disagreement": self.weight.disagreement}
        return own | super().stats()

    def state_dict(self) -> dict[str, Any]:
        partial = {group: list(members) for group, members in self._partial.items()}
        return super().state_dict() | {"weight": self.weight.state_dict(), "partial": partial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weight.load_state_dict(state["weight"])
        self._partial = {group: list(members) for group, members in state["partial"].items()}


class GradientDenoising(Weighing):
    """The steps of anchors get the weight that fuses both streams by inverse variance, as measured; all others 1."""

    def __init__(self, fusion: RewardFusion) -> None:
        super().__init__()
        self.fusion = fusion

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        self._weigh(info, self.fusion.weight)
        rows = payable(info) & ~info["anchor"]
        self.fusion.observe(prediction_of(info)[rows], info["context"][rows])
        if self.stream.added - self.cursor >= self.fusion.batch:
            pairs, self.cursor = self.stream.since(self.cursor)
            f, calibration = pairs.predicted, calibration_of(self.below)
            if calibration is not None:
                f = calibration.predict(f, context=self.contexts(pairs.context, pairs.step))
            self.fusion.update(f, pairs.real, pairs.context)
        return reward

    def stats(self) -> dict[str, float]:
        anchor, model = self.fusion.fusion.variances
        return super().stats() | {
            "denoise/weight": self.fusion.weight,
            "denoise/anchor_variance": anchor,
            "denoise/model_variance": model,
            "denoise/slope": self.fusion.slope,
        }

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"fusion": self.fusion.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.fusion.load_state_dict(state["fusion"])


class RewardDenoising(Denoising):
    """Shrinks each imagined reward towards its group's mean by its own ``wm_reward_std``."""

    joins_late = False

    def __init__(self) -> None:
        self.shrinkage = RewardShrinkage()

    def correct(self, reward: NDArray[np.float64], info: Info, action: Any = None) -> NDArray[np.float64]:
        rows = payable(info) & ~np.isfinite(info["real_reward"].astype(np.float64))
        if rows.any():
            raw = info["wm_reward"][rows].astype(np.float64)
            calibrated = info["calibrated_reward"][rows].astype(np.float64)
            calibration = calibration_of(self.below)
            shrunk = self.shrinkage.apply(
                raw,
                info["wm_reward_std"][rows].astype(np.float64),
                calibrated=None if calibration is None else calibrated,
                group=info["group"][rows],
                context=info["context"][rows],
            )
            span = None if calibration is None else calibration.reward_range
            reward = reward.copy()
            reward[rows] = shrunk if span is None else np.clip(shrunk, *span)
        return reward

    def stats(self) -> dict[str, float]:
        return {"denoise/shrinkage": self.shrinkage.factor}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"shrinkage": self.shrinkage.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shrinkage.load_state_dict(state["shrinkage"])
