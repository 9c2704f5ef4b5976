"""World models: what stands in for real execution."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy
from wmrl_gym.world_models.base import Interface, Observed, PairKind, Prediction, RewardModel, WorldModel, WorldModelError

if TYPE_CHECKING:
    from wmrl_gym.world_models.check import check_world_model
    from wmrl_gym.world_models.dynamics.model import EnsembleDynamics
    from wmrl_gym.world_models.evaluation.comparison import evaluate
    from wmrl_gym.world_models.evaluation.report import FidelityReport
    from wmrl_gym.world_models.llm.chat import ChatClient
    from wmrl_gym.world_models.llm.local import LocalModel, unpack_gguf
    from wmrl_gym.world_models.llm.model import LLMWorldModel
    from wmrl_gym.world_models.loading import load_model
    from wmrl_gym.world_models.outcome.model import OutcomeModel
    from wmrl_gym.world_models.progress.model import ProgressModel

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ChatClient": "llm.chat",
        "EnsembleDynamics": "dynamics.model",
        "FidelityReport": "evaluation.report",
        "LLMWorldModel": "llm.model",
        "LocalModel": "llm.local",
        "OutcomeModel": "outcome.model",
        "ProgressModel": "progress.model",
        "check_world_model": "check",
        "evaluate": "evaluation.comparison",
        "load_model": "loading",
        "unpack_gguf": "llm.local",
    },
)
