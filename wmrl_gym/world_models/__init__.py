"""World models: what stands in for real execution."""

from typing import TYPE_CHECKING, Any

from wmrl_gym.world_models.base import Interface, PairKind, Prediction, WorldModel, WorldModelError

if TYPE_CHECKING:
    from wmrl_gym.world_models.check import check_world_model
    from wmrl_gym.world_models.dynamics import EnsembleDynamics
    from wmrl_gym.world_models.fidelity import evaluate
    from wmrl_gym.world_models.fidelity_report import FidelityReport
    from wmrl_gym.world_models.loading import load_model
    from wmrl_gym.world_models.outcome import OutcomeModel

__all__ = [
    "EnsembleDynamics",
    "FidelityReport",
    "Interface",
    "OutcomeModel",
    "PairKind",
    "Prediction",
    "WorldModel",
    "WorldModelError",
    "check_world_model",
    "evaluate",
    "load_model",
]

_MODULES = {
    "EnsembleDynamics": "wmrl_gym.world_models.dynamics",
    "FidelityReport": "wmrl_gym.world_models.fidelity_report",
    "OutcomeModel": "wmrl_gym.world_models.outcome",
    "check_world_model": "wmrl_gym.world_models.check",
    "evaluate": "wmrl_gym.world_models.fidelity",
    "load_model": "wmrl_gym.world_models.loading",
}


def __getattr__(name: str) -> Any:
    # Each implementation brings its own heavy imports, so it is imported when it is asked for.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
