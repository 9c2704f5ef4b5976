"""Saved world models, whatever their kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from wmrl_gym.world_models.base import WorldModel, WorldModelError
from wmrl_gym.world_models.llm.saving import LAYOUT, SavedLLM, make_backend, with_place
from wmrl_gym.world_models.llm.schema import LanguageModel


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of world model that can be fitted to recorded episodes, saved and loaded by its short name.

    Args:
        model: name of the class, which :mod:`wmrl_gym.world_models` has.
        document: the json file by which its saved folders are known.
        predicts: what, for people who choose one.
        factored: whether it predicts outcomes, so that it needs the bookkeeping of a factored environment.
    """

    model: str
    document: str
    predicts: str
    factored: bool = False


MODELS = {
    "dynamics": Kind("EnsembleDynamics", "dynamics.json", "any numbers"),
    "outcome": Kind("OutcomeModel", "outcome_model.json", "factored environments", factored=True),
    "llm": Kind("LLMWorldModel", LAYOUT.document, "factored environments, by a language model", factored=True),
    "progress": Kind("ProgressModel", "progress.json", "rewards, from images and sentences"),
}
"""The one list of kinds, by their short names."""


def new_model(kind: str, **settings: object) -> WorldModel:
    """A new model of a kind in :data:`MODELS`.

    Args:
        kind: of the model.
        settings: its arguments; an LLMWorldModel's ``backend`` may be what :func:`make_backend` makes it from.

    Raises:
        ValueError: another kind, or settings that the model does not have or refuses.
        WorldModelError: a back end that is not to be had.
    """
    if kind not in MODELS:
        raise ValueError(f"the model must be one of {', '.join(MODELS)}, got {kind!r}")
    if isinstance(described := settings.get("backend"), Mapping):
        settings["backend"] = make_backend(described)
    made = getattr(import_module("wmrl_gym.world_models"), MODELS[kind].model)
    try:
        model = made(**settings)
    except TypeError as error:
        raise ValueError(f"{MODELS[kind].model} does not take these settings: {error}") from error
    assert isinstance(model, WorldModel)
    return model


def load_model(
    path: str | Path,
    *,
    backend: LanguageModel | str | None = None,
    backend_settings: Mapping[str, Any] | None = None,
) -> WorldModel:
    """The model that was saved in the folder ``path``, settings included; it is not bound to an environment yet.

    Args:
        path: the folder.
        backend: of an :class:`LLMWorldModel`: what answers it, or the address of a server, or a folder of weights; None takes the
            one that it was saved with.
        backend_settings: arguments of that back end other than the saved ones, such as ``{"model": "its name on the server"}``.

    Raises:
        WorldModelError: the folder holds no world model, the saved back end is not to be had, or a back end is given to a model
            that asks none.
    """
    folder = Path(path)
    if (folder / LAYOUT.document).is_file():
        return _load_llm(folder, backend, backend_settings or {})
    for name, kind in MODELS.items():
        if (folder / kind.document).is_file():
            if backend is not None or backend_settings:
                raise WorldModelError(f"{folder} holds {kind.model}: only an LLMWorldModel has a back end")
            model = new_model(name)
            model.load(folder)
            return model
    known = ", ".join(f"{kind.document} ({kind.model})" for kind in MODELS.values())
    raise WorldModelError(f"no world model is saved in {folder}: expected one of {known}")


def _load_llm(folder: Path, backend: LanguageModel | str | None, changes: Mapping[str, Any]) -> WorldModel:
    from wmrl_gym.world_models.llm.model import LLMWorldModel

    saved = SavedLLM.read(folder).backend
    if backend is None or isinstance(backend, str):
        backend = make_backend(with_place(saved, backend, changes))
    elif changes:
        raise WorldModelError(f"backend_settings are of a back end that is made here, and {backend!r} was made already")
    model = LLMWorldModel(backend)
    model.load(folder)
    return model


def kind_of(model: WorldModel) -> str:
    """The short name of a model's kind; "dynamics" for one that is of none, since any model can be compared like it."""
    mine = {each.__name__ for each in type(model).__mro__}
    return next((name for name, kind in MODELS.items() if kind.model in mine), "dynamics")
