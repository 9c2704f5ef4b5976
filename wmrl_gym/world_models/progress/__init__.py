"""World models of the reward: how far a robot has come."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.world_models.progress.model import ProgressModel

__all__ = ["ProgressModel"]

__getattr__, __dir__ = lazy(__name__, {"ProgressModel": "model"})
