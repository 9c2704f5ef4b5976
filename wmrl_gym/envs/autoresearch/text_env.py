"""``wmrl/AutoResearch-v0``: an agent replies in text; its code is run in a sandbox and graded on hidden answers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.base import AutoResearch, TaskChoice
from wmrl_gym.envs.autoresearch.feedback import (
    MALFORMED_FEEDBACK,
    MAX_FEEDBACK,
    UNREAD_FEEDBACK,
    bounded,
    expected_report,
    head,
    report,
)
from wmrl_gym.envs.autoresearch.options import takes_options
from wmrl_gym.envs.autoresearch.reply import MAX_REPLY, syntax_error, understand
from wmrl_gym.envs.autoresearch.rules import DESCRIBED, MALFORMED, STATUS_VALUES, SYNTAX_ERROR, VALID, Progress
from wmrl_gym.envs.autoresearch.static.features import STATIC_FEATURES, static_features
from wmrl_gym.envs.autoresearch.static.scripts import ScriptUnreadable
from wmrl_gym.envs.autoresearch.tasks.format import Task
from wmrl_gym.envs.autoresearch.tasks.profile import Profile, profile
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.factored import Outcome, Printed
from wmrl_gym.spaces import UnicodeText

CODE, DESCRIBE, NOTHING = range(3)
_KINDS = {"code": CODE, "describe": DESCRIBE, "malformed": NOTHING}

_PROTOCOL = """\
Reply with one of:
- a complete Python script in a fenced block that begins with ```python and ends with ```; the last complete block is run
- a line that says DESCRIBE and nothing else, for the description of the data
The script finds its files in the folder os.environ["DATA_DIR"] and must write its predictions to os.environ["SUBMISSION_PATH"].\
"""


@dataclass(frozen=True, slots=True)
class TextAttempt:
    """A batch of replies.

    Args:
        task: int64, shape (B,). Which task.
        kind: int64, shape (B,). Code, a request for the description, or nothing that can be understood.
        code: B scripts; "" where there is none.
    """

    task: NDArray[np.int64]
    kind: NDArray[np.int64]
    code: tuple[str, ...]


@takes_options(turns=4)
class AutoResearchText(AutoResearch[TextAttempt]):
    """The logic of the text environment; see :class:`AutoResearchEnv` for actions and observations.

    Arguments are those of :class:`~wmrl_gym.envs.autoresearch.base.AutoResearch`, with four turns.
    """

    known_as: ClassVar[str] = "autoresearch-text"
    default_turns: ClassVar[int] = 4

    def __init__(self, task: TaskChoice = None, **options: Any) -> None:
        super().__init__(task, **options)
        self.action_space = UnicodeText(MAX_REPLY)
        self.observation_space = Dict(
            {
                "task": UnicodeText(MAX_FEEDBACK),
                "feedback": UnicodeText(MAX_FEEDBACK),
                "turn": Discrete(self.rules.max_turns + 1),
                "max_turns": Discrete(self.rules.max_turns + 1),
                "best": Box(0.0, 1.0, (1,), np.float32),
            }
        )
        self._statements = tuple(statement(loaded, limits.wall_s) for loaded, limits in zip(self.tasks, self.limits, strict=True))

    def attempt(self, state: Progress, action: Any) -> TextAttempt:
        """What each reply asks for.

        Raises:
            ValueError: for the wrong number of replies.
            TypeError: for a reply that is not a text.
        """
        if len(action) != len(state.task):
            raise ValueError(f"expected {len(state.task)} replies, got {len(action)}")
        for reply in action:
            if not isinstance(reply, str):
                raise TypeError(f"a reply must be a str, got {type(reply).__name__}")
        replies = [understand(reply) for reply in action]
        kinds = np.array([_KINDS[reply.kind] for reply in replies], dtype=np.int64)
        return TextAttempt(state.task, kinds, tuple(reply.code for reply in replies))

    def gate(self, attempt: TextAttempt) -> tuple[NDArray[np.bool_], Outcome]:
        """No code, a syntax error, and a request for the description are answered exactly, without running anything.

        Where the process that reads scripts is lost, it is certain that nothing is known.
        """
        count = len(attempt.task)
        status = np.full(count, MALFORMED, dtype=np.int64)
        feedback = np.full(count, "", dtype=object)
        certain, known = np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
        for i, (context, kind, code) in enumerate(zip(attempt.task, attempt.kind, attempt.code, strict=True)):
            if kind == NOTHING:
                feedback[i] = MALFORMED_FEEDBACK
            elif kind == DESCRIBE:
                status[i], feedback[i] = DESCRIBED, head(self.tasks[context].description, MAX_FEEDBACK - 64)
            else:
                try:
                    message = syntax_error(code)
                except ScriptUnreadable:
                    known[i], feedback[i] = False, UNREAD_FEEDBACK
                    continue
                certain[i] = message is not None
                if message is not None:
                    status[i], feedback[i] = SYNTAX_ERROR, report(SYNTAX_ERROR, ended="exit code: 1", stderr=message)
        value = np.array(STATUS_VALUES)[status]
        shown = np.where(status == DESCRIBED, np.nan, value)
        outcome = Outcome(
            status=status,
            value=value,
            shown=shown,
            feedback=feedback,
            known=known,
            cpu_s=np.zeros(count),
            wall_s=np.zeros(count),
        )
        return certain, outcome

    def features(self, attempt: TextAttempt) -> NDArray[np.float32]:
        """Meta-features of the task, the task as zeros and ones, and static features of the code."""
        context = np.eye(len(self.tasks), dtype=np.float32)[attempt.task]
        meta = np.stack([each.meta for each in self._profiles])[attempt.task]
        static = np.zeros((len(attempt.task), len(STATIC_FEATURES)), dtype=np.float32)
        for row, (i, code) in enumerate(zip(attempt.task, attempt.code, strict=True)):
            static[row] = static_features(code, self.tasks[i].spec.prediction_columns, data_columns=self._columns[i])
        return np.concatenate([meta, context, static], axis=1)

    @functools.cached_property
    def _profiles(self) -> tuple[Profile, ...]:
        return tuple(profile(loaded) for loaded in self.tasks)

    @functools.cached_property
    def _columns(self) -> tuple[frozenset[str], ...]:
        """The names of the columns of each task's public files."""
        pairs = zip(self.tasks, self._profiles, strict=True)
        return tuple(
            frozenset({task.spec.id_column, task.spec.target, has.text, *has.numeric, *has.categorical} - {""})
            for task, has in pairs
        )

    def descriptors(self, attempt: TextAttempt) -> NDArray[np.float32]:
        """Statistics of each attempt's task: see :mod:`~wmrl_gym.envs.autoresearch.tasks.descriptors`."""
        return self._descriptors[attempt.task]

    def text(self, attempt: TextAttempt) -> Sequence[str]:
        """The code of each attempt; "" where there is none."""
        return attempt.code

    def describe(self, attempt: TextAttempt, outcome: Outcome) -> Outcome:
        """Write what the sandbox would report, where neither the gate nor an alike failure has been quoted already."""
        shown, feedback = self.visible(outcome).shown, outcome.feedback.copy()
        for i, context in enumerate(attempt.task):
            quoted = outcome.status[i] != VALID and outcome.feedback[i]
            if attempt.kind[i] == CODE and outcome.status[i] != SYNTAX_ERROR and not quoted:
                status, value = int(outcome.status[i]), float(shown[i])
                feedback[i] = expected_report(self.tasks[context], status, value, limits=self.limits[context], part=self.feedback)
        return replace(outcome, feedback=feedback)

    def report(self, attempt: TextAttempt, outcome: Outcome, printed: Sequence[Printed]) -> Outcome:
        """Write what the sandbox would report, with the traceback or the output that a model expects."""
        shown, feedback = self.visible(outcome).shown, outcome.feedback.copy()
        for i, (context, code) in enumerate(zip(attempt.task, attempt.code, strict=True)):
            if outcome.known[i] and attempt.kind[i] == CODE:
                status, value = int(outcome.status[i]), float(shown[i])
                feedback[i] = expected_report(
                    self.tasks[context],
                    status,
                    value,
                    limits=self.limits[context],
                    part=self.feedback,
                    code=code,
                    printed=printed[i],
                )
        return replace(outcome, feedback=feedback)

    def briefing(self, context: int) -> str:
        """The goal, without how to reply, and the description of the data."""
        goal = self._statements[context].removesuffix(_PROTOCOL).rstrip()
        return f"{goal}\n\n{self.tasks[context].description}"

    def _programs(self, attempt: TextAttempt) -> Sequence[tuple[int, str]]:
        return list(zip(attempt.task.tolist(), attempt.code, strict=True))

    def _first_observations(self, context: NDArray[np.int64]) -> dict[str, Any]:
        count = len(context)
        return {
            "task": tuple(self._statements[each] for each in context),
            "feedback": ("",) * count,
            "turn": np.zeros(count, dtype=np.int64),
            "max_turns": np.full(count, self.rules.max_turns, dtype=np.int64),
            "best": np.zeros((count, 1), dtype=np.float32),
        }

    def _observation(self, state: Progress, attempt: TextAttempt, outcome: Outcome) -> dict[str, Any]:
        return {
            "task": tuple(self._statements[context] for context in state.task),
            "feedback": tuple(bounded(str(text)) for text in outcome.feedback),
            "turn": np.minimum(state.turn, self.rules.max_turns),
            "max_turns": np.full(len(state.task), self.rules.max_turns, dtype=np.int64),
            "best": state.best_shown.astype(np.float32)[:, None],
        }


