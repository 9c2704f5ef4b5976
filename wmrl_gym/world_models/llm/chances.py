"""What a server's log-probabilities say about closed answers: the chance of each, not only of the one that was written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.world_models.llm.schema import Field

_LEAST = 1e-12
"""The chance of a token that is said to have none."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was written, and what else could have been.

    Args:
        text: of the token.
        chance: of it, in [0, 1].
        others: for the likeliest tokens in its place, their texts and chances; it may be among them.
    """

    text: str
    chance: float
    others: Mapping[str, float]


def read_tokens(completion: Mapping[str, Any]) -> list[Token]:
    """The tokens of a chat completion's first choice; none where it does not tell log-probabilities, or not readably.

    >>> said = {"token": "yes", "logprob": 0.0, "top_logprobs": [{"token": "yes", "logprob": 0.0}]}
    >>> read_tokens({"choices": [{"logprobs": {"content": [said]}}]})
    [Token(text='yes', chance=1.0, others={'yes': 1.0})]
    >>> read_tokens({"choices": [{"logprobs": None}]})
    []
    """
    try:
        return [
            Token(_text(each), _chance(each), {_text(other): _chance(other) for other in each["top_logprobs"]})
            for each in completion["choices"][0]["logprobs"]["content"]
        ]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return []


def read_usage(completion: Mapping[str, Any]) -> tuple[int, int] | None:
    """The tokens of the prompt and of the reply, as a chat completion counts them; None where it does not, or senselessly.

    >>> read_usage({"usage": {"prompt_tokens": 12, "completion_tokens": 5}}), read_usage({})
    ((12, 5), None)
    """
    try:
        counts = [completion["usage"][name] for name in ("prompt_tokens", "completion_tokens")]
    except (KeyError, TypeError):
        return None
    if any(type(count) is not int or count < 0 for count in counts):
        return None
    return counts[0], counts[1]


def written_tokens(completion: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Text and log-probability of each token of a reply; none where they are not told, or not readably.

    >>> written_tokens({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": -0.5}]}}]})
    (('yes', -0.5),)
    """
    try:
        return tuple((_text(each), float(each["logprob"])) for each in completion["choices"][0]["logprobs"]["content"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ()


def chances_of(tokens: Sequence[Token], answers: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, NDArray[np.float64]]:
    """For each choice among the answers, the probability of each of its closed answers: float64, shape (C,), summing to 1.

    The reply is followed token by token. In each place where answers that are still possible part, they share what the server
    says of the tokens that lead to them: what decoding constrained to them draws from. An answer to which none of the reported
    tokens leads can have the chance of the least of these at most, and is given that: doubt is overstated, never certainty.

    Args:
        tokens: of the reply.
        answers: that were read from it.
        fields: that were asked for.

    >>> tokens = [Token('{"sure": "', 1.0, {}), Token("y", 0.6, {"y": 0.6, "n": 0.2, "1": 0.1}), Token('es"}', 1.0, {})]
    >>> chances_of(tokens, {"sure": "yes"}, [Field("sure", "choice", ("yes", "no"))])
    {'sure': array([0.75, 0.25])}
    """
    text = "".join(token.text for token in tokens)
    found = {}
    for field in fields:
        if field.kind == "choice" and field.name in answers:
            start = _start(text, field.name, answers[field.name])
            chances = None if start is None else _follow(tokens, start, field.choices)
            if chances is not None:
                found[field.name] = chances
    return found


def _follow(tokens: Sequence[Token], start: int, choices: Sequence[str]) -> NDArray[np.float64] | None:
    """The chances of choices of which one is written from the character ``start`` on; None where the tokens do not tell them."""
    endings = {number: f'{_escaped(choice)}"' for number, choice in enumerate(choices)}
    chances, left, possible = np.zeros(len(choices)), 1.0, set(endings)
    ends = accumulate(len(token.text) for token in tokens)
    for token, end in zip(tokens, ends, strict=True):
        if end <= start:
            continue
        written = end - len(token.text) - start
        lead, done = token.text[: max(-written, 0)], max(written, 0)
        going, weights = _part(token, lead, {number: endings[number][done:] for number in possible})
        if going != possible and not token.others:
            return None
        total = max(token.chance, _LEAST) + sum(weights.values())
        for number, weight in weights.items():
            chances[number] += left * weight / total
        left *= max(token.chance, _LEAST) / total
        possible = going
        if len(possible) == 1:
            chances[possible.pop()] += left
            return chances
    return None


def _part(token: Token, lead: str, rests: Mapping[int, str]) -> tuple[set[int], dict[int, float]]:
    """Which answers the token that was written leads to, and the chances of those to which other tokens in its place do.

    Args:
        token: in the place in question.
        lead: what the token begins with that stands before the answer.
        rests: what is still to be written of each answer.
    """

    def leads_to(text: str) -> set[int]:
        piece = text.removeprefix(lead)
        if not text.startswith(lead) or not piece:
            return set()
        return {number for number, rest in rests.items() if rest.startswith(piece) or piece.startswith(rest)}

    going, weights = leads_to(token.text), dict.fromkeys(rests, 0.0)
    for text, chance in token.others.items():
        ahead = leads_to(text) if text != token.text else set()
        for number in ahead:
            weights[number] += chance / len(ahead)
    least = max(min(token.others.values(), default=0.0), _LEAST)
    return going, {number: weight or (0.0 if number in going else least) for number, weight in weights.items()}


def _start(text: str, name: str, answer: str) -> int | None:
    """Where the answer of that name stands, the last one if it stands there several times."""
    places = [found.end() for found in re.finditer(rf'"{re.escape(_escaped(name))}"\s*:\s*"', text)]
    return next((place for place in reversed(places) if text.startswith(f'{_escaped(answer)}"', place)), None)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _text(said: Mapping[str, Any]) -> str:
    text = said["token"]
    if not isinstance(text, str):
        raise TypeError(f"not a text: {text!r}")
    return text


def _chance(said: Mapping[str, Any]) -> float:
    chance = math.exp(float(said["logprob"]))
    if not 0.0 <= chance <= 1.0 + 1e-6:
        raise ValueError(f"not a probability: {chance}")
    return min(chance, 1.0)
