"""Messages between the host and the far side: a JSON header and bytes, over one stream socket named by its file descriptor.

File descriptors rather than socket objects: a forked process that drops a socket object would close a number that the untrusted
code may by then have reused.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

_PREFIX = struct.Struct("!IQ")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a JSON-able header, and bytes that it describes."""

    header: dict[str, Any]
    payload: bytes = b""


@contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for ``fd`` that does not own it."""
    sock = socket.socket(fileno=fd)
    try:
        yield sock
    finally:
        sock.detach()


def send(fd: int, header: dict[str, Any], payload: bytes = b"", *, deadline: float | None = None) -> None:
    """Send one message, by ``deadline`` (of :func:`time.monotonic`) if there is one.

    Raises:
        OSError: the other side is gone, or does not take it in time.
    """
    head = json.dumps(header).encode()
    data = _PREFIX.pack(len(head), len(payload)) + head
    with borrowed(fd) as sock:
        if deadline is not None:
            sock.settimeout(max(deadline - monotonic(), 0.001))
        sock.sendall(data)
        sock.sendall(payload)


def receive(fd: int, *, deadline: float | None = None) -> Message:
    """Wait for one message, until ``deadline`` (of :func:`time.monotonic`) if there is one.

    Raises:
        EOFError: the other side closed, between messages or within one.
        TimeoutError: the deadline passed.
    """
    with borrowed(fd) as sock:
        prefix = _exactly(sock, _PREFIX.size, deadline)
        head_size, payload_size = _PREFIX.unpack(prefix)
        head = _exactly(sock, head_size, deadline)
        payload = _exactly(sock, payload_size, deadline)
    return Message(json.loads(head), bytes(payload))


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            sock.settimeout(left)
        part = sock.recv(min(size - len(data), _CHUNK))
        if not part:
            raise EOFError("the other side closed the channel")
        data += part
    return data
