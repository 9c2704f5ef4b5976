"""Expensive tasks as Gymnasium environments, trained in a world model that real execution keeps honest.

Importing this package registers the environment ids; everything else is imported when it is used.
"""

from wmrl_gym.lazy import lazy
from wmrl_gym.moved import keep_old_names
from wmrl_gym.registration import register_environments

__version__ = "0.1.0"
__all__ = ["batch", "corrections", "data", "envs", "factored", "integrations", "sandbox", "spaces", "world_models", "wrappers"]

register_environments()
keep_old_names()

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, ""))
