"""A world model that reads: a language model is prompted to predict what executing an attempt would return."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Printed
from wmrl_gym.world_models.attempts import AttemptModel, PredictedOutcomes
from wmrl_gym.world_models.base import Interface, WorldModelError
from wmrl_gym.world_models.llm.prompts import Design, Example, Prompts, Verdict, read_feedback
from wmrl_gym.world_models.llm.saving import SETTINGS, SavedLLM, settings_of_backend
from wmrl_gym.world_models.llm.schema import LanguageModel, Question, Reply

BUCKETS: Mapping[str, float] = {"low": 0.05, "fair": 0.20, "mid": 0.45, "high": 0.75}
"""Qualities by name, and the percentile that each stands for, as in arXiv 2608.12564."""


@dataclass(slots=True)
class AskedFor:
    """What became of the attempts and questions so far.

    Args:
        attempts: attempts that the gate left open.
        questions: questions about them.
        repeated: of these, those that had been asked before, and were not asked again.
        answered: replies that could be read.
        unreadable: replies that could not.
        unanswered: questions without a reply.
        unknown: attempts of which nothing is known, since no reply came.
    """

    attempts: int = 0
    questions: int = 0
    repeated: int = 0
    answered: int = 0
    unreadable: int = 0
    unanswered: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        questions = f"{self.questions:,} questions about {self.attempts:,} attempts"
        replies = f"{self.answered:,} answered, {self.unreadable:,} not readably, {self.unanswered:,} not at all"
        return f"{questions} were asked: {replies}; of {self.unknown:,} attempts nothing is known"


class LLMWorldModel(AttemptModel):
    """Predicts outcomes of attempts that are text, such as an agent's code, by asking a language model.

    What needs no execution is answered by the environment's own gate, exactly and without asking. Everything else is asked of
    ``backend`` as strict JSON: the status, the quality if there is a score, the exception and its line or what is printed, and
    how sure that is. The feedback has the environment's own form. The reward is the expectation over the answers' distribution,
    which the back end knows (:class:`LocalModel`) or which ``samples`` replies and their stated confidence give; its spread is
    ``reward_std``. An attempt without a reply that can be read is unknown (``reward_valid=False``), never a number.

    Executed anchors become worked examples in the prompts: of the same task, the most alike, of different statuses.

    Args:
        backend: answers the questions: :class:`ChatClient`, :class:`LocalModel`, or your own.
        design: ``"holistic"`` asks one question; ``"decomposed"`` asks several side by side and chains the answers.
        samples: replies to each question, sampled where there is more than one; a back end that knows the chances is asked once.
        shots: executed attempts shown in each prompt.
        capacity: newest executions kept for that.
        cache: answered questions that are remembered, so that the same question has the same answer.
        max_code: characters of code that are shown.
        max_briefing: characters of the task's briefing that are shown.
        buckets: names of the qualities and the share of the open range of values that each stands for, ascending.

    Raises:
        ValueError: an argument out of range.
    """

    reads_context: ClassVar[bool] = True

    def __init__(
        self,
        backend: LanguageModel,
        *,
        design: Design = "holistic",
        samples: int = 1,
        shots: int = 2,
        capacity: int = 512,
        cache: int = 8192,
        max_code: int = 6000,
        max_briefing: int = 3000,
        buckets: Mapping[str, float] = BUCKETS,
    ) -> None:
        if design not in ("holistic", "decomposed"):
            raise ValueError(f'design must be "holistic" or "decomposed", got {design!r}')
        for name, value, least in (("samples", samples, 1), ("shots", shots, 0), ("capacity", capacity, 1), ("cache", cache, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        shares = list(buckets.values())
        if len(shares) < 2 or shares != sorted(shares) or not 0 <= shares[0] < shares[-1] <= 1:
            raise ValueError(f"buckets must be at least two shares in [0, 1], ascending, got {dict(buckets)}")
        self.backend, self.design = backend, design
        self.samples = 1 if backend.knows_chances else samples
        self.shots, self.capacity, self.cache = shots, capacity, cache
        self.max_code, self.max_briefing, self.buckets = max_code, max_briefing, dict(buckets)
        self.asked = AskedFor()
        self.executions = 0
        self._shown: list[tuple[str, Example]] = []
        """The context's name, and the executed attempt."""
        self._remembered: OrderedDict[Question, Reply] = OrderedDict()

    def bind(self, interface: Interface) -> None:
        super().bind(interface)
        self._prompts = Prompts(
            self.factored, self.design, buckets=self.buckets, max_code=self.max_code, max_briefing=self.max_briefing
        )
        if not self._prompts.open:
            raise WorldModelError("every status has a fixed value, so that there is no quality to ask for")

    def predict_outcomes(
        self, attempt: Any, context: NDArray[np.int64], *, seed: NDArray[np.int64], rng: np.random.Generator
    ) -> PredictedOutcomes:
        code = list(self.factored.text(attempt))
        gated, exact = self.factored.gate(attempt)
        rows = np.flatnonzero(~gated).tolist()
        if any(not code[row] for row in rows):
            raise WorldModelError(
                "LLMWorldModel reads attempts as text, and this environment's have none: use OutcomeModel for it"
            )
        verdicts = dict(zip(rows, self._verdicts(rows, code, context, seed), strict=True))
        printed = [Printed()] * len(code)
        outcome, std = replace(exact, known=exact.known & gated), np.where(gated, 0.0, np.nan)
        status, value = outcome.status.copy(), outcome.value.copy()
        shown, known = outcome.shown.copy(), outcome.known.copy()
        for row, verdict in verdicts.items():
            if verdict is not None:
                status[row], value[row], shown[row], std[row] = self._expect(verdict)
                known[row], printed[row] = True, verdict.printed.get(int(status[row]), Printed())
        whole = replace(outcome, status=status, value=value, shown=shown, known=known)
        if self.factored.shows_text:
            whole = self.factored.report(attempt, whole, printed)
        return self._gated(attempt, PredictedOutcomes(whole, std))

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        """Keep what was executed, as examples."""
        if transitions.attempt is None or transitions.outcome is None:
            raise WorldModelError("LLMWorldModel learns from transitions that hold attempts and outcomes; these hold none")
        gated, _ = self.factored.gate(transitions.attempt)
        code, outcome = self.factored.text(transitions.attempt), transitions.outcome
        for row in np.flatnonzero(outcome.known & ~gated).tolist():
            name = self.factored.statuses[int(outcome.status[row])]
            example = Example(code[row], name, float(outcome.value[row]), read_feedback(str(outcome.feedback[row])))
            self._shown.append((self.factored.contexts[int(transitions.context[row])], example))
            self.executions += 1
        del self._shown[: -self.capacity]
        return self.stats()

    def stats(self) -> dict[str, float]:
        """What has been asked so far and what became of it, for a log."""
        counts = {name: float(getattr(self.asked, name)) for name in AskedFor.__dataclass_fields__}
        return {f"wm/{name}": value for name, value in ({"executions": float(self.executions)} | counts).items()}

    def _expect(self, verdict: Verdict) -> tuple[int, float, float, float]:
        """Status, value, shown value and the value's standard deviation that a verdict stands for."""
        prompts = self._prompts
        levels = prompts.low + prompts.span * np.array(list(self.buckets.values()))
        middle = float(verdict.quality @ levels)
        # Within a bucket a value may lie anywhere: uniform over an equal share of the range.
        open_variance = float(verdict.quality @ (levels - middle) ** 2) + (prompts.span / len(levels)) ** 2 / 12
        values = np.where(self._open, middle, self._fixed)
        mean = float(verdict.chances @ values)
        variance = float(verdict.chances @ ((values - mean) ** 2 + self._open * open_variance))
        status = int(verdict.chances.argmax())
        return status, mean, float(values[status]), float(np.sqrt(variance))

    def _verdicts(
        self, rows: list[int], code: list[str], context: NDArray[np.int64], seed: NDArray[np.int64]
    ) -> list[Verdict | None]:
        """What the language model says about each attempt in ``rows``; None where it says nothing that can be read."""
        by_row = [
            self._prompts.questions(
                code[row], int(context[row]), examples=self._examples(code[row], int(context[row])), seeds=self._seeds(seed[row])
            )
            for row in rows
        ]
        replies = self._answers([question for questions in by_row for question in questions])
        verdicts: list[Verdict | None] = []
        for questions in by_row:
            verdict, unreadable = self._prompts.read([replies.get(question) for question in questions])
            verdicts.append(verdict)
            missing = sum(question not in replies for question in questions)
            self.asked.unreadable += unreadable
            self.asked.unanswered += missing
            self.asked.answered += len(questions) - unreadable - missing
            self.asked.unknown += verdict is None
        self.asked.attempts += len(rows)
        return verdicts

    def _seeds(self, seed: np.int64) -> list[int | None]:
        # One reply is the likeliest one, which has no luck in it and is the same for every rollout.
        return [None] if self.samples == 1 else [(int(seed) + 7919 * number) % 2**31 for number in range(self.samples)]

    def _answers(self, questions: list[Question]) -> dict[Question, Reply]:
        """The replies, each question asked once, and not at all if it is remembered."""
        distinct = list(dict.fromkeys(questions))
        new = [question for question in distinct if question not in self._remembered]
        answers = {question: self._remembered[question] for question in distinct if question in self._remembered}
        self.asked.questions += len(questions)
        self.asked.repeated += len(questions) - len(new)
        for question, reply in zip(new, self.backend.ask(new) if new else [], strict=True):
            if reply is not None:
                answers[question] = reply
        for question, reply in answers.items():
            self._remembered[question] = reply
            self._remembered.move_to_end(question)
        while len(self._remembered) > self.cache:
            self._remembered.popitem(last=False)
        return answers

    def _examples(self, code: str, context: int) -> list[Example]:
        """The executed attempts to show: of this task if there are any, the most alike first, statuses in turn."""
        if self.shots == 0 or not self._shown:
            return []
        name = self.factored.contexts[context]
        known = [example for task, example in self._shown if task == name] or [example for _, example in self._shown]
        words = set(code.split())

        def alike(example: Example) -> float:
            theirs = set(example.code.split())
            return len(words & theirs) / max(len(words | theirs), 1)

        ranked = sorted(known, key=alike, reverse=True)
        turns: dict[str, int] = {}
        order: list[tuple[int, int, Example]] = []
        for example in ranked:
            order.append((turns.get(example.status, 0), len(order), example))
            turns[example.status] = turns.get(example.status, 0) + 1
        chosen = [example for _, _, example in sorted(order, key=lambda each: each[:2])[: self.shots]]
        return chosen[::-1]  # the most alike stands last, next to the question

    @property
    def shown(self) -> tuple[tuple[str, Example], ...]:
        """The executed attempts that may be shown, each with its context's name, oldest first."""
        return tuple(self._shown)

    def save(self, path: str | Path) -> None:
        """Write the settings, the executed attempts, and where the back end is; its weights and keys stay where they are."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        SavedLLM(settings, settings_of_backend(self.backend), self.executions, self.shown).write(Path(path))

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote, settings included; the back end stays, see :func:`load_model` for the saved one.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        saved, interface = SavedLLM.read(Path(path)), self.interface
        try:
            LLMWorldModel.__init__(self, self.backend, **saved.settings)
        except (TypeError, ValueError) as error:
            raise WorldModelError(f"the model in {path} has settings that no {type(self).__name__} has: {error}") from error
        self.executions, self._shown = saved.executions, list(saved.examples)
        if interface is not None:
            self.bind(interface)
