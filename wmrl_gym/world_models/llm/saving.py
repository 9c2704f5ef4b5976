"""What a model that asks a language model knows, on disk: one json, with neither weights nor secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wmrl_gym.factored import Printed
from wmrl_gym.world_models.base import WorldModelError
from wmrl_gym.world_models.llm.prompts import Example
from wmrl_gym.world_models.llm.schema import LanguageModel
from wmrl_gym.world_models.storage import Layout

LAYOUT = Layout("LLMWorldModel", 2, "llm_world_model.json")
SETTINGS = ("design", "samples", "shots", "capacity", "cache", "max_code", "max_briefing", "buckets")


@dataclass(frozen=True, slots=True)
class SavedLLM:
    """All that a checkpoint of such a model holds.

    Args:
        settings: its constructor's arguments, without the back end.
        backend: what makes the back end again, see :func:`~wmrl_gym.world_models.llm.saving.settings_of_backend`.
        executions: ever learnt from.
        examples: (context's name, executed attempt), oldest first.
    """

    settings: dict[str, Any]
    backend: dict[str, Any] | None
    executions: int
    examples: tuple[tuple[str, Example], ...]

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
            settings = {name: document["settings"][name] for name in SETTINGS}
            return cls(settings, document["backend"], document["executions"], examples)


SERVER, WEIGHTS = "server", "weights"
"""Kinds of back ends that can be made again: a :class:`ChatClient`, and a :class:`LocalModel` from a folder or by a name."""


@runtime_checkable
class Described(Protocol):
    """A back end that can say what makes it again."""

    def settings(self) -> dict[str, Any] | None:
        """Its ``kind`` and its arguments as json, without secrets; None where there is nothing that could be loaded again."""


def settings_of_backend(backend: LanguageModel) -> dict[str, Any] | None:
    """What makes a back end again; None for one that only the caller can make.

    >>> from wmrl_gym.world_models import ChatClient
    >>> settings = settings_of_backend(ChatClient("http://me:secret@127.0.0.1:8000/v1", "small", api_key="secret"))
    >>> settings["kind"], settings["base_url"], "secret" in str(settings)
    ('server', 'http://127.0.0.1:8000/v1', False)
    """
    return backend.settings() if isinstance(backend, Described) else None


def with_place(saved: Mapping[str, Any] | None, place: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a back end, with another place and other settings in place of the saved ones.

    Args:
        saved: as :func:`settings_of_backend` gave them; None where there are none.
        place: the address of a server, or a folder of weights or their name; None for the saved one.
        changes: further settings.

    Raises:
        WorldModelError: nothing says where the back end is.

    >>> with_place({"kind": "server", "base_url": "http://127.0.0.1:8000/v1", "model": "small"}, "http://127.0.0.1:9/v1", {})
    {'kind': 'server', 'base_url': 'http://127.0.0.1:9/v1', 'model': 'small'}
    """
    if place is None:
        if saved is None:
            raise WorldModelError("the back end was not saved: give the address of a server, or a folder of weights")
        return {**saved, **changes}
    kind, key = (SERVER, "base_url") if place.startswith(("http://", "https://")) else (WEIGHTS, "path")
    kept = saved if saved is not None and saved["kind"] == kind else {}
    return {**kept, "kind": kind, key: place, **changes}


def make_backend(settings: Mapping[str, Any]) -> LanguageModel:
    """The back end that has these settings.

    Raises:
        WorldModelError: of another kind, settings that it does not have or refuses, or weights that are not there.
    """
    options = dict(settings)
    kind = options.pop("kind")
    try:
        if kind == SERVER:
            from wmrl_gym.world_models.llm.chat import ChatClient

            if "model" not in options:
                raise WorldModelError(f"{options.get('base_url')} must be told the name of its model: set model=NAME")
            return ChatClient(**options)
        if kind == WEIGHTS:
            from wmrl_gym.world_models.llm.local import LocalModel

            path = options.pop("path")
            if Path(path).is_absolute() and not Path(path).is_dir():
                raise WorldModelError(f"the weights of the back end are not in {path} any more: give their folder")
            return LocalModel.load(path, **options)
    except (TypeError, ValueError, OSError) as error:
        raise WorldModelError(f"there is no back end with the settings {dict(settings)}: {error}") from error
    raise WorldModelError(f"a back end is of the kind {SERVER!r} or {WEIGHTS!r}, got {kind!r}")
