"""World models: what stands in for real execution."""

from typing import TYPE_CHECKING, Any

from wmrl_gym.world_models.base import Interface, Observed, PairKind, Prediction, RewardModel, WorldModel, WorldModelError

if TYPE_CHECKING:
    from wmrl_gym.world_models.check import check_world_model
    from wmrl_gym.world_models.dynamics import EnsembleDynamics
    from wmrl_gym.world_models.outcome import OutcomeModel
    from wmrl_gym.world_models.progress import ProgressModel

__all__ = [
    "EnsembleDynamics",
    "Interface",
    "Observed",
    "OutcomeModel",
    "PairKind",
    "Prediction",
    "ProgressModel",
    "RewardModel",
    "WorldModel",
    "WorldModelError",
    "check_world_model",
]

_MODULES = {
    "EnsembleDynamics": "wmrl_gym.world_models.dynamics",
    "OutcomeModel": "wmrl_gym.world_models.outcome",
    "ProgressModel": "wmrl_gym.world_models.progress",
    "check_world_model": "wmrl_gym.world_models.check",
}


def __getattr__(name: str) -> Any:
    # Each implementation brings its own heavy imports, so it is imported when it is asked for.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
