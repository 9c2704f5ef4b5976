"""The first process of a container: it reaches its host by a socket that is shown to it, and serves one run."""

from __future__ import annotations

import os
import socket
from typing import Any

from .zygote import main as serve

CHANNEL = "/runner/channel/socket"


def main(config: dict[str, Any]) -> None:
    """Serve one run.

    Args:
        config: "preimport", names of modules.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(CHANNEL)
        channel = sock.detach()
    # There is no process of the host's to be seen from here: its end shows in the channel, and nobody ever writes to this pipe.
    host, _ = os.pipe()
    serve({"channel": channel, "host": host, "preimport": config["preimport"], "nested": False, "keep": []})
