"""A chat server on loopback that answers as badly as it can, and a world model that asks it: part of ``benchmarks.fuzz_replies``.

Two imagined environments are stepped in an :class:`~wmrl_gym.world_models.LLMWorldModel`; each of their questions gets one
hostile reply over a real socket. Counted are attempts that were predicted and attempts of which nothing is known, what the
client said came of its requests, exceptions out of ``step()`` (there must be none), steps that took longer than the client's own
time-out allows, and memory.
"""

from __future__ import annotations

import functools
import gzip
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from benchmarks.serving import running
from benchmarks.tally import Tally
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.world_models import ChatClient, LLMWorldModel
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

TIMEOUT_S = 2.0
SLACK_S = 10.0
"""What a busy machine may take beside the time-outs."""
NUM_ENVS = 2
ODD_TEXTS = (
    "",
    "\x00",
    "\ud800\udfff",
    "\x1b]0;t\x07\x9b31m",
    "\u202e",
    "{" * 400,
    "NaN",
    "valid",
    "é" * 5000,
    "</think>",
    "```json",
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**400, float("nan"), float("inf"), [], {}, [[]], {"a": 1}, ["text"], [None] * 50),
    *ODD_TEXTS,
)
ODD_HEADERS = (
    *("Retry-After: nan", "Retry-After: inf", "Retry-After: -5", "Retry-After: " + "9" * 400, "Retry-After: Wed, 21 Oct 2015"),
    *("Content-Type: text/html", "Content-Type: ", "Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br"),
    *("Content-Encoding: x, y, z", "Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 9" + "9" * 30),
    *("Location: http://127.0.0.1:9/", "Set-Cookie: " + "x" * 5000, "X: " + "y" * 200_000, "no colon", "\x00: 1", "X\xff: \xff"),
)
STATUSES = (
    *(100, 101, 102, 199, 200, 201, 204, 206, 301, 302, 304, 400, 401, 404, 408, 409, 413, 425, 429, 500, 503, 599, 600, 999, 0),
)
BODIES = (
    *(b"", b"null", b"[]", b"{}", b"<html><body>Please log in</body></html>", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}"),
    b"data: [DONE]\n\n",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is written to the socket: pieces, with a pause before each, and whether the connection is reset in the end."""

    pieces: tuple[bytes, ...]
    pause_s: float = 0.0
    reset: bool = False


Hostility: TypeAlias = Callable[[dict[str, Any], np.random.Generator], Answer]


def good(body: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A completion that answers what was asked, as log-probabilities tell it too."""
    fields = body["response_format"]["json_schema"]["schema"]["properties"]
    kinds = {"integer": 2, "number": 0.9, "string": "told"}
    answer = {name: rng.choice(each["enum"]).item() if "enum" in each else kinds[each["type"]] for name, each in fields.items()}
    text = json.dumps(answer)
    cuts = sorted({0, len(text), *rng.integers(len(text), size=8).tolist()})
    tokens = [text[a:b] for a, b in pairwise(cuts)]
    said = [{"token": each, "logprob": -0.1, "top_logprobs": [{"token": each, "logprob": -0.1}]} for each in tokens]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "logprobs": {"content": said},
    }
    return {"id": "x", "choices": [choice]}


