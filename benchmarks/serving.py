"""A server of this process, for as long as a block runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

ServerT = TypeVar("ServerT", bound=BaseServer)


@contextmanager
def running(server: ServerT, *, released: threading.Event, poll_s: float) -> Iterator[ServerT]:
    """``server``, which answers from a thread of its own until the block ends.

    Args:
        server: it.
        released: is set at the end, for answers that wait.
        poll_s: how often it looks whether it is to end, in seconds.
    """
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": poll_s}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()
