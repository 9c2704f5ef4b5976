"""A real model in this process fills in forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.language.asking import interface
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.world_models import LLMWorldModel, LocalModel, unpack_gguf
from wmrl_gym.world_models.llm.schema import Field, Question, parse

FORM = (
    Field("animal", "choice", ("cat", "dog", "a much longer name of an animal")),
    Field("legs", "line"),
    Field("sound", "text", only_if=("animal", ("dog",))),
    Field("confidence", "fraction"),
)


def question(text: str, fields: tuple[Field, ...] = FORM) -> Question:
    return Question((("system", "Answer with JSON."), ("user", text)), fields)


def test_every_reply_is_closed_json_of_the_asked_form(local: LocalModel) -> None:
    questions = [question("What barks?"), question("What purrs? " * 20), question('Say "}{\\ and \n nothing else'), question("")]
    for reply in local.ask(questions):
        assert reply is not None
        answer = parse(reply.text, FORM)
        assert answer is not None, reply.text
        assert set(answer) == {field.name for field in FORM if field.applies(answer)}
        assert reply.chances["animal"].sum() == pytest.approx(1.0)
        assert answer["animal"] == FORM[0].choices[int(reply.chances["animal"].argmax())]
        assert answer["confidence"] == pytest.approx(reply.chances["animal"].max(), abs=1e-4)


def test_the_chances_are_those_of_the_whole_answers_under_the_model(local: LocalModel) -> None:
    asked = question("What barks?", (FORM[0],))
    (reply,) = local.ask([asked])
    assert reply is not None
    turns = [{"role": role, "content": content} for role, content in asked.messages]
    prompt = local.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    scores = []
    for choice in FORM[0].choices:
        before, after = local.tokens(prompt) + local.tokens('{"animal": "'), local.tokens(f'{choice}"')
        with torch.inference_mode():
            logits = local.model(torch.tensor([before + after])).logits[0].log_softmax(-1)
        scores.append(sum(float(logits[len(before) - 1 + at, token]) for at, token in enumerate(after)))
    expected = np.exp(scores - np.logaddexp.reduce(scores))
    np.testing.assert_allclose(reply.chances["animal"], expected, atol=1e-4)


def test_a_question_has_the_same_answer_in_any_company(local: LocalModel) -> None:
    asked = question("What barks at night?")
    (alone,) = local.ask([asked])
    others = [question("What purrs? " * 9), asked, question("Name one.", FORM[:1])]
    together = local.ask(others)[1]
    assert alone is not None
    assert together is not None
    assert parse(together.text, FORM[:3]) == parse(alone.text, FORM[:3])
    np.testing.assert_allclose(together.chances["animal"], alone.chances["animal"], atol=1e-4)


def test_a_prompt_that_is_too_long_has_no_reply(local: LocalModel) -> None:
    small = LocalModel(local.model, local.tokenizer, max_prompt_tokens=60)
    replies = small.ask([question("word " * 100), question("?", FORM[:1])])
    assert replies[0] is None
    assert replies[1] is not None
    assert small.too_long == 1


@pytest.mark.parametrize("design", ["holistic", "decomposed"])
def test_a_world_model_without_a_server(local: LocalModel, text: AutoResearchText, design: Any) -> None:
    model = LLMWorldModel(local, design=design, samples=5, max_briefing=60, max_code=200)
    assert model.samples == 1, "sampling tells nothing that the chances do not"
    model.bind(interface(text))
    attempt = text.attempt(text.begin(*text.start(np.arange(2))), ["```python\nprint(1)\n```", "```python\nx = 1 / 0\n```"])
    outcome, std = model.predict(attempt, np.random.default_rng(0))
    assert outcome.known.all()
    assert ((outcome.value > 0) & (outcome.value < 1)).all()
    assert (std > 0).all()
    assert all(told.startswith("status: ") for told in outcome.feedback)
    assert model.asked.unreadable == model.asked.unanswered == model.asked.unknown == 0


def test_unpacked_weights_are_a_folder_that_is_made_once(weights: Path, tmp_path: Path) -> None:
    assert json.loads((weights / "config.json").read_text())["model_type"] == "llama"
    assert (weights / "model.safetensors").is_file()
    assert unpack_gguf(tmp_path / "no such file", weights) == weights
    with pytest.raises(FileNotFoundError, match="no gguf file at"):
        unpack_gguf(tmp_path / "no such file", tmp_path / "new")


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"max_text_tokens": 0}])
def test_arguments_out_of_range_are_refused(local: LocalModel, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        LocalModel(local.model, local.tokenizer, **options)
