"""A model that asks a server how scripts end, a server that knows, and scripts as if executed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.language.chat_server import ChatServer, Handler, completion
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.factored import Outcome
from wmrl_gym.world_models import ChatClient, Interface, LLMWorldModel

GOOD = "import os\nopen(os.environ['SUBMISSION_PATH'], 'w').write('id,y')  # good\n"
BAD = "x = 1\ny = {}['a']\n"


def reply(code: str) -> str:
    return f"```python\n{code}```"


def answer_outcome(handler: Handler, body: dict[str, Any]) -> None:
    """A server that reads code: what subscripts {} fails, and what is good is of high quality."""
    script = body["messages"][-1]["content"]
    keys = list(body["response_format"]["json_schema"]["schema"]["properties"])
    fails_here = "{}['a']" in script
    answer: dict[str, Any] = {"error": "KeyError", "line": 2, "message": "'a'", "confidence": 0.9}
    if "status" in keys:
        answer |= {"status": "runtime_error" if fails_here else "valid", "quality": "high" if "# good" in script else "low"}
    elif "answer" in keys:
        answer["answer"] = "yes" if fails_here and script.endswith("runtime_error.") else "no"
    else:
        answer["quality"] = "high" if "# good" in script else "low"
    handler.send(completion(json.dumps(answer)))


def asking(server: ChatServer, **options: Any) -> ChatClient:
    return ChatClient(server.url, "small", **({"retries": 0, "cooldown_s": 0.0, "timeout_s": 20.0} | options))


def bound(backend: Any, text: AutoResearchText, **options: Any) -> LLMWorldModel:
    model = LLMWorldModel(backend, **options)
    model.bind(interface(text))
    return model


def step(model: LLMWorldModel, text: AutoResearchText, actions: list[str], seed: int = 0) -> Any:
    observation, info = text.start(np.arange(len(actions)))
    state = model.begin(observation, info, np.random.default_rng(seed))
    return model.step(state, actions, np.random.default_rng(seed))[1]


def executed(text: AutoResearchText, actions: list[str]) -> Transitions:
    observation, info = text.start(np.arange(len(actions)))
    attempt = text.attempt(text.begin(observation, info), actions)
    certain, gated = text.gate(attempt)
    outcome = gated if certain.all() else text.execute(attempt)
    n = len(actions)
    no = np.zeros(n, bool)
    return Transitions(observation, actions, np.zeros(n), observation, no, no, ~no, info["context"], attempt, outcome)


def executed_as(text: AutoResearchText, results: dict[str, tuple[int, float]]) -> Transitions:
    """Scripts as if executed, with these statuses and values."""
    n = len(results)
    observation, info = text.start(np.arange(n))
    actions = [reply(f"{code}\n") for code in results]
    attempt = text.attempt(text.begin(observation, info), actions)
    status, value = (np.array([result[part] for result in results.values()]) for part in (0, 1))
    no, zeros = np.zeros(n, bool), np.zeros(n)
    feedback = np.array([f"told of {code}" for code in results], dtype=object)
    outcome = Outcome(status.astype(np.int64), value.astype(float), value.astype(float), feedback, ~no, zeros, zeros)
    return Transitions(observation, actions, zeros, observation, no, no, ~no, info["context"], attempt, outcome)


def interface(text: AutoResearchText) -> Interface:
    """What a model is bound to."""
    return Interface(text.observation_space, text.action_space, text.reward_range, text)
