"""Saved world models, whatever their kind."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from wmrl_gym.world_models.base import WorldModel, WorldModelError

MODELS = {"dynamics": "EnsembleDynamics", "outcome": "OutcomeModel"}
"""Short names of the models that are made without anything else, such as a language model."""
_DOCUMENTS = {"dynamics.json": "dynamics", "outcome_model.json": "outcome"}


def new_model(kind: str, **settings: object) -> WorldModel:
    """A new model of a kind in :data:`MODELS`.

    Raises:
        ValueError: another kind, or settings that the model does not have or refuses.
    """
    if kind not in MODELS:
        raise ValueError(f"the model must be one of {', '.join(MODELS)}, got {kind!r}")
    made = getattr(import_module("wmrl_gym.world_models"), MODELS[kind])
    try:
        model = made(**settings)
    except TypeError as error:
        raise ValueError(f"{MODELS[kind]} does not take these settings: {error}") from error
    assert isinstance(model, WorldModel)
    return model


def load_model(path: str | Path) -> WorldModel:
    """The model that was saved in the folder ``path``, settings included; it is not bound to an environment yet.

    Raises:
        WorldModelError: the folder holds none of the models in :data:`MODELS`.
    """
    folder = Path(path)
    for document, kind in _DOCUMENTS.items():
        if (folder / document).is_file():
            model = new_model(kind)
            model.load(folder)
            return model
    known = ", ".join(f"{document} ({MODELS[kind]})" for document, kind in _DOCUMENTS.items())
    raise WorldModelError(f"no world model is saved in {folder}: expected one of {known}")
