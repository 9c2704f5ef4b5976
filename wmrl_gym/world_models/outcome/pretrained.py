"""The outcome models that come with the package: what was executed on tasks for training, in one compressed file for each kind.

A file holds the evidence and not the trees, which grow from it when a model meets its environment. Its doubt about tasks that it
has never seen cannot be read off tasks that it has: it was measured by leaving each of them out, and is in the file as well.
``python -m benchmarks.pretrain`` writes the files; nothing in them is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.world_models.base import WorldModelError
from wmrl_gym.world_models.outcome.checkpoint import Saved, Transfer
from wmrl_gym.world_models.outcome.forests import Evidence, objects

FOLDER = Path(__file__).parent / "pretrained"
KINDS = ("autoresearch-design", "autoresearch-text")
"""The environments that there are such models for, as :attr:`Factored.known_as` has them."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Which of the files a model is to begin with, once it knows its environment.

    Args:
        without: names of tasks whose executions are left out.
        folder: where the files are.
    """

    without: tuple[str, ...] = ()
    folder: Path = FOLDER

    def saved_for(self, factored: Factored[Any, Any]) -> Saved:
        """What a model of such an environment begins with.

        Raises:
            WorldModelError: there is none for such an environment.
            ValueError: a task to be left out is none that the model knows.
        """
        if factored.known_as not in KINDS:
            raise WorldModelError(
                "OutcomeModel.pretrained() knows executions of AutoResearch tasks, for wmrl/AutoResearch-v0 and "
                f"wmrl/AutoResearchDesign-v0; {type(factored).__name__} is another environment: use OutcomeModel() there"
            )
        saved = read(self.folder / f"{factored.known_as}.npz")
        unknown = [name for name in self.without if name not in saved.contexts]
        if unknown:
            raise ValueError(f"the pretrained model does not know {', '.join(unknown)}; it knows {', '.join(saved.contexts)}")
        return leave_out(saved, self.without)


def leave_out(saved: Saved, names: Collection[str]) -> Saved:
    """A model's evidence without that of some contexts."""
    evidence = saved.evidence
    if not names or evidence is None:
        return saved
    gone = [number for number, name in enumerate(saved.contexts) if name in names]
    kept = np.flatnonzero(~np.isin(evidence.context, gone))
    return replace(saved, evidence=batch.take(evidence, kept), fitted=len(kept))


def write(path: Path, saved: Saved) -> None:
    """Write a model's evidence into one compressed file; the same evidence makes the same bytes.

    Raises:
        ValueError: it has none.
    """
    evidence = saved.evidence
    if evidence is None or saved.transfer is None:
        raise ValueError("a pretrained model needs evidence, and its doubt about tasks never seen")
    document = {"settings": saved.settings, "encoder": saved.encoder, "executions": saved.executions, "span": saved.span}
    document |= {"statuses": saved.statuses, "contexts": saved.contexts, "columns": saved.columns}
    document |= {"transfer": saved.transfer.as_json()}
    outcome, arrays = evidence.outcome, dict[str, NDArray[Any]]()
    for name, texts in (("document", [json.dumps(document)]), ("text", evidence.text), ("feedback", outcome.feedback)):
        arrays |= _packed(name, list(texts))
    arrays |= {"status": outcome.status.astype(np.int8), "value": outcome.value, "shown": outcome.shown}
    arrays |= {"cpu_s": outcome.cpu_s, "features": evidence.features, "context": evidence.context.astype(np.int16)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def read(path: Path) -> Saved:
    """Read what :func:`write` wrote.

    Raises:
        WorldModelError: it is not there, or damaged.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        document = json.loads(_unpacked("document", arrays)[0])
        n = len(arrays["status"])
        outcome = Outcome(
            status=arrays["status"].astype(np.int64),
            value=arrays["value"],
            shown=arrays["shown"],
            feedback=objects(_unpacked("feedback", arrays)),
            known=np.ones(n, bool),
            cpu_s=arrays["cpu_s"],
            wall_s=np.zeros(n),
        )
        text, context = objects(_unpacked("text", arrays)), arrays["context"].astype(np.int64)
        evidence = Evidence(arrays["features"], text, context, outcome, np.arange(n, dtype=np.int64))
        columns = document["columns"]
        return Saved(
            document["settings"],
            document["encoder"],
            document["executions"],
            n,
            document["span"],
            tuple(document["statuses"]),
            tuple(document["contexts"]),
            (columns[0], columns[1]),
            evidence,
            None,
            Transfer(**document["transfer"]),
        )
    except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile) as error:
        raise WorldModelError(f"the pretrained model in {path} cannot be read: {error!r}") from error


def _packed(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """Texts as bytes one after the other, and how long each is."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return {
        name: np.frombuffer(b"".join(parts), np.uint8),
        f"{name}_lengths": np.array([len(part) for part in parts], np.int32),
    }


def _unpacked(name: str, arrays: dict[str, NDArray[Any]]) -> list[str]:
    whole, ends = arrays[name].tobytes(), np.cumsum(arrays[f"{name}_lengths"])
    starts = ends - arrays[f"{name}_lengths"]
    return [whole[start:end].decode("utf-8", "surrogatepass") for start, end in zip(starts, ends, strict=True)]
