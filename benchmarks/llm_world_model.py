"""Throughput of a language model as world model, against concurrency: ``python -m benchmarks.llm_world_model``.

The same questions about scripts are asked of three servers on this machine, with 1, 8 and 64 requests in flight: ``transformers
serve`` with SmolLM2-135M, without and with continuous batching, and a stand-in that answers every request after half a second,
which shows what the client itself can keep in flight. The same model in this process, which scores closed answers instead of
writing them, stands beside. Questions are answered once each; all numbers are of one run. Results go to
``benchmarks/results/llm_world_model.json`` and ``llm_world_model.png``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.language_server import smollm2, transformers_serve
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import ChatClient, Interface, LLMWorldModel, LocalModel

RESULTS = Path(__file__).parent / "results"
LEVELS = (1, 8, 64)
DELAY_S = 0.5
"""Of the stand-in."""
MAX_TOKENS = 4
"""Of a reply: too few for a whole answer of this model, but what is measured is how many replies come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=4, help="attempts foreseen at each level, or as many as it has requests")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    weights = smollm2()
    servers: dict[str, Callable[[], AbstractContextManager[str]]] = {
        f"a stand-in that takes {DELAY_S} s": stand_in,
        "transformers serve": lambda: transformers_serve(weights),
        "transformers serve, continuous batching": lambda: transformers_serve(weights, "--continuous-batching"),
    }
    document: dict[str, Any] = {"machine": machine(), "max_tokens": MAX_TOKENS, "attempts_per_s": {}}
    for name, start in servers.items():
        with start() as url:
            document["attempts_per_s"][name] = rates(url, str(weights), arguments.least)
        print(f"{name:<42}", "  ".join(f"{level}: {rate:.2f}/s" for level, rate in document["attempts_per_s"][name].items()))
    local = LocalModel.load(weights, device="cpu", max_text_tokens=8)
    document["in_process"] = {str(size): in_process(local, size) for size in LEVELS}
    print(
        f"{'in this process, by batch':<42}", "  ".join(f"{size}: {rate:.2f}/s" for size, rate in document["in_process"].items())
    )
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "llm_world_model.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, arguments.results / "llm_world_model.png")
    return 0


def rates(url: str, model: str, least: int) -> dict[str, float]:
    """Attempts foreseen a second, by requests in flight."""
    found = {}
    foresee(ChatClient(url, model, max_tokens=MAX_TOKENS, timeout_s=1200.0, retries=0), 1, first=10**6)  # warms it up
    for level in LEVELS:
        client = ChatClient(url, model, concurrency=level, max_tokens=MAX_TOKENS, timeout_s=1200.0, retries=0)
        count = max(least, level)
        seconds = foresee(client, count, first=1000 * level)
        if client.counts["answered"] != count:
            raise RuntimeError(f"of {count} questions {client.counts} came back: {client.last_problem}")
        found[str(level)] = count / seconds
    return found


def in_process(local: LocalModel, size: int) -> float:
    """Attempts foreseen a second, in batches of ``size``."""
    local.batch_size = size
    count = max(4, size)
    return count / foresee(local, count, first=5000 * size)


def foresee(backend: Any, count: int, *, first: int) -> float:
    """Seconds that ``count`` scripts take which differ from all others."""
    text = AutoResearchText("diabetes")
    model = LLMWorldModel(backend, max_briefing=20, max_code=120)
    model.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    replies = [f"```python\nimport pandas as pd\nprint({first + number})\n```" for number in range(count)]
    attempt = text.attempt(text.begin(*text.start(np.zeros(count, np.int64))), replies)
    started = perf_counter()
    model.predict(attempt, np.random.default_rng(0))
    return perf_counter() - started


@contextmanager
def stand_in() -> Iterator[str]:
    """A server that answers any number of requests, each after :data:`DELAY_S` seconds."""
    answer = {"status": "valid", "quality": "mid", "error": "", "line": 0, "message": "", "confidence": 0.8}
    body = json.dumps({"choices": [{"message": {"content": json.dumps(answer)}}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    started, stopped = threading.Event(), asyncio.Event()
    address: list[Any] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in header.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            await asyncio.sleep(DELAY_S)
            writer.write(head + body)
            await writer.drain()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await converse(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(quietly, "127.0.0.1", 0, backlog=512)
        address.extend([server.sockets[0].getsockname()[1], asyncio.get_running_loop()])
        started.set()
        await stopped.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    started.wait()
    yield f"http://127.0.0.1:{address[0]}/v1"
    address[1].call_soon_threadsafe(stopped.set)
    thread.join()


def draw(document: dict[str, Any], path: Path) -> None:
    """Throughput against requests in flight."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, found in (document["attempts_per_s"] | {"in this process (batch)": document["in_process"]}).items():
        axes.plot([int(level) for level in found], list(found.values()), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(LEVELS, [str(level) for level in LEVELS])
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("attempts foreseen a second")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
