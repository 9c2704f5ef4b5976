"""What a model that asks a language model knows, on disk: one json, with neither weights nor secrets."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmrl_gym.factored import Printed
from wmrl_gym.world_models.llm.backends import settings_of_backend
from wmrl_gym.world_models.llm.prompts import Example
from wmrl_gym.world_models.storage import Layout

if TYPE_CHECKING:
    from wmrl_gym.world_models.llm.model import LLMWorldModel

LAYOUT = Layout("LLMWorldModel", 2, "llm_world_model.json")
_SETTINGS = ("design", "samples", "shots", "capacity", "cache", "max_code", "max_briefing", "buckets")


@dataclass(frozen=True, slots=True)
class SavedLLM:
    """All that such a model is.

    Args:
        settings: its constructor's arguments, without the back end.
        backend: what makes the back end again, see :func:`~wmrl_gym.world_models.llm.backends.settings_of_backend`.
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
        document: dict[str, Any] = {"settings": self.settings, "backend": self.backend, "executions": self.executions}
        document["examples"] = [
            [name, example.code, example.status, example.value, *astuple(example.printed)] for name, example in self.examples
        ]
        LAYOUT.write(folder, document)

    @classmethod
    def read(cls, folder: Path) -> SavedLLM:
        """Read what :meth:`write` wrote.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        with LAYOUT.reading(folder) as (document, _):
            examples = tuple(
                (name, Example(code, status, value, Printed(*printed)))
                for name, code, status, value, *printed in document["examples"]
            )
            settings = {name: document["settings"][name] for name in _SETTINGS}
            return cls(settings, document["backend"], document["executions"], examples)
