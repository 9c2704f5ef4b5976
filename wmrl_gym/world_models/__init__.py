"""World models: what stands in for real execution."""

from typing import TYPE_CHECKING, Any

from wmrl_gym.world_models.base import Interface, Observed, PairKind, Prediction, RewardModel, WorldModel, WorldModelError

if TYPE_CHECKING:
    from wmrl_gym.world_models.chat import ChatClient
    from wmrl_gym.world_models.check import check_world_model
    from wmrl_gym.world_models.dynamics import EnsembleDynamics
    from wmrl_gym.world_models.fidelity import evaluate
    from wmrl_gym.world_models.fidelity_report import FidelityReport
    from wmrl_gym.world_models.gguf_weights import unpack_gguf
    from wmrl_gym.world_models.llm import LLMWorldModel
    from wmrl_gym.world_models.llm_local import LocalModel
    from wmrl_gym.world_models.loading import load_model
    from wmrl_gym.world_models.outcome import OutcomeModel
    from wmrl_gym.world_models.progress import ProgressModel

__all__ = [
    "ChatClient",
    "EnsembleDynamics",
    "FidelityReport",
    "Interface",
    "LLMWorldModel",
    "LocalModel",
    "Observed",
    "OutcomeModel",
    "PairKind",
    "Prediction",
    "ProgressModel",
    "RewardModel",
    "WorldModel",
    "WorldModelError",
    "check_world_model",
    "evaluate",
    "load_model",
    "unpack_gguf",
]

_MODULES = {
    "ChatClient": "wmrl_gym.world_models.chat",
    "EnsembleDynamics": "wmrl_gym.world_models.dynamics",
    "FidelityReport": "wmrl_gym.world_models.fidelity_report",
    "LLMWorldModel": "wmrl_gym.world_models.llm",
    "LocalModel": "wmrl_gym.world_models.llm_local",
    "OutcomeModel": "wmrl_gym.world_models.outcome",
    "ProgressModel": "wmrl_gym.world_models.progress",
    "check_world_model": "wmrl_gym.world_models.check",
    "evaluate": "wmrl_gym.world_models.fidelity",
    "load_model": "wmrl_gym.world_models.loading",
    "unpack_gguf": "wmrl_gym.world_models.gguf_weights",
}


def __getattr__(name: str) -> Any:
    # Each implementation brings its own heavy imports, so it is imported when it is asked for.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
