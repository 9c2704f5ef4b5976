"""What a language model is asked, the one form that its answers may have, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

_MAX_READ = 20_000
_MOST_STARTS = 64
"""An answer is looked for at so many braces, the last ones: each may be the beginning of something long and deep."""
_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
"""How models mark a chain of thought: its beginning and its end."""
"""Characters of a reply, its last, in which an answer is looked for: what is broken is tried at each of its braces."""
FieldKind = Literal["choice", "line", "text", "fraction"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an answer, a JSON object.

    Args:
        name: its key.
        kind: "choice" is one of ``choices``, "line" a whole number from 0 to 99,999, "text" a string, "fraction" a number from 0
            to 1.
        choices: the closed answers.
        max_length: characters of a text that are kept.
        only_if: (name, answers): asked for where that earlier choice has one of those answers, and otherwise ignored.
    """

    name: str
    kind: FieldKind
    choices: tuple[str, ...] = ()
    max_length: int = 400
    only_if: tuple[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        if (self.kind == "choice") != bool(self.choices):
            raise ValueError(f"field {self.name!r}: a choice needs choices, and nothing else has any; got {self.choices}")

    def applies(self, answers: Mapping[str, Any]) -> bool:
        """Whether the field is asked for, given the earlier answers."""
        return self.only_if is None or answers.get(self.only_if[0]) in self.only_if[1]


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, and the form of the answer to it.

    Args:
        messages: (role, content) of each turn; roles are "system", "user" and "assistant".
        fields: of the answer, in the order in which they are to be written.
        seed: of sampling, 31 bits; None asks for the likeliest answer.
    """

    messages: tuple[tuple[str, str], ...]
    fields: tuple[Field, ...]
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Args:
        text: the reply as it was written.
        cut_off: whether it ended because it had reached the greatest length.
        chances: for each choice of which the back end knows them, the probabilities of the answers: float64, shape (C,).
        usage: tokens of the prompt and of the reply, as the server counted them; None where it did not say.
        tokens: text and log-probability of each token of the reply, where the server was asked for them.
    """

    text: str
    chances: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    cut_off: bool = False
    usage: tuple[int, int] | None = None
    tokens: tuple[tuple[str, float], ...] = ()


class LanguageModel(Protocol):
    """What answers questions: a server (:class:`ChatClient`) or a model in this process (:class:`LocalModel`)."""

    @property
    def knows_chances(self) -> bool:
        """Whether replies carry the probabilities of the closed answers, so that asking twice tells nothing new."""

    def ask(self, questions: Sequence[Question]) -> list[Reply | None]:
        """The reply to each question, None where none came. Never raises for what a server does."""


def json_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """The fields as a strict JSON schema, for servers that constrain their decoding to one.

    >>> json_schema([Field("status", "choice", ("valid", "failed"))])["properties"]
    {'status': {'type': 'string', 'enum': ['valid', 'failed']}}
    """
    properties: dict[str, dict[str, Any]] = {}
    for each in fields:
        if each.kind == "choice":
            properties[each.name] = {"type": "string", "enum": list(each.choices)}
        elif each.kind == "text":
            properties[each.name] = {"type": "string", "maxLength": each.max_length}
        elif each.kind == "line":
            properties[each.name] = {"type": "integer", "minimum": 0, "maximum": 99_999}
        else:
            properties[each.name] = {"type": "number", "minimum": 0, "maximum": 1}
    names = [each.name for each in fields]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def without_thoughts(text: str) -> str:
    """What a reply says after its chain of thought; "" where that has not ended.

    A template may open the thought itself, so that the reply holds its end only.

    >>> without_thoughts("<think>Maybe 3?</think>It is 4."), without_thoughts("<think>Maybe 3? Or")
    ('It is 4.', '')
    """
    for begin, end in _THOUGHTS:
        text = text[at + len(end) :] if (at := text.rfind(end)) >= 0 else text
        text = text[:at] if (at := text.find(begin)) >= 0 else text
    return text


def parse(text: str, fields: Sequence[Field], *, cut_off: bool = False) -> dict[str, Any] | None:
    """The answers in a reply; None unless every field that applies is there and of its kind.

    The object may stand among other text, in a fenced block or after a chain of thought: the last one that has the form counts. A
    thought is no answer, and nor is what stands in a reply that was cut off, unless it begins with it: a server need not mark
    where a model thinks.

    Args:
        text: the reply.
        fields: what was asked for.
        cut_off: whether the reply ended because it had reached the greatest length.

    >>> form = [Field("status", "choice", ("valid", "failed")), Field("sure", "fraction")]
    >>> parse('I think: {"status": "valid", "sure": 0.8}', form)
    {'status': 'valid', 'sure': 0.8}
    >>> parse('{"status": "valid", "sure": 0.', form) is None
    True
    """
    whole = _whole(text)
    if whole is not None:
        return _checked(whole, fields)
    found = None
    decoder = json.JSONDecoder()
    text = without_thoughts(text)
    if cut_off:
        text = text.lstrip().removeprefix("```json").removeprefix("```").lstrip()[:_MAX_READ]
        if not text.startswith("{"):
            return None
    text = text[-_MAX_READ:]
    starts = [at for at, each in enumerate(text) if each == "{"]
    end = 0
    for at in starts[:1] if cut_off else starts[-_MOST_STARTS:]:
        if at >= end:
            try:
                document, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                continue
            found = _checked(document, fields) or found
    return found


def _whole(text: str) -> dict[str, Any] | None:
    """The object that a reply consists of; whatever its texts say, it holds no thoughts."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _checked(document: dict[str, Any], fields: Sequence[Field]) -> dict[str, Any] | None:
    answers: dict[str, Any] = {}
    for each in fields:
        if not each.applies(answers):
            continue
        value: Any = document.get(each.name)
        if not _is_of_kind(value, each):
            return None
        answers[each.name] = value[: each.max_length] if each.kind == "text" else value
    return answers


def _is_of_kind(value: Any, asked: Field) -> bool:
    if asked.kind == "choice":
        return isinstance(value, str) and value in asked.choices
    if asked.kind == "text":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # NaN, which Python's reader of JSON lets through, is in no range.
    return 0 <= value <= 1 if asked.kind == "fraction" else isinstance(value, int) and 0 <= value <= 99_999
