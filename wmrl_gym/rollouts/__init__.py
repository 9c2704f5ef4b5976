"""Many rollouts of a factored environment at once, by any agent: a server, a program, a function, a policy."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.rollouts.budget import Budget
    from wmrl_gym.rollouts.callables import CallableAgent
    from wmrl_gym.rollouts.chat import ChatAgent
    from wmrl_gym.rollouts.contract import Agent, AgentFailed, Player, Rollout, Said, Start, Turn, groups
    from wmrl_gym.rollouts.processes import ProcessAgent
    from wmrl_gym.rollouts.running import Rollouts

__all__ = [
    "Agent",
    "AgentFailed",
    "Budget",
    "CallableAgent",
    "ChatAgent",
    "Player",
    "ProcessAgent",
    "Rollout",
    "Rollouts",
    "Said",
    "Start",
    "Turn",
    "groups",
]

_CONTRACT = ("Agent", "AgentFailed", "Player", "Rollout", "Said", "Start", "Turn", "groups")
__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(_CONTRACT, "contract"),
        "Budget": "budget",
        "CallableAgent": "callables",
        "ChatAgent": "chat",
        "ProcessAgent": "processes",
        "Rollouts": "running",
    },
)
