"""The chances of closed answers, from what a server says of the tokens of a reply."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.language.chat_server import Handler, serving
from wmrl_gym.world_models import ChatClient
from wmrl_gym.world_models.llm.chances import Token, chances_of, read_tokens
from wmrl_gym.world_models.llm.schema import Field, Question

LETTERS = tuple('fairlowx1"')
PIECES = (*LETTERS, "fa", "ai", "ir", "il", "fair", "fail", "lo", 'w"', 'r"')
CHOICES = ("fair", "fail", "low")
QUALITY = Field("quality", "choice", CHOICES)


class MadeUp:
    """A language model: after each text some distribution over the next piece."""

    def __init__(self, pieces: tuple[str, ...], seed: int) -> None:
        self.pieces, self.seed = pieces, seed

    def after(self, written: str) -> dict[str, float]:
        weights = np.random.default_rng([self.seed, *written.encode()]).dirichlet(np.full(len(self.pieces), 0.5)) + 1e-9
        return dict(zip(self.pieces, weights.tolist(), strict=True))

    def leading(self, written: str) -> dict[str, float]:
        """The pieces that lead on to a choice, and what each of them has under constrained decoding."""
        ways = {
            piece: chance
            for piece, chance in self.after(written).items()
            if any(f'{choice}"'.startswith(written + piece) for choice in CHOICES)
        }
        return {piece: chance / sum(ways.values()) for piece, chance in ways.items()}

    def chances(self, written: str = "") -> np.ndarray:
        """By going all ways, how likely each choice is under decoding that is constrained to them."""
        if written.endswith('"'):
            return np.array([written == f'{choice}"' for choice in CHOICES], float)
        return np.sum([chance * self.chances(written + piece) for piece, chance in self.leading(written).items()], axis=0)


@given(seed=st.integers(0, 2**32 - 1), letters=st.booleans())
def test_they_are_those_of_constrained_decoding(seed: int, letters: bool) -> None:
    model, rng, written = MadeUp(LETTERS if letters else PIECES, seed), np.random.default_rng(seed), ""
    tokens = [Token('{"quality": "', 1.0, {})]
    while not written.endswith('"'):
        ways = model.leading(written)
        piece = str(rng.choice(list(ways), p=list(ways.values())))
        others = model.after(written)
        tokens.append(Token(piece, others[piece], others))
        written += piece
    found = chances_of([*tokens, Token("}", 1.0, {})], {"quality": written[:-1]}, [QUALITY])["quality"]
    exact = model.chances()
    assert found.sum() == pytest.approx(1.0)
    # The other two begin alike: tokens off the path that lead to both are shared, as a reply does not tell more of them.
    assert found[CHOICES.index("low")] == pytest.approx(exact[CHOICES.index("low")], abs=1e-6)
    if letters and written != 'low"':
        np.testing.assert_allclose(found, exact, atol=1e-6)


def test_a_token_that_begins_before_the_answer_and_ends_after_it_is_read() -> None:
    top = {' "low",': 0.6, ' "fair': 0.2, ' "fai': 0.1, " 7": 0.1}
    found = chances_of([Token('{"quality":', 1.0, {}), Token(' "low",', 0.6, top)], {"quality": "low"}, [QUALITY])["quality"]
    np.testing.assert_allclose(found, np.array([0.25, 0.05, 0.6]) / 0.9)


def test_an_answer_among_none_of_the_reported_tokens_has_the_chance_of_the_least_of_them() -> None:
    found = chances_of(
        [Token('{"quality": "', 1.0, {}), Token("low", 0.9, {"low": 0.9, "1": 0.01})], {"quality": "low"}, [QUALITY]
    )
    assert found == {}, "the text ends before it says which answer it is"
    tokens = [Token('{"quality": "', 1.0, {}), Token("low", 0.9, {"low": 0.9, "1": 0.01}), Token('"}', 1.0, {})]
    found = chances_of(tokens, {"quality": "low"}, [QUALITY])
    np.testing.assert_allclose(found["quality"], np.array([0.01, 0.01, 0.9]) / 0.92)


def test_an_answer_that_begins_as_another_one_is_told_apart_at_its_end() -> None:
    field = Field("size", "choice", ("big", "bigger"))
    tokens = [Token('{"size": "', 1.0, {}), Token("big", 1.0, {"big": 1.0}), Token('"', 0.7, {'"': 0.7, "ger": 0.2, "!": 0.1})]
    np.testing.assert_allclose(chances_of(tokens, {"size": "big"}, [field])["size"], [7 / 9, 2 / 9])


def test_the_last_answer_of_that_name_counts_and_one_inside_a_text_does_not() -> None:
    first = '{"quality": "fair"} no: {"note": "\\"quality\\": \\"fail\\"", "quality" : "'
    tokens = [Token(first, 1.0, {}), Token("low", 0.5, {"low": 0.5, "fail": 0.25, "fair": 0.25}), Token('"}', 1.0, {})]
    found = chances_of(tokens, {"quality": "low"}, [QUALITY, Field("note", "text")])
    np.testing.assert_allclose(found["quality"], [0.25, 0.25, 0.5])


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": [{"token": "a"}]},
        {"content": [{"token": "a", "logprob": None, "top_logprobs": []}]},
        {"content": [{"token": "a", "logprob": 2.0, "top_logprobs": []}]},
        {"content": [{"token": "a", "logprob": float("nan"), "top_logprobs": []}]},
        {"content": [{"token": "a", "logprob": 1e9, "top_logprobs": []}]},
        {"content": [{"token": 3, "logprob": -1.0, "top_logprobs": []}]},
        {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": None, "logprob": -1.0}]}]},
        {"content": "many"},
        7,
    ],
)
def test_what_is_no_list_of_log_probabilities_is_none(logprobs: Any) -> None:
    assert read_tokens({"choices": [{"logprobs": logprobs}]}) == []


def told(text: str, *, tokens: list[dict[str, Any]] | None) -> bytes:
    choice = {"message": {"content": text}, "logprobs": None if tokens is None else {"content": tokens}}
    return json.dumps({"choices": [choice]}).encode()


def said(token: str, logprob: float, **others: float) -> dict[str, Any]:
    top = [{"token": text, "logprob": value} for text, value in {token: logprob, **others}.items()]
    return {"token": token, "logprob": logprob, "top_logprobs": top}


def test_the_client_asks_for_them_and_a_reply_carries_them() -> None:
    tokens = [said('{"quality": "', 0.0), said("low", float(np.log(0.5)), fair=float(np.log(0.25))), said('"}', 0.0)]

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(told('{"quality": "low"}', tokens=tokens))

    question = Question((("user", "How good?"),), (QUALITY,))
    with serving(answer) as server:
        client = ChatClient(server.url, "small", retries=0, logprobs=5)
        (reply,) = client.ask([question])
        (plain,) = ChatClient(server.url, "small", retries=0).ask([question])
    assert reply is not None
    np.testing.assert_allclose(reply.chances["quality"], [0.25, 0.25, 0.5])
    assert (server.requests[0]["logprobs"], server.requests[0]["top_logprobs"]) == (True, 5)
    assert plain is not None
    assert not plain.chances
    assert "logprobs" not in server.requests[1]
    assert client.knows_chances
    assert client.settings()["logprobs"] == 5


def test_a_server_that_does_not_tell_them_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    question = Question((("user", "How good?"),), (QUALITY,))
    with serving(lambda handler, _: handler.send(told('{"quality": "low"}', tokens=None))) as server:
        client = ChatClient(server.url, "small", retries=0, logprobs=5)
        replies = client.ask([question] * 3)
    assert all(reply is not None and not reply.chances for reply in replies)
    assert client.counts == {"answered": 3, "without_chances": 3}
    assert caplog.text.count("tells no log-probabilities") == 1


def test_settings_out_of_range_are_refused() -> None:
    for wrong in (-1, 21):
        with pytest.raises(ValueError, match=r"logprobs must lie in \[0, 20\]"):
            ChatClient("http://127.0.0.1:9/v1", "small", logprobs=wrong)


def test_every_choice_has_a_chance_in_every_order_of_the_fields() -> None:
    fields = [QUALITY, Field("status", "choice", ("valid", "failed"))]
    for order in itertools.permutations(fields):
        tokens = [Token("{", 1.0, {})]
        for field in order:
            top = {choice: 1 / len(field.choices) for choice in field.choices}
            tokens += [
                Token(f'"{field.name}": "', 1.0, {}),
                Token(field.choices[0], top[field.choices[0]], top),
                Token('", ', 1.0, {}),
            ]
        found = chances_of(tokens, {field.name: field.choices[0] for field in fields}, list(order))
        for field in fields:
            np.testing.assert_allclose(found[field.name], np.full(len(field.choices), 1 / len(field.choices)))
