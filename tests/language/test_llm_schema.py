"""Answers of language models are read strictly, whatever stands around them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.world_models.llm.schema import Field, json_schema, parse

FORM = (
    Field("status", "choice", ("valid", "failed")),
    Field("quality", "choice", ("low", "high"), only_if=("status", ("valid",))),
    Field("line", "line", only_if=("status", ("failed",))),
    Field("message", "text", max_length=20, only_if=("status", ("failed",))),
    Field("confidence", "fraction"),
)
VALID = {"status": "valid", "quality": "high", "confidence": 0.8}
FAILED = {"status": "failed", "line": 3, "message": "KeyError: 'a'", "confidence": 1}


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "Sure! {} I hope that helps.",
        "```json\n{}\n```",
        "<think>Perhaps {{status}} or {{}}?</think>{}",
        'First {{"status": "failed"}}, no: {}',
        "{{{{{{ {}",
    ],
)
@pytest.mark.parametrize("answer", [VALID, FAILED])
def test_an_answer_is_found_among_other_text(around: str, answer: dict[str, Any]) -> None:
    assert parse(around.replace("{}", json.dumps(answer)).replace("{{", "{").replace("}}", "}"), FORM) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "valid",
        "null",
        "[]",
        "{}",
        '{"status": "valid"',
        '{"status": "valid", "quality": "high"}',
        '{"status": "VALID", "quality": "high", "confidence": 0.8}',
        '{"status": ["valid"], "quality": "high", "confidence": 0.8}',
        '{"status": "valid", "quality": null, "confidence": 0.8}',
        '{"status": "valid", "quality": "high", "confidence": "0.8"}',
        '{"status": "valid", "quality": "high", "confidence": true}',
        '{"status": "valid", "quality": "high", "confidence": NaN}',
        '{"status": "valid", "quality": "high", "confidence": Infinity}',
        '{"status": "valid", "quality": "high", "confidence": 1.5}',
        '{"status": "failed", "line": -1, "message": "", "confidence": 0.8}',
        '{"status": "failed", "line": 1' + "0" * 400 + ', "message": "", "confidence": 0.8}',
        '{"status": "failed", "line": 2.5, "message": "", "confidence": 0.8}',
        '{"status": "failed", "line": 1, "message": 7, "confidence": 0.8}',
        "<html><body>{}</body></html>",
        "{" * 5000,
        '{"a":' * 5000,
    ],
)
def test_anything_else_is_unreadable(text: str) -> None:
    assert parse(text, FORM) is None


@given(st.integers(0, len(json.dumps(FAILED)) - 1))
def test_no_beginning_of_an_answer_is_taken_for_the_whole(length: int) -> None:
    assert parse(json.dumps(FAILED)[:length], FORM) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert parse(text, FORM) is None or "status" in text


def test_fields_that_do_not_apply_are_ignored_and_long_texts_are_cut() -> None:
    answer = FAILED | {"message": "x" * 100, "quality": 7, "more": None}
    assert parse(json.dumps(answer), FORM) == FAILED | {"message": "x" * 20}


def test_the_last_answer_counts() -> None:
    assert parse(json.dumps(FAILED) + " - no: " + json.dumps(VALID), FORM) == VALID


def test_the_schema_names_every_field_and_no_other() -> None:
    schema = json_schema(FORM)
    assert schema["required"] == ["status", "quality", "line", "message", "confidence"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["line"] == {"type": "integer", "minimum": 0, "maximum": 99999}


def test_a_choice_without_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="a choice needs choices"):
        Field("status", "choice")


@pytest.mark.parametrize(("begin", "end"), [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]")])
def test_a_thought_is_no_answer(begin: str, end: str) -> None:
    draft, answer = json.dumps(FAILED), json.dumps(VALID)
    assert parse(f"{begin}Perhaps {draft}? But no", FORM) is None
    assert parse(f"{begin}Perhaps {draft}?{end}", FORM) is None
    assert parse(f"{begin}Perhaps {draft}?{end}{answer}", FORM) == VALID
    assert parse(f"Perhaps {draft}?{end}{answer}", FORM) == VALID, "a template may open the thought itself"
    assert parse(f"{begin}{'x' * 50_000}{draft}", FORM) is None, "however long"


@pytest.mark.parametrize("message", ["<think>", "</think> 3", "[THINK]", "a {} <think>"])
def test_an_answer_that_quotes_a_mark_of_thoughts_is_an_answer(message: str) -> None:
    answer = FAILED | {"message": message}
    assert parse(json.dumps(answer), FORM) == answer
    assert parse(f"\n{json.dumps(answer)}\n", FORM, cut_off=True) == answer


def test_what_was_cut_off_is_an_answer_only_where_it_begins_with_one() -> None:
    answer = json.dumps(VALID)
    assert parse(f"I wonder: {answer}? Or perhaps", FORM, cut_off=True) is None
    assert parse(f"I wonder: {answer}", FORM) == VALID
    assert parse(f"{answer} This is because", FORM, cut_off=True) == VALID
    assert parse(f"```json\n{answer}\n``` This is because {json.dumps(FAILED)}", FORM, cut_off=True) == VALID
    assert parse(answer[:-3], FORM, cut_off=True) is None


def test_an_answer_behind_any_number_of_braces_is_found_and_deep_nonsense_is_left() -> None:
    assert parse("{" * 15_000 + json.dumps(VALID), FORM) == VALID
    assert parse('{"":[0,' * 2_900, FORM) is None
    assert parse(f"first {json.dumps(VALID)}, then {'{x} ' * 10} and so on", FORM) == VALID
