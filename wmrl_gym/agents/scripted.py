"""A proposer of scripts that follows fixed rules: what an agent's scripts look like, without a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from wmrl_gym.agents.brief import Brief, Report
from wmrl_gym.agents.faults import spoilt
from wmrl_gym.agents.plans import Plan
from wmrl_gym.agents.writing import write


class Agent(Protocol):
    """Replies to observations of the text environment, one environment at a time."""

    def act(self, observation: Mapping[str, Any]) -> str:
        """The reply to an observation; an observation at turn 0 begins another episode."""
        ...


class ScriptedProposer:
    """Writes scripts as a coding agent does: varied, often wrong at first, mended by what the feedback says, then improved.

    It reads the task's statement (target, metric, columns of the submission) and, where it asks for it, the description. Of the
    scripts some have a mistake that agents make (a misspelt name, a library that is not there, a wrong column, no submission, no
    end), and some a plan that does not suit the data (a linear model with empty cells). After a failure it mends what the
    feedback points at, or misunderstands it; after a score it varies the best plan so far.

    Args:
        seed: of everything; the same seed and observations give the same replies.
        skill: from 0 to 1, how rarely it makes mistakes and how well it reads feedback.

    Raises:
        ValueError: a skill outside [0, 1].

    >>> proposer = ScriptedProposer(seed=2)
    >>> task = "Predict 'fare' for each row. Metric: mae (smaller).\\nThe submission is a csv with the columns id, fare."
    >>> "```python" in proposer.act({"task": task, "feedback": "", "turn": 0})
    True
    """

    def __init__(self, *, seed: int = 0, skill: float = 0.5) -> None:
        if not 0.0 <= skill <= 1.0:
            raise ValueError(f"skill must lie in [0, 1], got {skill}")
        self.seed, self.skill = seed, skill
        self._episode = -1
        self._rng = np.random.default_rng(seed)

    def act(self, observation: Mapping[str, Any]) -> str:
        """The reply to an observation; one at turn 0 begins another episode, with numbers of its own.

        Args:
            observation: with ``task``, ``feedback`` and ``turn``, as the text environment gives it.

        Raises:
            ValueError: the task's statement says nothing of what to predict.
        """
        if int(observation["turn"]) == 0:
            self._begin(str(observation["task"]))
            if self._rng.random() < _ASKS:
                return "Let me look at the data first.\nDESCRIBE"
        else:
            self._learn(str(observation["feedback"]))
        return self._propose()

    def _begin(self, statement: str) -> None:
        self._episode += 1
        self._rng = np.random.default_rng([self.seed, self._episode])
        self._brief = Brief.of(statement)
        self._text = self._brief.kind == "probabilities" and self._rng.random() < 0.5  # a guess, before it has looked
        self._plan = Plan.drawn(self._rng, text=self._text)
        self._best: tuple[float, Plan] | None = None
        self._fault = ""
        self._careful = False

    def _learn(self, feedback: str) -> None:
        """Take in what the last reply brought, and change the plan."""
        report, rng = Report.of(feedback), self._rng
        if not report.status:
            self._brief = self._brief.described(feedback)
            others = set(self._brief.columns) - {self._brief.id_column, self._brief.target}
            self._text = len(others) == 1
            self._plan = Plan.drawn(rng, text=self._text)
            return
        if report.status == "valid":
            worth = 0.0 if report.beaten is None else report.beaten
            if self._best is None or worth >= self._best[0]:
                self._best = worth, self._plan
            self._plan, self._careful = self._best[1].varied(rng, text=self._text), False
            return
        self._careful = rng.random() < 0.3 + 0.65 * self.skill
        if not self._fault or not self._careful:
            self._plan = self._plan.mended(rng, report.status, report.error, text=self._text)

    def _propose(self) -> str:
        code, rng = write(self._plan, self._brief), self._rng
        wrong = 0.75 - 0.6 * self.skill
        self._fault = ""
        if rng.random() < (0.3 * wrong if self._careful else wrong):
            code, self._fault = spoilt(code, self._brief, rng)
        if rng.random() < _WORDLESS * (1.0 - self.skill):
            return f"I would use {self._plan.model} here, with {self._plan.columns} as columns."
        thought = f"{self._plan.model.capitalize()} on {self._plan.columns}, gaps: {self._plan.fill}, extra: {self._plan.extra}."
        return f"{thought}\n\n```python\n{code}```"


_ASKS = 0.25
"""How often an episode begins with a request for the description."""
_WORDLESS = 0.06
"""How often the least skilled forgets the code."""