def http(body: bytes, *headers: str, status: int = 200, length: int | None = None) -> bytes:
    """A response as bytes."""
    lines = [
        f"HTTP/1.1 {status} said",
        *headers,
        f"Content-Length: {len(body) if length is None else length}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a document, inner ones included."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from leaves(value[key], (*path, key))


def damaged(document: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A document in which one to three places hold something odd, or are missing."""
    for _ in range(int(rng.integers(1, 4))):
        places = list(leaves(document))
        *above, key = places[int(rng.integers(len(places)))]
        holder: Any = document
        for each in above:
            holder = holder[each]
        if rng.random() < 0.3:
            del holder[key]
        else:
            holder[key] = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
        if not document:
            break
    return document


def wrong_parts(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A completion of JSON with wrong types or missing fields; log-probabilities among them."""
    return Answer((http(json.dumps(damaged(good(body, rng), rng)).encode()),))


def wrong_answer(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A completion whose text is a damaged answer, or has one among other text."""
    completion = good(body, rng)
    message = completion["choices"][0]["message"]
    text = json.dumps(damaged(json.loads(message["content"]), rng))
    around = [ODD_TEXTS[int(rng.integers(len(ODD_TEXTS)))] for _ in range(2)]
    message["content"] = text if rng.random() < 0.4 else around[0] + text + around[1]
    completion["choices"][0]["finish_reason"] = rng.choice(["stop", "length", "tool_calls"]).item()
    return Answer((http(json.dumps(completion).encode()),))


def broken_json(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A body whose bytes were cut, doubled or replaced."""
    content = bytearray(json.dumps(good(body, rng)).encode())
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(content) + 1))
        if rng.random() < 0.5:
            content[at : at + int(rng.integers(1, 60))] = rng.bytes(int(rng.integers(4)))
        else:
            content[at:at] = content[at : at + 200]
    return Answer((http(bytes(content)),))


@functools.cache
def _zipped() -> bytes:
    """What becomes 64 MiB."""
    return gzip.compress(bytes(64 << 20), 1)


def huge(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A body that is large, deep, or becomes large."""
    completion = good(body, rng)
    choice = completion["choices"][0]

    def says(content: str) -> Answer:
        return Answer((http(json.dumps({"choices": [choice | {"message": {"content": content}}]}).encode()),))

    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b" " * 65536 + b"\r\n"
    options: list[Callable[[], Answer]] = [
        lambda: Answer((http(b"[" * 200_000),)),
        lambda: Answer((http(b'{"choices":' * 20_000),)),
        lambda: Answer((http(b" " * 3_000_000),)),
        lambda: Answer((http(b"1" * 900_000),)),
        lambda: Answer((http(_zipped(), "Content-Encoding: gzip"),)),
        lambda: Answer((endless, *[b"10000\r\n" + b" " * 65536 + b"\r\n"] * 200)),
        lambda: Answer((http(json.dumps({"choices": [choice] * 1500}).encode()),)),
        lambda: Answer(
            (http(json.dumps(completion | {"choices": [choice | {"message": {"content": "{" * 900_000}}]}).encode()),)
        ),
        lambda: Answer(
            (http(json.dumps(completion | {"choices": [choice | {"message": {"content": "<think>" * 90_000}}]}).encode()),)
        ),
    ]
    return options[int(rng.integers(len(options)))]()


def cut_off(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A connection that ends too early, in the middle of anything."""
    whole = http(json.dumps(good(body, rng)).encode(), length=None if rng.random() < 0.5 else 10**6)
    chunked = whole.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nX-Length")
    told = whole if rng.random() < 0.6 else chunked
    return Answer((told[: int(rng.integers(len(told) + 1))],), reset=bool(rng.random() < 0.3))


def odd_status(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """An error, a page, or a status that does not exist, with odd headers."""
    content = json.dumps(good(body, rng)).encode() if rng.random() < 0.3 else BODIES[int(rng.integers(len(BODIES)))]
    headers = [ODD_HEADERS[int(rng.integers(len(ODD_HEADERS)))] for _ in range(int(rng.integers(3)))]
    return Answer((http(content, *headers, status=STATUSES[int(rng.integers(len(STATUSES)))]),))


def no_http(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """Something that is no HTTP, or an endless beginning of it."""
    options = (
        b"\x16\x03\x01\x02\x00\x01",
        b"HTTP/9.9 200\r\n\r\n",
        b"\r\n" * 5000,
        b"HTTP/1.1 OK 200\r\n\r\n{}",
        b"220 smtp ready\r\n",
        b"",
    )
    if rng.random() < 0.2:
        return Answer((b"HTTP/1.1 100 Continue\r\n\r\n" * 50,) * 100)
    return Answer((options[int(rng.integers(len(options)))] + rng.bytes(int(rng.integers(50))),))


def slow(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A good reply that comes a byte at a time, so that no single read takes long."""
    whole = http(json.dumps(good(body, rng)).encode())
    start = int(rng.integers(len(whole)))
    return Answer((whole[:start], *(whole[at : at + 1] for at in range(start, min(start + 60, len(whole))))), pause_s=0.05)


def streamed(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A stream of events, though none was asked for, or a good reply of parts."""
    completion = good(body, rng)
    if rng.random() < 0.5:
        text = completion["choices"][0]["message"]["content"]
        completion["choices"][0]["message"]["content"] = [{"type": "text", "text": text}, {"type": "thinking", "thinking": 3}]
        return Answer((http(json.dumps(completion).encode()),))
    return Answer(
        (http(b"data: " + json.dumps(completion).encode() + b"\n\ndata: [DONE]\n\n", "Content-Type: text/event-stream"),)
    )


def fine(body: dict[str, Any], rng: np.random.Generator) -> Answer:
    """A good reply: it must be understood, whatever came before it."""
    return Answer((http(json.dumps(good(body, rng)).encode()),))


HOSTILITIES: dict[str, tuple[Hostility, float]] = {
    "good": (fine, 0.08),
    "wrong parts": (wrong_parts, 0.25),
    "wrong answer": (wrong_answer, 0.2),
    "broken JSON": (broken_json, 0.12),
    "huge": (huge, 0.06),
    "cut off": (cut_off, 0.1),
    "odd status": (odd_status, 0.1),
    "no HTTP": (no_http, 0.05),
    "slow": (slow, 0.01),
    "streamed": (streamed, 0.03),
}
"""How a reply is bad, and the share of the replies that are so."""


class Handler(BaseHTTPRequestHandler):
    """Reads a request, and writes what comes next."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        """Answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server.next_answer(body)
        self.close_connection = True
        try:
            for piece in answer.pieces:
                if answer.pause_s and self.server.released.wait(answer.pause_s):
                    return
                self.wfile.write(piece)
            if answer.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
        except OSError:
            pass  # the client has given up

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


class Server(ThreadingHTTPServer):
    """Draws an answer for each request; ``kinds`` counts them, and ``good`` says whether all since the last look were good."""

    daemon_threads = True

    def __init__(self, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rng, self.lock, self.released = np.random.default_rng(seed), threading.Lock(), threading.Event()
        self.kinds, self.recent = Counter[str](), list[str]()

    def next_answer(self, body: dict[str, Any]) -> Answer:
        """What this request gets."""
        with self.lock:
            kind = self.rng.choice(list(HOSTILITIES), p=[share for _, share in HOSTILITIES.values()]).item()
            self.kinds[kind] += 1
            self.recent.append(kind)
            return HOSTILITIES[kind][0](body, self.rng)

    def handle_error(self, *_: Any) -> None:
        """The client may end a connection at any time."""


@contextmanager
def serving(seed: int) -> Iterator[Server]:
    """A server that runs for as long as the block does."""
    server = Server(seed)
    with running(server, released=server.released, poll_s=0.05):
        yield server


def fuzz_servers(count: int, *, seed: int, task: Any = "diabetes") -> dict[str, Any]:
    """So many hostile replies at least, the first half to a model that asks one question of each attempt.

    The other half is for one that asks several, with log-probabilities.
    """
    tally, late, outcomes, kinds = Tally(count), 0, Counter[str](), Counter[str]()
    text = AutoResearchText(task, max_turns=2)
    for part, (design, logprobs) in enumerate((("holistic", 0), ("decomposed", 5))):
        with serving(seed + part) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/v1"
            client = ChatClient(address, "any", retries=0, cooldown_s=0.0, timeout_s=TIMEOUT_S, logprobs=logprobs)
            model = LLMWorldModel(client, design=design, cache=0)  # type: ignore[arg-type]
            envs = WorldModelVectorEnv(text, model, num_envs=NUM_ENVS, anchors=0.0, seed=seed)
            envs.reset(seed=seed)
            asked = sum(kinds.values())
            while asked + sum(server.kinds.values()) < count * (part + 1) // 2:
                before, started = sum(server.kinds.values()), perf_counter()
                tally.run(lambda envs=envs, server=server: step(envs, server))  # type: ignore[misc]
                late += perf_counter() - started > 2 * TIMEOUT_S + SLACK_S  # a probe, and then the others side by side
                tally.more(sum(server.kinds.values()) - before - 1)  # the step was counted as one
            outcomes.update(client.counts)
            kinds.update(server.kinds)
            outcomes["attempts predicted"] += model.asked.attempts - model.asked.unknown
            outcomes["attempts unknown"] += model.asked.unknown
    text.close()
    return tally.report() | {"verdicts": dict(outcomes.most_common()), "kinds": dict(kinds), "over_their_limit": late}


def step(envs: WorldModelVectorEnv, server: Server) -> str:
    """One step of all environments; raises AssertionError unless it returned what steps return, and understood good replies."""
    number = sum(server.kinds.values())
    replies = tuple(f"```python\nx = {number * NUM_ENVS + slot}\n```" for slot in range(NUM_ENVS))
    server.recent.clear()
    observation, reward, terminated, truncated, info = envs.step(replies)
    assert observation in envs.observation_space
    assert ((reward >= 0) & (reward <= 1)).all()
    if set(server.recent) == {"good"} and not (terminated | truncated).all():
        assert np.asarray(info["reward_valid"]).all(), "a good reply was not understood"
    return "stepped"
