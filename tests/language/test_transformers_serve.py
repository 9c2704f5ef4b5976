"""A world model behind a real server of a real language model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.language_server import transformers_serve
from wmrl_gym.envs.autoresearch import AutoResearchEnv
from wmrl_gym.world_models import ChatClient, LLMWorldModel
from wmrl_gym.world_models.llm.schema import Question
from wmrl_gym.wrappers import WorldModelWrapper


@pytest.fixture(scope="module")
def url(weights: Path) -> Iterator[str]:
    with transformers_serve(weights) as address:
        yield address


def test_the_server_answers_in_words(url: str, weights: Path) -> None:
    client = ChatClient(url, str(weights), max_tokens=8, retries=0)
    (reply,) = client.ask([Question((("user", "What is the capital of France? Answer in one word."),), ())])
    assert reply is not None, client.last_problem
    assert "Paris" in reply.text


def test_an_environment_is_stepped_by_what_the_server_says(url: str, weights: Path, task: Path) -> None:
    model = LLMWorldModel(ChatClient(url, str(weights), max_tokens=40, retries=0), max_briefing=60, max_code=200)
    env = WorldModelWrapper(AutoResearchEnv(task, max_turns=1), model, anchors=0.0, seed=0)
    valid = []
    for code in ("print(1)", "raise ValueError('no')", "x = = 1"):
        env.reset()
        observation, _, terminated, truncated, info = env.step(f"```python\n{code}\n```")
        assert observation in env.observation_space
        assert terminated == info["reward_valid"] == (not truncated)
        valid.append(info["reward_valid"])
    env.close()
    asked = model.asked
    assert valid[2], "the gate knows of syntax errors, whatever the server says"
    assert asked.unanswered == 0
    assert asked.answered + asked.unreadable == asked.questions == 2
    assert asked.unknown == valid.count(False)


def test_a_wrong_name_is_refused_and_said(url: str, weights: Path) -> None:
    client = ChatClient(url, "no-such-model", retries=3)
    assert client.ask([Question((("user", "Hello?"),), ())]) == [None]
    assert client.counts == {"refused": 1}
    assert "no-such-model" in client.last_problem
