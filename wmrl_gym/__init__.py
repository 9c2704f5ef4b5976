"""Expensive tasks as Gymnasium environments, trained in a world model that real execution keeps honest.

Importing this package registers the environment ids; everything else is imported when it is used.
"""

from importlib import import_module
from types import ModuleType

from wmrl_gym.registration import register_environments

__version__ = "0.1.0"
__all__ = ["corrections", "data", "envs", "integrations", "sandbox", "spaces", "world_models", "wrappers"]

register_environments()


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
