"""World models of environments whose observations are vectors."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.world_models.dynamics.model import EnsembleDynamics

__all__ = ["EnsembleDynamics"]

__getattr__, __dir__ = lazy(__name__, {"EnsembleDynamics": "model"})
