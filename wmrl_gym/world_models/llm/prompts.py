"""The prompts of a language model that predicts outcomes, and what its answers mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.factored import Factored, Printed
from wmrl_gym.world_models.llm.schema import Field, Question, Reply, parse

Design = Literal["holistic", "decomposed"]
_TRACE_LINE = re.compile(r'^ *File "[^"]*", line (\d+)', re.MULTILINE)
_TRACE_ERROR = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Iteration|Warning))(?:: (.*))?$")
_SURE = 0.99
"""The most that a stated confidence counts."""


@dataclass(frozen=True, slots=True)
class Example:
    """An executed attempt, as the model is shown it: the code, its status by name, its value and what it printed."""

    code: str
    status: str
    value: float
    printed: Printed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all replies about one attempt say together.

    Args:
        chances: of each status: float64, shape (S,), summing to 1.
        quality: of each bucket, where the status leaves the value open: float64, shape (Q,), summing to 1.
        printed: what is expected to be printed, by the status that is expected.
    """

    chances: NDArray[np.float64]
    quality: NDArray[np.float64]
    printed: dict[int, Printed]


class Prompts:
    """Writes the questions about an attempt, and reads the answers.

    ``"holistic"`` asks once for everything. ``"decomposed"`` asks side by side whether each way to fail occurs, given that those
    before it do not, and how good the result is otherwise; the answers are chained to one distribution.

    Args:
        factored: the environment's parts: statuses, their meanings, and the contexts' briefings.
        design: "holistic" or "decomposed".
        buckets: names of the qualities and the share of the open range that each stands for, ascending.
        max_code: characters of code that are shown.
        max_briefing: characters of a context's briefing that are shown.
    """

    def __init__(
        self, factored: Factored[Any, Any], design: Design, *, buckets: Mapping[str, float], max_code: int, max_briefing: int
    ) -> None:
        self.factored, self.design, self.buckets = factored, design, dict(buckets)
        self.max_code, self.max_briefing = max_code, max_briefing
        self.names = tuple(name for name in factored.statuses if name not in factored.gated_statuses)
        values = dict(zip(factored.statuses, factored.status_values, strict=True))
        self.open = tuple(name for name in self.names if values[name] != values[name])
        self.closed = tuple(name for name in self.names if name not in self.open)
        low, high = factored.reward_range if factored.open_values is None else factored.open_values
        self.low, self.span = low, high - low
        """The open range of values: where it begins, and its width."""

    def questions(self, code: str, context: int, *, examples: Sequence[Example], seeds: Sequence[int | None]) -> list[Question]:
        """Every question about an attempt: for each seed, each of :attr:`forms`."""
        return [
            Question(self._messages(code, context, check=check, examples=examples), fields, seed)
            for seed in seeds
            for check, fields in self.forms
        ]

    @property
    def forms(self) -> list[tuple[str, tuple[Field, ...]]]:
        """What is asked: the status that a question checks ("" for all at once or for the quality), and the answer's fields."""
        quality = Field("quality", "choice", tuple(self.buckets))
        if self.design == "holistic":
            status = Field("status", "choice", self.names)
            if_open = Field("quality", "choice", tuple(self.buckets), only_if=("status", self.open))
            return [("", (status, if_open, *_details(("status", self.closed)), Field("confidence", "fraction")))]
        yes = Field("answer", "choice", ("yes", "no"))
        checks = [(name, (yes, *_details(("answer", ("yes",))), Field("confidence", "fraction"))) for name in self.closed]
        return [*checks, ("", (quality, Field("confidence", "fraction")))]

    def read(self, replies: Sequence[Reply | None]) -> tuple[Verdict | None, int]:
        """What the replies to :meth:`questions` say, and how many of them cannot be read.

        The verdict is None unless at least one reply to each of :attr:`forms` can be read.
        """
        forms = self.forms
        asked = [fields for _ in range(len(replies) // len(forms)) for _, fields in forms]
        answers = [
            None if reply is None else parse(reply.text, fields, cut_off=reply.cut_off)
            for reply, fields in zip(replies, asked, strict=True)
        ]
        unreadable = sum(reply is not None and answer is None for reply, answer in zip(replies, answers, strict=True))
        by_form: list[list[tuple[Reply, dict[str, Any]]]] = [[] for _ in forms]
        for number, (reply, answer) in enumerate(zip(replies, answers, strict=True)):
            if reply is not None and answer is not None:
                by_form[number % len(forms)].append((reply, answer))
        if not all(by_form):
            return None, unreadable
        return (self._whole(by_form[0]) if self.design == "holistic" else self._chained(by_form)), unreadable

    def _whole(self, read: list[tuple[Reply, dict[str, Any]]]) -> Verdict:
        chances = np.mean([_chances(reply, answer, "status", self.names) for reply, answer in read], axis=0)
        scored = [_chances(*pair, "quality", tuple(self.buckets)) for pair in read if "quality" in pair[1]]
        quality = np.mean(scored, axis=0) if scored else np.full(len(self.buckets), 1.0 / len(self.buckets))
        printed = {self._index(answer["status"]): _printed(answer) for _, answer in reversed(read) if "message" in answer}
        return Verdict(self._spread(dict(zip(self.names, chances, strict=True))), quality, printed)

    def _chained(self, read: list[list[tuple[Reply, dict[str, Any]]]]) -> Verdict:
        left, chances = 1.0, dict.fromkeys(self.names, 0.0)
        printed: dict[int, Printed] = {}
        for name, of_check in zip(self.closed, read[:-1], strict=True):
            yes = float(np.mean([_chances(reply, answer, "answer", ("yes", "no"))[0] for reply, answer in of_check]))
            chances[name], left = left * yes, left * (1.0 - yes)
            said = [_printed(answer) for _, answer in of_check if "message" in answer]
            printed |= {self._index(name): said[0]} if said else {}
        for name in self.open:
            chances[name] = left / len(self.open)
        quality = np.mean([_chances(reply, answer, "quality", tuple(self.buckets)) for reply, answer in read[-1]], axis=0)
        return Verdict(self._spread(chances), quality, printed)

    def _spread(self, chances: Mapping[str, float]) -> NDArray[np.float64]:
        """Chances by name as an array over all statuses."""
        return np.array([chances.get(name, 0.0) for name in self.factored.statuses], np.float64)

    def _index(self, status: str) -> int:
        return self.factored.statuses.index(status)

    def _messages(self, code: str, context: int, *, check: str, examples: Sequence[Example]) -> tuple[tuple[str, str], ...]:
        meanings = self.factored.status_meanings
        lines = [_clip(self.factored.briefing(context), self.max_briefing), "", "What can come of a script:"]
        lines += [f"- {name}: {meanings[name]}" if name in meanings else f"- {name}" for name in self.names]
        turns = [("system", "You predict what executing a script returns. Answer with one JSON object and nothing else.")]
        shown = [each for each in examples if check == "" or each.status in self._after(check)]
        if self.design == "decomposed" and check == "":
            shown = [each for each in shown if each.status in self.open]
        for example in shown:
            turns += [("user", self._script(example.code, check)), ("assistant", json.dumps(self._answer(example, check)))]
        turns.append(("user", self._script(code, check)))
        # The briefing goes where the conversation begins, so that a server can keep its state for all attempts at a task.
        turns[1] = (turns[1][0], "\n".join(lines).strip() + "\n\n" + turns[1][1])
        return tuple(turns)

    def _after(self, check: str) -> tuple[str, ...]:
        """The statuses that are possible when a check is asked: its own, and those that come after it."""
        return (*self.closed[self.closed.index(check) :], *self.open)

    def _script(self, code: str, check: str) -> str:
        names = " < ".join(self.buckets)
        if self.design == "holistic":
            ask = f"status, and for {' or '.join(self.open)} the quality among other solutions ({names})"
        elif check:
            ask = f'answer "yes" if this one comes of it, else "no": {check}'
        else:
            ask = f"it can be scored; its quality among other solutions ({names})"
        return f"{_clip(code, self.max_code)}\n\nKeys: {', '.join(self._keys(check))}. Tell: {ask}."

    def _keys(self, check: str) -> list[str]:
        return next([field.name for field in fields] for name, fields in self.forms if name == check)

    def _answer(self, example: Example, check: str) -> dict[str, Any]:
        """The answer that would have been right."""
        failed = {"error": example.printed.error_type, "line": example.printed.line, "message": example.printed.message[:200]}
        if self.design == "decomposed":
            if check:
                return ({"answer": "yes", **failed} if example.status == check else {"answer": "no"}) | {"confidence": 0.9}
            return {"quality": self.bucket(example.value), "confidence": 0.9}
        details = {"quality": self.bucket(example.value)} if example.status in self.open else failed
        return {"status": example.status, **details, "confidence": 0.9}

    def bucket(self, value: float) -> str:
        """The name of the bucket that is nearest to a value of the open range."""
        share = (value - self.low) / self.span
        return min(self.buckets, key=lambda name: abs(self.buckets[name] - share))


def read_feedback(feedback: str) -> Printed:
    """The exception in what an execution printed; its last line where there is none.

    >>> read_feedback('stderr:\\n  File "solution.py", line 7, in <module>\\nKeyError: 3')
    Printed(error_type='KeyError', line=7, message='3')
    """
    lines = feedback.strip().splitlines()
    numbers = _TRACE_LINE.findall(feedback)
    for text in reversed(lines):
        match = _TRACE_ERROR.match(text)
        if match:
            return Printed(match[1], int(numbers[-1]) if numbers else 0, match[2] or "")
    return Printed(message=lines[-1] if lines else "")


def _details(only_if: tuple[str, tuple[str, ...]]) -> tuple[Field, ...]:
    return (
        Field("error", "text", max_length=80, only_if=only_if),
        Field("line", "line", only_if=only_if),
        Field("message", "text", max_length=1000, only_if=only_if),
    )


def _printed(answer: Mapping[str, Any]) -> Printed:
    return Printed(answer["error"], answer["line"], answer["message"])


def _chances(reply: Reply, answer: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> NDArray[np.float64]:
    """The probability of each choice: the back end's own where it knows it, else by the stated confidence in the answer."""
    if name in reply.chances:
        return reply.chances[name]
    sure = min(max(float(answer["confidence"]), 1.0 / len(choices)), _SURE)
    others = (1.0 - sure) / max(len(choices) - 1, 1)
    return np.array([sure if choice == answer[name] else others for choice in choices])


def _clip(text: str, length: int) -> str:
    """The beginning and the end of a text that is too long: what a script writes, and where, is at its end."""
    if len(text) <= length:
        return text
    half = max((length - 20) // 2, 1)
    return f"{text[:half]}\n# [...]\n{text[-half:]}"
