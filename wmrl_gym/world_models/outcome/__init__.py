"""World models of factored environments: what an attempt would return."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.world_models.outcome.model import OutcomeModel

__all__ = ["OutcomeModel"]

__getattr__, __dir__ = lazy(__name__, {"OutcomeModel": "model"})
