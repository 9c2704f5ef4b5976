"""Fitting world models to recorded episodes, and measuring how good they are."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.world_models.evaluation.comparison import evaluate
    from wmrl_gym.world_models.evaluation.report import FidelityReport

__all__ = ["FidelityReport", "evaluate"]

__getattr__, __dir__ = lazy(__name__, {"FidelityReport": "report", "evaluate": "comparison"})
