"""The correction wrappers of vector environments, and the whole stack in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa
from wmrl_gym.engine.describing import Features
from wmrl_gym.engine.info import KEYS, StepInfo
from wmrl_gym.world_models import WorldModel
from wmrl_gym.wrappers.corrections import CalibratorChoice, HasCorrection, RewardRange, check_late, make_debiasing, no_world_model
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.presets import PresetName, preset_of
from wmrl_gym.wrappers.rewards import Correction, Residual
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv

if TYPE_CHECKING:
    _VectorWrapper = VectorWrapper[Any, Any, Any, Any, NDArray[Any]]
else:  # before Gymnasium 1.4 the class takes no parameters when it runs
    _VectorWrapper = VectorWrapper


class VectorStepInfo(StepInfo):
    """The info of one vector step with a row for every slot; in SAME_STEP mode those of ended episodes are in ``final_info``.

    Each key is put together when it is first asked for: most steps need few of them.

    Args:
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended at this step.
    """

    def __init__(self, infos: dict[str, Any], over: NDArray[np.bool_]) -> None:
        super().__init__(len(over))
        self.infos, self.over = infos, over

    def __missing__(self, key: str) -> NDArray[Any]:
        """Put together the rows of a key that is asked for the first time."""
        final, here = self.infos.get("final_info"), self.infos.get(key)
        if final is None or key not in final:
            if here is None:
                return super().__missing__(key)
            rows: NDArray[Any] = here
        else:
            rows = final[key].copy() if here is None else np.where(self.over, final[key], here)
        self[key] = rows
        return rows

    def has(self, key: str) -> bool:
        """Whether the environment has said something of a key."""
        return True

    def write(self, keys: Iterable[str]) -> None:
        """Put changed keys back where they came from, with the masks of what is known."""
        final = self.infos.get("final_info")
        for key in self.keys() & set(keys):
            rows = self[key]
            known = None if KEYS[key].always else ~np.isnan(rows)
            if final is None:
                self.infos[key] = rows
                if known is not None:
                    self.infos[f"_{key}"] = known
                continue
            for place, where in ((final, self.over), (self.infos, ~self.over)):
                if key in place:
                    np.copyto(place[key], rows, where=where)
                    if known is not None:
                        np.copyto(place[f"_{key}"], known, where=where)


class CorrectionVectorWrapper(HasCorrection, _VectorWrapper):
    """Applies a :class:`~wmrl_gym.wrappers.rewards.Correction` to every step of a vector environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    rows: VectorStepInfo | None = None
    """The info of the newest step."""

    def __init__(self, env: VectorEnv[Any, Any, NDArray[Any]], correction: Correction) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(f"{correction.name} of wrappers.vector wraps vector environments, got {type(env).__name__}")
        super().__init__(env)
        below: list[Correction] = []
        layer: Any = env
        while isinstance(layer, VectorWrapper):
            if isinstance(layer, CorrectionVectorWrapper):
                below.append(layer.correction)
            layer = layer.env
        if not isinstance(layer, WorldModelVectorEnv):
            raise no_world_model(correction, env, vector=False)
        self.correction = correction
        correction.attach(layer.engine, below)

    def __del__(self) -> None:
        """Nothing: see :class:`~wmrl_gym.slots.SlotVectorEnv`."""

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """That of the environments, for trainers that ask for it as an attribute."""
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step, and correct the rewards."""
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        # A correction right below has put the rows together already.
        known = self.env.rows if isinstance(self.env, CorrectionVectorWrapper) else None
        rows = VectorStepInfo(infos, terminated | truncated) if known is None else known
        self.rows = rows
        reward = self.correction.correct(reward, rows, actions)
        rows.write(self.correction.written)
        return observation, reward, terminated, truncated, infos


class OnlineDebiasing(CorrectionVectorWrapper):
    """The vector twin of :class:`wmrl_gym.wrappers.OnlineDebiasing`; same arguments."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, NDArray[Any]],
        calibrator: CalibratorChoice = "smooth",
        *,
        reward_range: RewardRange = "environment",
        pessimism: float | None = None,
        features: Features | None = None,
    ) -> None:
        super().__init__(env, make_debiasing(env, calibrator, reward_range=reward_range, pessimism=pessimism, features=features))


class ResidualCorrection(CorrectionVectorWrapper):
    """The vector twin of :class:`wmrl_gym.wrappers.ResidualCorrection`; same arguments."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, NDArray[Any]],
        kappa: float | AdaptiveKappa = 0.5,
        *,
        late: bool = False,
        max_gain: float = 5.0,
    ) -> None:
        super().__init__(env, Residual(kappa, late=late, max_gain=max_gain))
        check_late(self, late)


class InverseVarianceDenoising(CorrectionVectorWrapper):
    """The vector twin of :class:`wmrl_gym.wrappers.InverseVarianceDenoising`; same arguments."""

    def __init__(
        self, env: VectorEnv[Any, Any, NDArray[Any]], mode: Mode = "paper", *, method: Method = "delta", late: bool = False
    ) -> None:
        correction = make_denoising(mode, method)
        super().__init__(env, correction)
        check_late(self, late or not correction.joins_late)


def corrected(
    source: Any,
    model: WorldModel,
    *,
    num_envs: int,
    preset: PresetName = "recommended",
    late: bool = False,
    max_gain: float = 5.0,
    **world_model: Any,
) -> VectorEnv[Any, Any, NDArray[Any]]:
    """``num_envs`` imagined environments with a preset's corrections, in their order.

    Args:
        source: as :class:`WorldModelVectorEnv` takes it.
        model: the world model.
        num_envs: imagined environments.
        preset: see :func:`wmrl_gym.wrappers.corrected`.
        late: passed to ResidualCorrection and InverseVarianceDenoising: the trainer joins background anchors' late truths.
        max_gain: passed to ResidualCorrection.
        **world_model: passed to WorldModelVectorEnv, such as ``anchors=0.1`` and ``max_real=2``.
    """
    from wmrl_gym.wrappers import vector

    choice = preset_of(preset)
    made = WorldModelVectorEnv(source, model, num_envs=num_envs, **choice.arguments(world_model))
    envs: VectorEnv[Any, Any, NDArray[Any]] = choice.around(made, vector, late=late, max_gain=max_gain)
    return envs
