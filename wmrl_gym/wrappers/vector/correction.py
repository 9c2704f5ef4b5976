"""The correction wrappers of vector environments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa, Calibrator
from wmrl_gym.wrappers.correction import no_world_model
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.online_debiasing import RewardRange, make_debiasing
from wmrl_gym.wrappers.residual_correction import check_late
from wmrl_gym.wrappers.rewards import Correction, Residual
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv


class StepInfo(dict[str, NDArray[Any]]):
    """The info of the step itself, every slot's: in SAME_STEP mode that of an ended step stands in ``final_info``.

    Each key is put together when it is first asked for: most steps need few of them.

    Args:
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended at this step.
    """

    def __init__(self, infos: dict[str, Any], over: NDArray[np.bool_]) -> None:
        super().__init__()
        self.infos, self.over = infos, over

    def __missing__(self, key: str) -> NDArray[Any]:
        """The rows of a key that nobody asked for before."""
        final = self.infos.get("final_info")
        if final is None:
            rows: NDArray[Any] = self.infos[key]
        else:
            rows = np.where(self.over, final[key], self.infos[key]) if key in self.infos else final[key].copy()
        self[key] = rows
        return rows

    def write(self, keys: Iterable[str]) -> None:
        """Put changed keys back where they came from."""
        final = self.infos.get("final_info")
        for key in self.keys() & set(keys):
            rows = self[key]
            if final is None:
                self.infos[key] = rows
                continue
            np.copyto(final[key], rows, where=self.over)
            if key in self.infos:
                np.copyto(self.infos[key], rows, where=~self.over)


class CorrectionVectorWrapper(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """Applies a :class:`~wmrl_gym.wrappers.rewards.Correction` to every step of a vector environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    core: Correction
    """What is done to the rewards."""
    rows: StepInfo | None = None
    """The info of the newest step."""

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
        # A correction right below has put the rows together already.
        known = self.env.rows if isinstance(self.env, CorrectionVectorWrapper) else None
        rows = StepInfo(infos, terminated | truncated) if known is None else known
        self.rows = rows
        reward = self.core.correct(reward, rows, actions)
        rows.write(self.core.written)
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


__all__ = ["InverseVarianceDenoising", "OnlineDebiasing", "ResidualCorrection", "StepInfo"]