def statement(task: Task, wall_s: float) -> str:
    """The text that an agent reads at the start: the goal, the metric, and how to reply."""
    spec = task.spec
    direction = "larger" if spec.metric.larger_is_better else "smaller"
    return (
        f"Task {spec.name}: {spec.title}.\n"
        f"Predict {spec.target!r} for each row of test.csv, having seen train.csv. "
        f"Metric: {spec.metric.name} ({direction} is better).\n"
        f"The submission is a csv file with the columns {', '.join((spec.id_column, *spec.prediction_columns))}.\n"
        f"A script may run for {wall_s:g} seconds, without network.\n\n{_PROTOCOL}"
    )[:MAX_FEEDBACK]


@takes_options(turns=AutoResearchText.default_turns)
class AutoResearchEnv(FactoredEnv):
    """Reply with code; it is run in a sandbox and graded on hidden answers.

    **Action**: a text. The last complete fenced block of Python in it is run; without one, a line that says ``DESCRIBE`` or
    ``<describe/>`` and nothing else returns the data's description; anything else is malformed. The code finds its files in
    the folder ``os.environ["DATA_DIR"]`` and writes its predictions to ``os.environ["SUBMISSION_PATH"]``.

    **Observation**: a ``Dict`` of ``task`` (text: the goal and how to reply), ``feedback`` (text: what the last reply brought,
    with its score on the validation part), ``turn`` and ``max_turns`` (whole numbers), and ``best`` (float32, shape (1,): the
    best value seen so far, 0 before any).

    **Reward**: the ladder of :mod:`~wmrl_gym.envs.autoresearch.rules`, on the hidden test part, for the attempt that is best on
    validation.

    Args:
        task: a name, a directory, a list of these, or None for all embedded tasks.
        **options: those of :class:`~wmrl_gym.envs.autoresearch.options.Options`, with four turns.
        render_mode: "ansi" or None.

    Example:
        >>> env = AutoResearchEnv(task="diabetes", render_mode="ansi")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("DESCRIBE")
        >>> observation["feedback"].splitlines()[0], int(observation["turn"])
        ('# Progression of diabetes after one year', 1)
        >>> env.close()
    """

    def __init__(self, task: TaskChoice = None, *, render_mode: str | None = None, **options: Any) -> None:
        factored = AutoResearchText(task, **options)
        super().__init__(factored, render_mode=render_mode)
