"""The arms: what stands between a policy and the rewards of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium.vector import AutoresetMode, VectorEnv

from benchmarks.real_tasks.settings import GROUP, Settings
from wmrl_gym.corrections import ContextualCalibration, EarlySchedule
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import vector
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

Needs = Literal["executions", "model", "both", "everything"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train.

    Args:
        title: its name in tables.
        colour: in pictures.
        needs: what it trains on: its real executions only, the model only, both, or real rewards at every step.
        group: episodes a group for the anchor decision.
        around: puts the corrections around the world model.
    """

    title: str
    colour: str
    needs: Needs
    group: int = 1
    around: Callable[..., VectorEnv[Any, Any, Any]] = WorldModelVectorEnv

    @property
    def budgeted(self) -> bool:
        """Whether the number of real executions makes a difference to it."""
        return self.needs in ("executions", "both")


def _preset(name: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    def around(source: Any, model: OutcomeModel, **arguments: Any) -> VectorEnv[Any, Any, Any]:
        return corrected(source, model, preset=name, **arguments)  # type: ignore[arg-type]  # checked by the package

    return around


def _smooth(source: Any, model: OutcomeModel, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    return vector.ResidualCorrection(vector.OnlineDebiasing(WorldModelVectorEnv(source, model, **arguments), "smooth"), 0.5)


def _contextual(source: Any, model: OutcomeModel, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    return vector.OnlineDebiasing(WorldModelVectorEnv(source, model, **arguments), "contextual")


def _contextual_residual(source: Any, model: OutcomeModel, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    return vector.ResidualCorrection(_contextual(source, model, **arguments), 0.5)


def _regression_only(source: Any, model: OutcomeModel, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    calibration = ContextualCalibration(reward_range=source.reward_range, recall=False)
    envs = vector.OnlineDebiasing(WorldModelVectorEnv(source, model, **arguments), calibration)
    return vector.ResidualCorrection(envs, 0.5)


ARMS: dict[str, Arm] = {
    "real": Arm("real only", "#444444", "executions"),
    "model": Arm("model alone", "#d62728", "model"),
    "mixture": Arm("mixture", "#9467bd", "both"),
    "denoise": Arm("denoise", "#8c564b", "both", GROUP, _preset("denoise")),
    "debias": Arm("debias", "#ff7f0e", "both", GROUP, _preset("debias")),
    "paper": Arm("paper", "#1f77b4", "both", GROUP, _preset("paper")),
    "recommended": Arm("recommended (smooth f)", "#17becf", "both", 1, _smooth),
    "contextual": Arm("contextual", "#98df8a", "both", 1, _contextual),
    "contextual+residual": Arm("contextual + residual", "#2ca02c", "both", 1, _contextual_residual),
    "regression": Arm("contextual + residual, without recall", "#bcbd22", "both", 1, _regression_only),
    "ceiling": Arm("real rewards everywhere", "#000000", "everything"),
}
"""In the order of tables."""


def environments(
    arm: Arm,
    source: AutoResearchDesign,
    *,
    model: OutcomeModel | None,
    settings: Settings,
    budget: int,
    warmup: int,
    learns: int,
    seed: int,
) -> VectorEnv[Any, Any, Any]:
    """The vector environment that an arm trains on.

    Args:
        arm: it.
        source: the task; arms that execute everything want it ``at_once``.
        model: the world model; not for arms without one.
        settings: of the policy and the schedule.
        budget: real executions of the run.
        warmup: of them, those that the model was fitted on before.
        learns: executions between two updates of the model; 0 leaves it as it is.
        seed: of starts and anchors.
    """
    mode = AutoresetMode.SAME_STEP
    if arm.needs in ("executions", "everything"):
        count = settings.real_envs if arm.needs == "executions" else settings.num_envs
        return FactoredVectorEnv(source, num_envs=count, autoreset_mode=mode)
    assert model is not None
    anchors: Any = 0.0
    if arm.needs == "both":
        left = budget - warmup
        anchors = EarlySchedule(
            left - left % arm.group, episodes=settings.steps, share=settings.early, first=settings.first, group_size=arm.group
        )
    return arm.around(
        source,
        model,
        num_envs=settings.num_envs,
        anchors=anchors,
        warmup=0,
        update_every=learns if arm.needs == "both" else 0,
        autoreset_mode=mode,
        seed=seed,
    )
