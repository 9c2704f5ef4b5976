"""The correction wrappers of vector environments, and the whole stack in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from wmrl_gym.corrections import AdaptiveKappa, Calibrator
from wmrl_gym.engine.info import KEYS, StepInfo
from wmrl_gym.world_models import WorldModel
from wmrl_gym.wrappers.corrections import RewardRange, check_late, make_debiasing, no_world_model
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.presets import PresetName, preset_of
from wmrl_gym.wrappers.rewards import Correction, Residual
from wmrl_gym.wrappers.vector.world_model import WorldModelVectorEnv


class VectorStepInfo(StepInfo):
    """The info of the step itself, every slot's: in SAME_STEP mode that of an ended step stands in ``final_info``.

    Each key is put together when it is first asked for: most steps need few of them.

    Args:
        infos: what ``step`` returned.
        over: bool, shape (num_envs,): the slots whose episode ended at this step.
    """

    def __init__(self, infos: dict[str, Any], over: NDArray[np.bool_]) -> None:
        super().__init__(len(over))
        self.infos, self.over = infos, over

    def __missing__(self, key: str) -> NDArray[Any]:
        """The rows of a key that nobody asked for before."""
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


class CorrectionVectorWrapper(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """Applies a :class:`~wmrl_gym.wrappers.rewards.Correction` to every step of a vector environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    core: Correction
    """What is done to the rewards."""
    rows: VectorStepInfo | None = None
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
        rows = VectorStepInfo(infos, terminated | truncated) if known is None else known
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
