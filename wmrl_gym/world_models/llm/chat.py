"""A client of any server that speaks OpenAI's chat completions: many requests at once, no exception for what it does."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.threads import tell_when_forked
from wmrl_gym.world_models.llm.chances import chances_of, read_tokens, read_usage, written_tokens
from wmrl_gym.world_models.llm.schema import Question, Reply, json_schema, parse

ResponseFormat = Literal["json_schema", "json_object", "none"]
_LOG = logging.getLogger(__name__)
_AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""


class ChatFailure(Exception):
    """Why a request brought nothing: its kind, what was said, whether it is worth another try, and when the server wants it.

    Args:
        kind: "unreachable", "slow", "error", "garbled", "too_long" or "refused", as :attr:`ChatClient.counts` names them.
        said: by the server, or by what could not reach it.
        again: whether the same request may succeed later.
        wait_s: seconds after which the server wants it; 0 where it did not say.
    """

    def __init__(self, kind: str, said: str, *, again: bool, wait_s: float = 0.0) -> None:
        super().__init__(said)
        self.kind, self.again, self.wait_s = kind, again, wait_s


class ChatClient:
    """Asks a server such as vLLM, llama.cpp or ``transformers serve``.

    A server that is down, slow, answers with an error, with a page of HTML or with half a JSON is asked again, later and later,
    and then the question has no reply. After a batch to which nothing answered at all, the next ones are answered with nothing at
    once, for ``cooldown_s`` seconds; then one question probes whether the server is back.

    Args:
        base_url: such as ``http://127.0.0.1:8000/v1``.
        model: the name that the server knows the model by.
        api_key: sent as a bearer token; None takes the environment variable ``api_key_env``, if it is set.
        api_key_env: its name. It is this project's own, so that a key for one server does not reach another by accident.
        concurrency: requests in flight at once.
        timeout_s: seconds for one whole exchange.
        retries: tries after the first.
        backoff_s: seconds before the first of them; twice as many before each one after.
        cooldown_s: seconds for which a dead server is left alone.
        max_tokens: of a reply.
        temperature: of sampling, where a question has a seed; those without one are asked at 0.
        max_reply_bytes: a longer reply is not read.
        response_format: how the server is told of the form of the answers: OpenAI's and vLLM's ``"json_schema"``, llama.cpp's
            ``"json_object"`` with a schema, or ``"none"``. The answers are checked here in any case.
        logprobs: for so many of the likeliest tokens in each place of a reply, 20 at most, the server is asked for their
            log-probabilities: vLLM and llama.cpp tell them, ``transformers serve`` does not. Then a single reply tells how likely
            each closed answer is, in place of the confidence that is stated in it. With 0 the server is not asked.
        extra: further keys of each request's body; they are saved with a world model, so that they are no place for a secret.
        clock: seconds that never go back.

    Raises:
        ValueError: an argument out of range, or an address that is none.

    >>> client = ChatClient("http://127.0.0.1:9/v1", "any", retries=0)  # nothing listens there
    >>> client.ask([Question((("user", "Are you there?"),), ())])
    [None]
    >>> client.counts["unreachable"]
    1
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str = "WMRL_API_KEY",
        concurrency: int = 256,
        timeout_s: float = 120.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        cooldown_s: float = 5.0,
        max_tokens: int = 256,
        temperature: float = 0.7,
        max_reply_bytes: int = 1_000_000,
        response_format: ResponseFormat = "json_schema",
        logprobs: int = 0,
        extra: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url must be an address such as http://127.0.0.1:8000/v1, got {base_url!r}")
        for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0), ("max_tokens", max_tokens, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not timeout_s > 0 or backoff_s < 0 or cooldown_s < 0:
            raise ValueError(f"seconds must not be negative, nor timeout_s 0, got {timeout_s=}, {backoff_s=}, {cooldown_s=}")
        if response_format not in ("json_schema", "json_object", "none"):
            raise ValueError(f'response_format must be "json_schema", "json_object" or "none", got {response_format!r}')
        if not 0 <= logprobs <= 20:
            raise ValueError(f"logprobs must lie in [0, 20], got {logprobs}")
        self.base_url, self.model = base_url.rstrip("/"), model
        self._api_key, self.api_key_env = api_key, api_key_env
        self.concurrency, self.timeout_s, self.retries = concurrency, timeout_s, retries
        self.backoff_s, self.cooldown_s = backoff_s, cooldown_s
        self.max_tokens, self.temperature, self.max_reply_bytes = max_tokens, temperature, max_reply_bytes
        self.response_format, self.logprobs, self.extra = response_format, logprobs, dict(extra or {})
        self.counts: Counter[str] = Counter()
        """What came of the requests, retries included: "answered", "unreachable", "slow", "error", "garbled", "too_long",
        "refused", "not_asked" for questions that were kept from a dead server, and "without_chances" for those among the answered
        whose log-probabilities were asked for and did not come."""
        self.last_problem = ""
        """What the last failed request said, for people."""
        self._clock = clock
        self._length_key = "max_tokens"
        self.forked()
        tell_when_forked(self)
        self._dead_until: float | None = None

    def __repr__(self) -> str:
        return f"ChatClient({without_password(self.base_url)!r}, {self.model!r})"  # never the key

    @property
    def knows_chances(self) -> bool:
        """Whether replies carry the probabilities of the closed answers: where log-probabilities are asked for."""
        return self.logprobs > 0

    def settings(self) -> dict[str, Any]:
        """What makes the same client again, as json: never the key, nor a password in the address."""
        return {"kind": "server", "base_url": without_password(self.base_url)} | {name: getattr(self, name) for name in _SETTINGS}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_counting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """In a forked child: a thread of the parent may hold the lock for ever."""
        self._counting = threading.Lock()

    def ask(self, questions: Sequence[Question]) -> list[Reply | None]:
        """The reply to each question, None where none came; as many requests at once as ``concurrency`` allows."""
        results: list[Reply | ChatFailure] = []
        if questions and self._dead_until is not None:
            if self._clock() >= self._dead_until:
                results = _run(self._batch(questions[:1], retries=0))
            if not results or isinstance(results[0], ChatFailure):
                self._dead_until += self.cooldown_s if results else 0.0
                self._count("not_asked", len(questions) - len(results))
                return [None] * len(questions)
            self._dead_until = None
        results += _run(self._batch(questions[len(results) :], retries=self.retries))
        if results and all(isinstance(each, ChatFailure) and each.again for each in results):
            self._dead_until = self._clock() + self.cooldown_s
        return [None if isinstance(each, ChatFailure) else each for each in results]

    async def _batch(self, questions: Sequence[Question], *, retries: int) -> list[Reply | ChatFailure]:
        if not questions:
            return []
        async with self.session(retries=retries) as ask:
            return list(await asyncio.gather(*map(ask, questions)))

    @contextlib.asynccontextmanager
    async def session(self, *, retries: int | None = None) -> AsyncIterator[Asker]:
        """Connections that stay open for the block, for questions that come one at a time: a coroutine that answers each of them.

        It asks again as :meth:`ask` does, and returns a :class:`ChatFailure` where nothing came; it leaves no server alone.

        Args:
            retries: tries after the first; None takes the client's own.
        """
        httpx = http_library()
        gate = asyncio.Semaphore(self.concurrency)
        key = self._api_key if self._api_key is not None else os.environ.get(self.api_key_env)
        async with httpx.AsyncClient(
            limits=httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
            timeout=self.timeout_s,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            # A proxy that the environment names cannot reach this machine's own loopback address.
            trust_env=not _is_loopback(self.base_url),
            verify=self.base_url.startswith("https"),
        ) as client:
            numbers, times = itertools.count(), self.retries if retries is None else retries

            async def ask(question: Question) -> Reply | ChatFailure:
                return await self._persist(client, gate, question, retries=times, jitter=random.Random(next(numbers)))

            yield ask

    async def _persist(
        self, client: Any, gate: asyncio.Semaphore, question: Question, *, retries: int, jitter: random.Random
    ) -> Reply | ChatFailure:
        for attempt in range(retries + 1):
            try:
                async with gate:
                    reply = await self._exchange(client, question)
            except ChatFailure as failure:
                self._note(failure)
                if not failure.again or attempt == retries:
                    return failure
                pause = self.backoff_s * 2**attempt * (0.5 + jitter.random())
                await asyncio.sleep(min(max(pause, failure.wait_s), self.timeout_s))
            else:
                self._count("answered")
                return reply
        raise AssertionError("the last try returns")

    async def _exchange(self, client: Any, question: Question) -> Reply:
        """One request and its reply.

        Raises:
            ChatFailure: nothing came that can be read.
        """
        httpx, length_key = http_library(), self._length_key
        try:
            # The library's own time-outs are for each read: a server that drips would never reach one.
            status, headers, body = await asyncio.wait_for(self._post(client, self._body(question)), self.timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            raise ChatFailure("slow", f"no reply within {self.timeout_s:g} s", again=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ChatFailure("unreachable", f"{type(error).__name__}: {error}", again=True) from None
        if status >= 500 or status in _AGAIN:
            raise ChatFailure("error", f"status {status}: {_shorten(body)}", again=True, wait_s=_retry_after(headers))
        if status == 400 and length_key == "max_tokens" and b"max_completion_tokens" in body:
            self._length_key = "max_completion_tokens"  # newer servers of OpenAI's models refuse the older name
            return await self._exchange(client, question)
        if status != 200:
            raise ChatFailure("refused", f"status {status}: {_shorten(body)}", again=False)
        try:
            completion = json.loads(body)
            choice = completion["choices"][0]
            content, cut_off = _text_of(choice["message"]["content"]), choice.get("finish_reason") == "length"
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise ChatFailure("garbled", f"not a chat completion: {_shorten(body)}", again=True) from None
        if not isinstance(content, str):
            raise ChatFailure("garbled", f"a completion without text: {_shorten(body)}", again=True)
        chances = self._chances(completion, content, question, cut_off=cut_off)
        return Reply(content, chances, cut_off, read_usage(completion), written_tokens(completion))

    def _chances(self, completion: Any, content: str, question: Question, *, cut_off: bool) -> dict[str, NDArray[np.float64]]:
        choices = [field for field in question.fields if field.kind == "choice"]
        answers = parse(content, question.fields, cut_off=cut_off) if self.logprobs and choices else None
        if answers is None:
            return {}
        found = chances_of(read_tokens(completion), answers, choices)
        if not found and self._count("without_chances") == 1:
            _LOG.warning("%r tells no log-probabilities: what replies say of their own confidence is taken instead", self)
        return found

    async def _post(self, client: Any, body: dict[str, Any]) -> tuple[int, Any, bytes]:
        # Escaped, so that code with characters that are no text, such as lone surrogates, can be sent as well.
        content, kind = json.dumps(body).encode("ascii"), {"Content-Type": "application/json"}
        async with client.stream("POST", f"{self.base_url}/chat/completions", content=content, headers=kind) as response:
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > self.max_reply_bytes:
                    raise ChatFailure("too_long", f"more than {self.max_reply_bytes} bytes", again=False)
            return int(response.status_code), response.headers, bytes(received)

    def _body(self, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": role, "content": content} for role, content in question.messages],
            self._length_key: self.max_tokens,
            "temperature": 0.0 if question.seed is None else self.temperature,
        }
        if question.seed is not None:
            body["seed"] = question.seed
        if self.logprobs and question.fields:
            body |= {"logprobs": True, "top_logprobs": self.logprobs}
        if question.fields and self.response_format != "none":
            schema = json_schema(question.fields)
            strict = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
            loose = {"type": "json_object", "schema": schema}
            body["response_format"] = strict if self.response_format == "json_schema" else loose
        return body | self.extra

    def _count(self, what: str, times: int = 1) -> int:
        with self._counting:
            self.counts[what] += times
            return self.counts[what]

    def _note(self, failure: ChatFailure) -> None:
        self.last_problem = str(failure)
        if self._count(failure.kind) == 1:
            _LOG.warning("%r: %s, %s; said once, counted from now on", self, failure.kind, failure)


Asker: TypeAlias = Callable[[Question], Awaitable[Reply | ChatFailure]]
"""Answers one question, or says why it cannot."""


def http_library() -> ModuleType:
    """httpx2, or httpx, which has the same interface.

    Raises:
        gymnasium.error.DependencyNotInstalled: neither is installed.
    """
    import importlib

    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise gym.error.DependencyNotInstalled("httpx2 is not installed, run `pip install 'wmrl-gym[llm]'`")


def _run(coroutine: Coroutine[Any, Any, list[Reply | ChatFailure]]) -> list[Reply | ChatFailure]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:  # this thread has a loop of its own, as in a notebook
        return thread.submit(asyncio.run, coroutine).result()


_SETTINGS = (
    "model",
    "api_key_env",
    "concurrency",
    "timeout_s",
    "retries",
    "backoff_s",
    "cooldown_s",
    "max_tokens",
    "temperature",
    "max_reply_bytes",
    "response_format",
    "logprobs",
    "extra",
)


def without_password(url: str) -> str:
    """An address as it may be written down."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _retry_after(headers: Any) -> float:
    try:
        return max(float(headers.get("retry-after", 0.0)), 0.0)
    except ValueError:  # a date
        return 0.0


def _text_of(content: Any) -> Any:
    """The text of a message; of one that is a list of parts, as of models that think in parts of their own, the parts of text."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text") or None


def _shorten(body: bytes) -> str:
    text = " ".join(body[:2000].decode("utf-8", "replace").split())
    return text if len(text) <= 200 else f"{text[:200]}..."
