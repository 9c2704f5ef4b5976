"""Makes the agent that an evaluation names, and the environment that it acts in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.agents import ScriptedProposer
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchText, Task, render_design
from wmrl_gym.envs.autoresearch.base import AutoResearch
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.evaluation.config import AgentSpec, EvaluationConfig
from wmrl_gym.rollouts import Agent, CallableAgent, ChatAgent, ProcessAgent, Start

if TYPE_CHECKING:
    from wmrl_gym.sandbox import Sandbox

MAX_REPLY_TOKENS = 4096
"""Of a server's reply, where nothing else was asked for."""


def make_environment(config: EvaluationConfig, tasks: Sequence[Task], sandbox: str | Sandbox, workers: int) -> AutoResearch[Any]:
    """The environment: of texts, or of designs for a policy.

    Raises:
        ValueError: a policy, and tasks that designs are not for.
    """
    options: dict[str, Any] = {"sandbox": sandbox, "workers": workers}
    if config.max_turns is not None:
        options["max_turns"] = config.max_turns
    names = [_choice(task) for task in tasks]
    made = AutoResearchDesign if config.agent.kind == "policy" else AutoResearchText
    return made(names, **options)


def make_agent(spec: AgentSpec, environment: AutoResearch[Any], *, reply_timeout_s: float) -> Agent:
    """The agent.

    Raises:
        ValueError: its settings, or a policy that is not for this environment.
        gymnasium.error.DependencyNotInstalled: what it needs is not installed.
    """
    if spec.kind == "server":
        return _chat(spec, reply_timeout_s)
    if spec.kind == "program":
        return ProcessAgent(spec.place, timeout_s=reply_timeout_s)
    make = {"random": _random, "scripted": _scripted, "policy": _policy}[spec.kind](spec, environment)
    return CallableAgent(make, timeout_s=reply_timeout_s)


def _choice(task: Task) -> str | Path:
    from wmrl_gym.envs.autoresearch import list_tasks

    return task.spec.name if task.spec.name in list_tasks() and not task.grader else task.directory


def _chat(spec: AgentSpec, reply_timeout_s: float) -> Agent:
    from wmrl_gym.world_models.llm.chat import ChatClient, http_library

    http_library()  # says what to install before anything is begun
    settings = dict(spec.settings)
    client = ChatClient(
        spec.place,
        spec.model,
        timeout_s=reply_timeout_s,
        max_tokens=settings.get("max_reply_tokens", MAX_REPLY_TOKENS),
        temperature=settings.get("temperature", 0.7),
        response_format="none",
    )
    return ChatAgent(client, system=settings.get("system", ""))


def _scripted(spec: AgentSpec, environment: AutoResearch[Any]) -> Callable[[Start], Any]:
    settings = {"skill": 0.5, **spec.settings}
    ScriptedProposer(**settings)  # checks them
    return lambda start: ScriptedProposer(seed=start.chance(), **settings)


def _random(spec: AgentSpec, environment: AutoResearch[Any]) -> Callable[[Start], Any]:
    foreign = [task.spec.name for task in environment.tasks if task.grader is not None]
    if foreign:
        raise ValueError(f"random draws designs, which are for tasks with a task.toml; {', '.join(foreign)} has none")
    tasks = {task.spec.name: task for task in environment.tasks}

    def make(start: Start) -> Callable[[Any], str]:
        rng = np.random.default_rng(start.chance())
        return lambda _: f"```python\n{render_design(tasks[start.task], rng.integers(0, NVEC))}\n```"

    return make


def _policy(spec: AgentSpec, environment: AutoResearch[Any]) -> Callable[[Start], Any]:
    """Designs drawn from a policy, by a generator for each episode."""
    try:
        import torch

        from wmrl_gym.study.evaluation import sample_designs
    except ImportError as error:
        from gymnasium.error import DependencyNotInstalled

        message = "stable-baselines3 is not installed, run `pip install 'wmrl-gym[sb3]'`"
        raise DependencyNotInstalled(message) from error
    policy = _loaded(Path(spec.place), environment)

    def make(start: Start) -> Callable[[Any], NDArray[np.int64]]:
        generator = torch.Generator().manual_seed(start.chance())
        return lambda observation: sample_designs(policy, np.asarray(observation)[None], generator)[0]

    return make


def _loaded(path: Path, environment: AutoResearch[Any]) -> Any:
    """A policy of Stable-Baselines3's (PPO or A2C), or one of a comparison's folder."""
    wanted = environment.observation_space, environment.action_space
    if path.suffix == ".safetensors":
        return _of_a_study(path, environment)
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.save_util import load_from_zip_file

    try:
        data, _, _ = load_from_zip_file(path, device="cpu")
        if not isinstance(data, dict):
            raise ValueError("it holds no settings")
        model = (PPO if "clip_range" in data else A2C).load(path, device="cpu")
        found = model.observation_space, model.action_space
    except Exception as error:  # whatever a file that is none may raise
        raise ValueError(f"{path} is no policy that Stable-Baselines3's PPO or A2C has saved: {error}") from error
    if found != wanted:
        raise ValueError(f"{path} was trained on {found}, and designs are of {wanted}")
    return model.policy.eval()


def _of_a_study(path: Path, environment: AutoResearch[Any]) -> Any:
    from safetensors.torch import load_file
    from stable_baselines3.common.policies import ActorCriticPolicy

    from wmrl_gym.study.config import MARKER

    settings = path.parent.parent / MARKER
    try:
        chosen: Mapping[str, Any] = json.loads(settings.read_text(encoding="utf-8"))["ppo"]["policy_kwargs"]
        policy = ActorCriticPolicy(environment.observation_space, environment.action_space, lambda _: 0.0, **chosen)
        policy.load_state_dict(load_file(str(path)))
    except Exception as error:  # whatever a file that is none may raise
        raise ValueError(f"{path} is no policy in the folder of a comparison, whose settings are {settings}: {error}") from error
    return policy.eval()
