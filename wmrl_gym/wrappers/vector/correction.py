"""The correction wrappers of vector environments."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa, Calibrator
from wmrl_gym.wrappers.cores import STEP_KEYS, Correction, Info, Residual
from wmrl_gym.wrappers.correction import no_world_model
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.online_debiasing import RewardRange, make_debiasing
from wmrl_gym.wrappers.residual_correction import check_late
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv


def step_info(infos: dict[str, Any], over: NDArray[np.bool_]) -> Info:
    """The info of the step itself, every slot's: in SAME_STEP mode that of an ended step stands in ``final_info``.

    Args:
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended at this step.
    """
    final = infos.get("final_info")
    rows: Info = {}
    for key in STEP_KEYS:
        if final is None:
            rows[key] = infos[key]
        else:
            rows[key] = np.where(over, final[key], infos[key]) if key in infos else final[key].copy()
    return rows


def write_info(infos: dict[str, Any], over: NDArray[np.bool_], rows: Info, keys: tuple[str, ...]) -> None:
    """Put changed step info back where :func:`step_info` found it."""
    final = infos.get("final_info")
    for key in keys:
        if final is None:
            infos[key] = rows[key]
            continue
        final[key][over] = rows[key][over]
        if key in infos:
            infos[key][~over] = rows[key][~over]


class CorrectionVectorWrapper(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """Applies a :class:`~wmrl_gym.wrappers.cores.Correction` to every step of a vector environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    core: Correction
    """What is done to the rewards."""

    def __init__(self, env: VectorEnv[Any, Any, NDArray[Any]], core: Correction) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(f"{core.name} of wrappers.vector wraps vector environments, got {type(env).__name__}")
        super().__init__(env)
        below: list[Correction] = []
        layer: Any = env
        while isinstance(layer, VectorWrapper):
            if isinstance(layer, CorrectionVectorWrapper):
                below.append(layer.core)
            layer = layer.env
        if not isinstance(layer, WorldModelVectorEnv):
            raise no_world_model(core, env, vector=False)
        self.core = core
        core.attach(layer.engine, below)

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step, and correct the rewards."""
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        over = terminated | truncated
        rows = step_info(infos, over)
        reward = self.core.correct(reward, rows, actions)
        write_info(infos, over, rows, self.core.written)
        return observation, reward, terminated, truncated, infos

    def stats(self) -> dict[str, float]:
        """What a log should say of this correction."""
        return self.core.stats()

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, for :meth:`load_state_dict`."""
        return self.core.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.core.load_state_dict(state)


class OnlineDebiasing(CorrectionVectorWrapper):
    """The vector twin of :class:`wmrl_gym.wrappers.OnlineDebiasing`; same arguments."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, NDArray[Any]],
        calibrator: Literal["smooth", "binned"] | Calibrator = "smooth",
        *,
        reward_range: RewardRange = "environment",
        pessimism: float | None = None,
    ) -> None:
        super().__init__(env, make_debiasing(env, calibrator, reward_range=reward_range, pessimism=pessimism))


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
        core = make_denoising(mode, method)
        super().__init__(env, core)
        check_late(self, late or not core.joins_late)


__all__ = ["InverseVarianceDenoising", "OnlineDebiasing", "ResidualCorrection", "step_info", "write_info"]
