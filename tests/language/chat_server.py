"""A real HTTP server on loopback that speaks chat completions, well or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from benchmarks.serving import running

Answer: TypeAlias = Callable[["Handler", dict[str, Any]], None]


def completion(content: Any) -> bytes:
    """The body of a chat completion."""
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}).encode()


class Handler(BaseHTTPRequestHandler):
    """Hands each request to what the server was told to do."""

    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            self.server.path = self.path
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
            if self.server.at_once >= self.server.crowd:
                self.server.crowded.set()
        try:
            self.server.answer(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has given up
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def send(self, body: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        """A whole response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


class ChatServer(ThreadingHTTPServer):
    """Counts what it is asked; ``answer`` says how, and may be changed at any time."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, answer: Answer, *, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.path = ""
        self.at_once = self.most_at_once = 0
        self.crowd = 10**9
        self.crowded = threading.Event()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving(answer: Answer, *, port: int = 0) -> Iterator[ChatServer]:
    """A server that runs for as long as the block does."""
    server = ChatServer(answer, port=port)
    with running(server, released=server.released, poll_s=0.01):
        yield server


def says(content: Any) -> Answer:
    """The same completion for everyone."""
    return lambda handler, _: handler.send(completion(content))


def fails(status: int, body: bytes = b'{"error": "no"}', **headers: str) -> Answer:
    """An error status."""
    return lambda handler, _: handler.send(body, status=status, **headers)


def html(handler: Handler, _: dict[str, Any]) -> None:
    """A page, with status 200."""
    handler.send(b"<html><body>Please log in</body></html>", kind="text/html")


def half_a_json(handler: Handler, _: dict[str, Any]) -> None:
    """A body that is whole, but whose JSON is not."""
    handler.send(completion("yes")[:25])


def half_a_body(handler: Handler, _: dict[str, Any]) -> None:
    """A connection that breaks in the middle."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(completion("yes")[:25])
    handler.close_connection = True


def endless(handler: Handler, _: dict[str, Any]) -> None:
    """A body of two megabytes."""
    handler.send(completion("x" * 2_000_000))


def stuck(handler: Handler, _: dict[str, Any]) -> None:
    """No answer until the server is closed."""
    handler.server.released.wait(30)
    handler.close_connection = True


def dripping(handler: Handler, _: dict[str, Any]) -> None:
    """A byte now and then, so that no single read takes long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()
    handler.close_connection = True
