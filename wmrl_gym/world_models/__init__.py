"""World models: what stands in for real execution."""

from typing import TYPE_CHECKING, Any

from wmrl_gym.world_models.base import Interface, PairKind, Prediction, WorldModel, WorldModelError

if TYPE_CHECKING:
    from wmrl_gym.world_models.outcome import OutcomeModel

__all__ = ["Interface", "OutcomeModel", "PairKind", "Prediction", "WorldModel", "WorldModelError"]


def __getattr__(name: str) -> Any:
    # Each implementation brings its own heavy imports, so it is imported when it is asked for.
    if name == "OutcomeModel":
        from wmrl_gym.world_models.outcome import OutcomeModel

        return OutcomeModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
