"""Agents and policies evaluated on AutoResearch tasks: what ``wmrl evaluate`` does."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.evaluation.config import AgentSpec, Caps, EvaluationConfig
    from wmrl_gym.evaluation.medals import Medal, medal, medal_ranks
    from wmrl_gym.evaluation.run import Evaluation, EvaluationMismatch
    from wmrl_gym.evaluation.summary import Graded, Interval, summarize

__all__ = [
    "AgentSpec",
    "Caps",
    "Evaluation",
    "EvaluationConfig",
    "EvaluationMismatch",
    "Graded",
    "Interval",
    "Medal",
    "medal",
    "medal_ranks",
    "summarize",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(("AgentSpec", "Caps", "EvaluationConfig"), "config"),
        **dict.fromkeys(("Medal", "medal", "medal_ranks"), "medals"),
        **dict.fromkeys(("Evaluation", "EvaluationMismatch"), "run"),
        **dict.fromkeys(("Graded", "Interval", "summarize"), "summary"),
    },
)
