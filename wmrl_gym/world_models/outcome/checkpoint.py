"""What an outcome model knows, on disk: safetensors and json, never pickle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym import batch
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.world_models.base import WorldModelError
from wmrl_gym.world_models.outcome.encoders import TextEncoder, make_encoder
from wmrl_gym.world_models.outcome.forests import Evidence, objects
from wmrl_gym.world_models.ranges import check_whole
from wmrl_gym.world_models.storage import Layout

LATER_SETTINGS = {"descriptors": False, "min_leaf": 1, "max_features": 0.5}
"""Settings that the first checkpoints lack, and what they were then."""
LAYOUT = Layout("OutcomeModel", 2, "outcome_model.json", "evidence.safetensors")
SETTINGS = ("n_trees", "min_executions", "neighbours", "capacity", "refit_share", "sample", "seed", *LATER_SETTINGS)
_OUTCOME_ARRAYS = ("status", "value", "shown", "known", "cpu_s", "wall_s")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a model that came fitted knows of its doubt about contexts never seen, measured by leaving each known one out.

    Args:
        executions: that it came with; what is numbered from there on is its own.
        noise: variance of the value that nothing explains.
        slope: variance of the value's error for each unit of the trees' variance.
        temperature: of the statuses' probabilities.
        mixing: of base rates into them.
    """

    executions: int
    noise: float
    slope: float
    temperature: float
    mixing: float

    def as_json(self) -> dict[str, Any]:
        """It as json, its arguments by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Saved:
    """All that a checkpoint of an outcome model holds.

    Args:
        settings: its constructor's arguments, without the encoder.
        encoder: the encoder's settings.
        executions: ever learnt from.
        fitted: how many of the evidence, from the oldest on, the fit was made of.
        span: which of them it was trained on, for people.
        statuses: their names.
        contexts: the names of the contexts that it was trained in.
        columns: where in the features each context stands, (start, stop); None where none does.
        evidence: the executed attempts.
        vectors: what the encoder remembers about them.
        transfer: of a model that came fitted; None otherwise.
    """

    settings: dict[str, Any]
    encoder: dict[str, Any]
    executions: int
    fitted: int
    span: dict[str, Any]
    statuses: tuple[str, ...]
    contexts: tuple[str, ...]
    columns: tuple[int, int] | None
    evidence: Evidence | None
    vectors: NDArray[np.float32] | None
    transfer: Transfer | None = None

    def write(self, folder: Path) -> None:
        """Write it below ``folder``, which is made where it is missing."""
        document: dict[str, Any] = {"settings": self.settings, "encoder": self.encoder, "executions": self.executions}
        document["fitted"] = self.fitted
        document |= {"trained_on": self.span, "statuses": self.statuses, "contexts": self.contexts, "columns": self.columns}
        document |= {} if self.transfer is None else {"transfer": self.transfer.as_json()}
        arrays: dict[str, NDArray[Any]] = {}
        if self.evidence is not None:
            evidence, outcome = self.evidence, self.evidence.outcome
            arrays |= {name: getattr(outcome, name) for name in _OUTCOME_ARRAYS}
            arrays |= {name: getattr(evidence, name) for name in ("features", "context", "number")}
            if self.vectors is not None:
                arrays["vectors"] = self.vectors
            document |= {"text": list(evidence.text), "feedback": list(outcome.feedback)}
        LAYOUT.write(folder, document, arrays)

    @classmethod
    def read(cls, folder: Path) -> Saved:
        """Read what :meth:`write` wrote.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        with LAYOUT.reading(folder) as (document, arrays):
            evidence = None
            if "text" in document:
                outcome = Outcome(**{name: arrays[name] for name in _OUTCOME_ARRAYS}, feedback=objects(document["feedback"]))
                evidence = Evidence(arrays["features"], objects(document["text"]), arrays["context"], outcome, arrays["number"])
                if len({len(each) for each in (*arrays.values(), document["text"], document["feedback"])}) > 1:
                    raise ValueError("executed attempts have arrays of different lengths")
            columns = document["columns"]
            check_whole("executions", document["executions"], least=0)
            return cls(
                LATER_SETTINGS | dict(document["settings"]),
                document["encoder"],
                document["executions"],
                # Older checkpoints do not say it: there each fit was made of all the evidence.
                document.get("fitted", 0 if evidence is None else len(evidence.text)),
                document["trained_on"],
                tuple(document["statuses"]),
                tuple(document["contexts"]),
                None if columns is None else (columns[0], columns[1]),
                evidence,
                arrays.get("vectors"),
                Transfer(**document["transfer"]) if "transfer" in document else None,
            )

    def encoder_like(self, given: TextEncoder) -> TextEncoder:
        """The encoder that the model was trained with: made anew, or ``given`` if that is the one.

        Raises:
            WorldModelError: it was another network's.
        """
        made = make_encoder(self.encoder)
        if made is not None:
            return made
        if given.settings() != self.encoder:
            raise WorldModelError(
                f"the model was trained with the encoder {self.encoder}, whose network is not saved with it: give "
                f"OutcomeModel(encoder=...) the same one, not {given.settings()}"
            )
        if self.evidence is not None and self.vectors is not None:
            given.remember(self.evidence.text.tolist(), self.vectors)
        return given

    def evidence_for(self, factored: Factored[Any, Any]) -> Evidence | None:
        """The evidence as an environment would have it, whose contexts may be others: they are matched by name.

        Raises:
            WorldModelError: statuses or features differ.
        """
        if tuple(factored.statuses) != self.statuses:
            raise WorldModelError(f"the model was trained on the statuses {self.statuses}, and these are {factored.statuses}")
        there = factored.context_columns
        evidence = self.evidence
        if evidence is None or tuple(factored.contexts) == self.contexts:
            return evidence
        if self.columns is None or there is None:
            raise WorldModelError(
                f"the model was trained in the contexts {self.contexts}, these are {tuple(factored.contexts)}, and the features "
                "do not say which columns tell them apart (Factored.context_columns)"
            )
        own = evidence.features[:, slice(*self.columns)]
        hot = np.zeros((len(own), len(factored.contexts)), np.float32)
        context = np.full(len(own), -1, np.int64)
        for number, name in enumerate(factored.contexts):
            if name in self.contexts:
                column = self.contexts.index(name)
                hot[:, number] = own[:, column]
                context[evidence.context == column] = number
        parts = [evidence.features[:, : self.columns[0]], hot, evidence.features[:, self.columns[1] :]]
        return Evidence(
            np.hstack(parts), evidence.text, context, batch.take(evidence.outcome, np.arange(len(own))), evidence.number
        )
