"""What a model that asks a language model knows, on disk: one json, with neither weights nor secrets."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmrl_gym.factored import Printed
from wmrl_gym.world_models.base import WorldModelError
from wmrl_gym.world_models.llm_backends import settings_of_backend
from wmrl_gym.world_models.llm_prompts import Example

if TYPE_CHECKING:
    from wmrl_gym.world_models.llm import LLMWorldModel

DOCUMENT = "llm_world_model.json"
_NAME, _FORMAT = "LLMWorldModel", 2
_OLDER = 1
"""Of this format, which did not say its number, only the back end and the size of the cache are missing."""
_SETTINGS = ("design", "samples", "shots", "capacity", "cache", "max_code", "max_briefing", "buckets")


@dataclass(frozen=True, slots=True)
class SavedLLM:
    """All that such a model is.

    Args:
        settings: its constructor's arguments, without the back end.
        backend: what makes the back end again, see :func:`~wmrl_gym.world_models.llm_backends.settings_of_backend`.
        executions: ever learnt from.
        examples: (context's name, executed attempt), oldest first.
    """

    settings: dict[str, Any]
    backend: dict[str, Any] | None
    executions: int
    examples: tuple[tuple[str, Example], ...]

    @classmethod
    def of(cls, model: LLMWorldModel) -> SavedLLM:
        """All that ``model`` is."""
        settings = {name: getattr(model, name) for name in _SETTINGS}
        return cls(settings, settings_of_backend(model.backend), model.executions, model.shown)

    def write(self, folder: Path) -> None:
        """Write it below ``folder``, which is made where it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {"model": _NAME, "format": _FORMAT, "settings": self.settings, "backend": self.backend}
        document["executions"] = self.executions
        document["examples"] = [
            [name, example.code, example.status, example.value, *astuple(example.printed)] for name, example in self.examples
        ]
        (folder / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> SavedLLM:
        """Read what :meth:`write` wrote.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        path = folder / DOCUMENT
        if not path.is_file():
            raise WorldModelError(f"no {_NAME} is saved in {folder}: {DOCUMENT} is missing")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            found = (document["model"], document.get("format", _OLDER))
            if found not in ((_NAME, _FORMAT), (_NAME, _OLDER)):
                raise WorldModelError(
                    f"{path} holds {found[0]} of format {found[1]}, expected {_NAME} of format {_OLDER} or {_FORMAT}"
                )
            settings = {name: document["settings"][name] for name in _SETTINGS if name in document["settings"]}
            examples = tuple(
                (name, Example(code, status, value, Printed(*printed)))
                for name, code, status, value, *printed in document["examples"]
            )
            return cls(settings, document.get("backend"), document["executions"], examples)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorldModelError(f"{path} is damaged: {error!r}") from error
