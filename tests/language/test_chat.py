"""The client of chat servers, against real servers that behave well and badly."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from typing import Any

import pytest

from tests.language.chat_server import (
    Answer,
    Handler,
    completion,
    dripping,
    endless,
    fails,
    half_a_body,
    half_a_json,
    html,
    says,
    serving,
    stuck,
)
from wmrl_gym.world_models.llm.chat import ChatClient
from wmrl_gym.world_models.llm.schema import Field, Question, parse

FIELDS = (Field("status", "choice", ("valid", "failed")),)


def question(number: int = 0, seed: int | None = None) -> Question:
    return Question((("system", "Answer."), ("user", f"question {number}")), FIELDS, seed)


def client(url: str, **options: Any) -> ChatClient:
    return ChatClient(url, "small", **({"retries": 1, "backoff_s": 0.0, "timeout_s": 20.0, "cooldown_s": 0.0} | options))


def test_what_the_server_says_is_the_reply() -> None:
    with serving(says('{"status": "valid"}')) as server:
        replies = client(server.url).ask([question(1), question(2)])
    assert [reply.text for reply in replies if reply] == ['{"status": "valid"}'] * 2
    assert server.path == "/v1/chat/completions"
    asked = sorted((body["messages"][1] for body in server.requests), key=lambda message: str(message["content"]))
    assert asked == [{"role": "user", "content": f"question {number}"} for number in (1, 2)], "in flight together, in any order"


def test_every_reply_belongs_to_its_question_whatever_order_they_come_in() -> None:
    def in_reverse(handler: Handler, body: dict[str, Any]) -> None:
        last = body["messages"][1]["content"] == "question 9"
        if last:
            handler.server.released.set()
        handler.server.released.wait(20)
        handler.send(completion(body["messages"][1]["content"]))

    with serving(in_reverse) as server:
        replies = client(server.url).ask([question(number) for number in range(10)])
    assert [reply.text for reply in replies if reply] == [f"question {number}" for number in range(10)]


def test_several_hundred_requests_are_in_flight_at_once_and_no_more_than_allowed() -> None:
    def together(handler: Handler, _: dict[str, Any]) -> None:
        assert handler.server.crowded.wait(30), "the crowd never came"
        handler.send(completion("yes"))

    with serving(together) as server:
        server.crowd = 300
        replies = client(server.url, concurrency=300, timeout_s=60.0).ask([question(number) for number in range(450)])
    assert sum(reply is not None for reply in replies) == 450
    assert server.most_at_once == 300


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (fails(500), "error"),
        (fails(503, b"<html>busy</html>"), "error"),
        (fails(429, Retry_After="0"), "error"),
        (html, "garbled"),
        (half_a_json, "garbled"),
        (half_a_body, "unreachable"),
        (says(None), "garbled"),
        (lambda handler, _: handler.send(b"[]"), "garbled"),
        (lambda handler, _: handler.send(b'{"choices": []}'), "garbled"),
        (lambda handler, _: handler.send(b"\xff\xfe\x00"), "garbled"),
        (lambda handler, _: handler.send(b"[" * 100_000), "garbled"),
    ],
)
def test_a_server_that_misbehaves_is_asked_again_and_then_has_no_reply(answer: Answer, kind: str) -> None:
    with serving(answer) as server:
        asking = client(server.url, retries=2)
        assert asking.ask([question()]) == [None]
        assert asking.counts == {kind: 3}
        assert len(server.requests) == 3
        server.answer = says("back")
        (reply,) = asking.ask([question()])
    assert reply is not None
    assert reply.text == "back"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_not_repeated(status: int) -> None:
    with serving(fails(status, b'{"error": "no such model"}')) as server:
        asking = client(server.url, retries=3)
        assert asking.ask([question()]) == [None]
    assert asking.counts == {"refused": 1}
    assert len(server.requests) == 1
    assert f"{status}" in asking.last_problem
    assert "no such model" in asking.last_problem


@pytest.mark.parametrize("answer", [stuck, dripping])
def test_a_slow_server_is_left_after_the_time_out(answer: Answer) -> None:
    with serving(answer) as server:
        asking = client(server.url, timeout_s=0.3, retries=1)
        assert asking.ask([question()]) == [None]
    assert asking.counts == {"slow": 2}


def test_an_endless_reply_is_not_read() -> None:
    with serving(endless) as server:
        asking = client(server.url, max_reply_bytes=10_000)
        assert asking.ask([question()]) == [None]
    assert asking.counts == {"too_long": 1}


def test_a_failure_that_passes_is_got_over() -> None:
    def third_time(handler: Handler, _: dict[str, Any]) -> None:
        if len(handler.server.requests) < 3:
            handler.send(b"{}", status=500)
        else:
            handler.send(completion("yes"))

    with serving(third_time) as server:
        asking = client(server.url, retries=3)
        (reply,) = asking.ask([question()])
    assert reply is not None
    assert asking.counts == {"error": 2, "answered": 1}


def test_a_dead_server_is_left_alone_until_it_has_cooled_down_and_found_again_when_it_is_back() -> None:
    seconds = [0.0]
    with serving(says("yes")) as server:
        port = server.server_address[1]
        asking = client(server.url, retries=0, cooldown_s=10.0, clock=lambda: seconds[0])
        assert None not in asking.ask([question()])
    batch = [question(number) for number in range(5)]
    assert asking.ask(batch) == [None] * 5
    assert asking.counts["unreachable"] == 5
    seconds[0] = 9.0
    assert asking.ask(batch) == [None] * 5
    assert asking.counts["unreachable"] == 5, "nothing is asked while it cools down"
    seconds[0] = 11.0
    assert asking.ask(batch) == [None] * 5
    assert asking.counts["unreachable"] == 6, "one question probes"
    with serving(says("back"), port=port) as server:
        assert asking.ask(batch) == [None] * 5, "the cooling down has begun anew"
        seconds[0] = 22.0
        assert [reply.text for reply in asking.ask(batch) if reply] == ["back"] * 5
    assert asking.counts == {"answered": 6, "unreachable": 6, "not_asked": 14}


def test_the_key_comes_from_an_argument_or_the_environment_and_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(says("yes")) as server:
        monkeypatch.setenv("WMRL_API_KEY", "of-the-environment")
        monkeypatch.setenv("OPENAI_API_KEY", "for-someone-else")
        given = client(server.url, api_key="given")
        given.ask([question()])
        client(server.url).ask([question()])
        monkeypatch.delenv("WMRL_API_KEY")
        client(server.url).ask([question()])
    assert [headers.get("Authorization") for headers in server.headers] == ["Bearer given", "Bearer of-the-environment", None]
    assert "given" not in repr(given)


def test_loopback_is_reached_whatever_proxy_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving(says("yes")) as server:
        assert None not in client(server.url).ask([question()])


def test_the_form_of_the_answer_is_told_in_the_way_that_the_server_knows() -> None:
    with serving(says("yes")) as server:
        for how in ("json_schema", "json_object", "none"):
            client(server.url, response_format=how, extra={"top_k": 1}).ask([question(seed=3)])
    strict, loose, untold = server.requests
    schema = {
        "type": "object",
        "properties": {"status": {"type": "string", "enum": ["valid", "failed"]}},
        "required": ["status"],
        "additionalProperties": False,
    }
    assert strict["response_format"]["json_schema"]["schema"] == schema
    assert loose["response_format"] == {"type": "json_object", "schema": schema}
    assert "response_format" not in untold
    assert all(body["top_k"] == 1 and body["seed"] == 3 and body["temperature"] == 0.7 for body in server.requests)


def test_it_works_where_a_loop_runs_already_and_from_several_threads() -> None:
    async def in_a_notebook(asking: ChatClient) -> Any:
        return asking.ask([question()])

    with serving(says("yes")) as server:
        asking = client(server.url)
        assert None not in asyncio.run(in_a_notebook(asking))
        threads = [threading.Thread(target=asking.ask, args=([question(number)],)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert asking.counts == {"answered": 5}


def test_a_client_travels_to_another_process() -> None:
    with serving(says("yes")) as server:
        travelled = pickle.loads(pickle.dumps(client(server.url)))
        assert None not in travelled.ask([question()])


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:8000", {}, "base_url must be an address such as"),
        ("ftp://127.0.0.1/v1", {}, "base_url must be an address such as"),
        ("http://127.0.0.1/v1", {"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ("http://127.0.0.1/v1", {"retries": -1}, "retries must be at least 0, got -1"),
        ("http://127.0.0.1/v1", {"timeout_s": 0}, "seconds must not be negative"),
        ("http://127.0.0.1/v1", {"response_format": "xml"}, "response_format must be"),
    ],
)
def test_arguments_out_of_range_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChatClient(url, "small", **options)


def test_bodies_are_plain_json() -> None:
    with serving(says("yes")) as server:
        client(server.url).ask([Question((("user", "naïve \ud800? \x00"),), FIELDS)])
        client(server.url).ask([Question((("user", "naïve — “quoted”"),), FIELDS)])
    assert json.dumps(server.requests[-1]["messages"][0]["content"], ensure_ascii=False) == '"naïve — “quoted”"'


def test_a_reply_that_reached_the_greatest_length_says_so() -> None:
    def cut(handler: Handler, _: dict[str, Any]) -> None:
        body = json.loads(completion('I think {"status": "failed"}? No, it'))
        body["choices"][0]["finish_reason"] = "length"
        handler.send(json.dumps(body).encode())

    with serving(cut) as server:
        (reply,) = client(server.url).ask([question()])
    assert reply is not None
    assert reply.cut_off
    assert parse(reply.text, FIELDS, cut_off=reply.cut_off) is None


def test_a_server_that_wants_another_name_for_the_greatest_length_is_asked_by_that() -> None:
    def newer(handler: Handler, body: dict[str, Any]) -> None:
        if "max_tokens" in body:
            told = b'{"error": {"message": "Unsupported parameter: \'max_tokens\'. Use \'max_completion_tokens\' instead."}}'
            handler.send(told, status=400)
        else:
            handler.send(completion(str(body["max_completion_tokens"])))

    with serving(newer) as server:
        asking = client(server.url, max_tokens=77)
        replies = asking.ask([question(1)]) + asking.ask([question(2)])
    assert [reply.text for reply in replies if reply] == ["77", "77"]
    assert ["max_tokens" in body for body in server.requests] == [True, False, False], "it is learnt once"
    assert asking.counts["refused"] == 0


def test_all_questions_that_were_in_flight_are_asked_again_by_the_newer_name() -> None:
    def newer(handler: Handler, body: dict[str, Any]) -> None:
        if "max_tokens" in body:
            assert handler.server.crowded.wait(30), "the crowd never came"
            handler.send(b'{"error": {"message": "Use max_completion_tokens instead."}}', status=400)
        else:
            handler.send(completion("yes"))

    with serving(newer) as server:
        server.crowd = 8
        replies = client(server.url).ask([question(number) for number in range(8)])
    assert [reply.text for reply in replies if reply] == ["yes"] * 8


def test_of_a_message_in_parts_the_text_is_the_reply() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "no"}]}, {"type": "text", "text": "y"}]
    parts += [{"type": "text", "text": "es"}]
    with serving(lambda handler, body: handler.send(completion(parts))) as server:
        (reply,) = client(server.url).ask([question()])
    assert reply is not None
    assert reply.text == "yes"


@pytest.mark.parametrize(
    "parts", [[], ["yes"], [{"type": "text"}], [{"type": "thinking", "thinking": []}], [{"type": "text", "text": 3}]]
)
def test_a_message_in_parts_without_text_is_no_reply(parts: list[Any]) -> None:
    with serving(lambda handler, body: handler.send(completion(parts))) as server:
        asking = client(server.url, retries=0)
        assert asking.ask([question()]) == [None]
    assert asking.counts["garbled"] == 1
