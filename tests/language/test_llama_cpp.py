"""A world model behind llama.cpp's real server, which says how likely each answer is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.language_server import llama_cpp_serve, smollm2_gguf
from tests.language.asking import interface
from wmrl_gym.envs.autoresearch import AutoResearchEnv, AutoResearchText
from wmrl_gym.world_models import ChatClient, LLMWorldModel, LocalModel
from wmrl_gym.world_models.llm.schema import Field, Question, parse
from wmrl_gym.wrappers import WorldModelWrapper

pytestmark = pytest.mark.needs_llama_cpp

ANIMAL = (Field("animal", "choice", ("cat", "dog", "cow")),)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with llama_cpp_serve(smollm2_gguf()) as address:
        yield address


def question(text: str) -> Question:
    return Question((("system", 'Answer with JSON, such as {"animal": "cow"}.'), ("user", text)), ANIMAL)


@pytest.mark.parametrize("response_format", ["json_schema", "json_object"])
def test_every_answer_has_the_form_and_its_chances(url: str, response_format: str) -> None:
    client = ChatClient(url, "any", max_tokens=40, retries=0, response_format=response_format, logprobs=20)  # type: ignore[arg-type]
    replies = client.ask([question(f"Which animal {what}?") for what in ("barks", "purrs", "gives milk", "flies")])
    for reply in replies:
        assert reply is not None, client.last_problem
        answer = parse(reply.text, ANIMAL)
        assert answer is not None, reply.text
        assert reply.chances["animal"].sum() == pytest.approx(1.0)
        assert (reply.chances["animal"] > 0).all()
    assert client.counts == {"answered": 4}


def test_the_server_and_the_same_weights_in_this_process_agree(url: str, local: LocalModel) -> None:
    questions = [question(f"Which animal {what}?") for what in ("barks", "purrs", "gives milk", "chases mice", "guards a house")]
    told = ChatClient(url, "any", max_tokens=40, retries=0, logprobs=20).ask(questions)
    known = local.ask(questions)
    both = [
        (ours.chances["animal"], theirs.chances["animal"]) for ours, theirs in zip(known, told, strict=True) if ours and theirs
    ]
    assert len(both) == len(questions)
    ours, theirs = (np.array(each) for each in zip(*both, strict=True))
    # The server computes with activations of eight bits, and chooses token by token what is compared as a whole here.
    np.testing.assert_allclose(theirs, ours, atol=0.15)
    assert (theirs.argmax(1) == ours.argmax(1)).all()


def test_one_request_an_attempt_tells_the_reward_and_its_spread(url: str, text: AutoResearchText) -> None:
    model = LLMWorldModel(
        ChatClient(url, "any", max_tokens=200, retries=0, logprobs=20), samples=8, max_code=200, max_briefing=60
    )
    model.bind(interface(text))
    codes = ["print(1)", "raise ValueError('no')", "import pandas"]
    attempt = text.attempt(text.begin(*text.start(np.zeros(3, np.int64))), [f"```python\n{code}\n```" for code in codes])
    outcome, std = model.predict(attempt, np.random.default_rng(0))
    assert outcome.known.any(), model.asked
    assert model.asked.questions == 3, "knowing the chances, it need not ask eight times"
    assert (std[outcome.known] > 0).all()


def test_an_environment_is_stepped_by_what_the_server_says(url: str, task: Path) -> None:
    client = ChatClient(url, "any", max_tokens=200, retries=0, logprobs=20)
    model = LLMWorldModel(client, max_briefing=60, max_code=200)
    env = WorldModelWrapper(AutoResearchEnv(task, max_turns=1), model, anchors=0.0, seed=0)
    for code in ("print(1)", "x = = 1"):
        env.reset()
        observation, *_ = env.step(f"```python\n{code}\n```")
        assert observation in env.observation_space
    env.close()
    assert (model.asked.questions, model.asked.unanswered) == (1, 0), client.last_problem
