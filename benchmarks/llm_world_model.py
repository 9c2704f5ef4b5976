"""Throughput of a language model as world model, against concurrency: ``python -m benchmarks.llm_world_model``.

The same questions about scripts are asked of four servers on this machine, with 1, 8 and 64 requests in flight: llama.cpp's with
SmolLM2-135M (four bits a weight), ``transformers serve`` with the same weights in float32, without and with continuous batching,
and a stand-in that answers every request after half a second, which shows what the client itself can keep in flight. The same
weights in this process, with which closed answers are scored instead of written, stand beside. Questions are answered once each;
all numbers are of one run. A server of one thread that computes all the time does as much in a second as in a second of its CPU
time, which does not depend on what else the machine does: both are reported. Results go to
``benchmarks/results/llm_world_model.json`` and ``llm_world_model.png``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.language_server import llama_cpp_serve, smollm2, smollm2_gguf, transformers_serve
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import ChatClient, Interface, LLMWorldModel, LocalModel

RESULTS = Path(__file__).parent / "results"
LEVELS = (1, 8, 64)
IN_PROCESS = "in this process, by batch"
DELAY_S = 0.5
"""Of the stand-in."""
MAX_TOKENS = 8
"""Of a reply: too few for a whole answer of this model, but what is measured is how many replies come."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Attempts predicted a second, and a second of the CPU time of what computes them; NaN where nothing computes."""

    per_s: float
    per_cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=4, help="attempts predicted at each level, or as many as it has requests")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help=f"of a reply (default: {MAX_TOKENS})")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    weights, processes = smollm2(), list[int]()
    servers: dict[str, Callable[[], AbstractContextManager[str]]] = {
        f"a stand-in that takes {DELAY_S} s": stand_in,
        "llama.cpp": lambda: llama_cpp_serve(smollm2_gguf(), slots=max(LEVELS), slot_tokens=512, started=processes.append),
        "transformers serve": lambda: transformers_serve(weights, started=processes.append),
        "transformers serve, continuous batching": lambda: transformers_serve(
            weights, "--continuous-batching", started=processes.append
        ),
    }
    found: dict[str, dict[str, Rate]] = {}
    for name, start in servers.items():
        processes.clear()
        with start() as url:
            cpu_s = partial(cpu_seconds, processes[0]) if processes else lambda: float("nan")
            client = partial(ChatClient, url, str(weights), max_tokens=arguments.max_tokens, timeout_s=1200.0, retries=0)
            found[name] = rates(client, cpu_s, arguments.least)
        _tell(name, found[name])
    local = LocalModel.load(weights, device="cpu", max_text_tokens=arguments.max_tokens)
    found[IN_PROCESS] = {str(size): in_process(local, size) for size in LEVELS}
    _tell(IN_PROCESS, found[IN_PROCESS])
    document = {"machine": machine(), "load": os.getloadavg()[0], "max_tokens": arguments.max_tokens}
    for kind in ("per_s", "per_cpu_s"):
        table = {name: {level: getattr(rate, kind) for level, rate in each.items()} for name, each in found.items()}
        document[f"attempts_{kind}"] = {name: each for name, each in table.items() if not any(map(isnan, each.values()))}
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "llm_world_model.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, arguments.results / "llm_world_model.png")
    return 0


def rates(client: Callable[..., ChatClient], cpu_s: Callable[[], float], least: int) -> dict[str, Rate]:
    """By requests in flight."""
    found = {}
    predict(client(), 1, first=10**6)  # warms the server up
    for level in LEVELS:
        asking, count, before = client(concurrency=level), max(least, level), cpu_s()
        seconds = predict(asking, count, first=1000 * level)
        if asking.counts["answered"] != count:
            raise RuntimeError(f"of {count} questions {asking.counts} came back: {asking.last_problem}")
        found[str(level)] = Rate(count / seconds, count / (cpu_s() - before))
    return found


def in_process(local: LocalModel, size: int) -> Rate:
    """In batches of ``size``."""
    local.batch_size = size
    count, before = max(4, size), process_time()
    seconds = predict(local, count, first=5000 * size)
    return Rate(count / seconds, count / (process_time() - before))


def cpu_seconds(process: int) -> float:
    """CPU time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tell(name: str, rates: dict[str, Rate]) -> None:
    told = []
    for level, rate in rates.items():
        told.append(f"{level}: {rate.per_s:.2f}/s" + ("" if isnan(rate.per_cpu_s) else f", {rate.per_cpu_s:.2f}/CPU-s"))
    print(f"{name:<42}", "  ".join(told), flush=True)


def predict(backend: Any, count: int, *, first: int) -> float:
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

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {"attempts_per_s": "attempts a second", "attempts_per_cpu_s": "attempts a second of CPU time"}
    for axes, (key, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for number, name in enumerate(document["attempts_per_s"]):
            each = document[key].get(name, {})
            axes.plot([int(level) for level in each], list(each.values()), marker="o", label=name, color=f"C{number}")
        axes.set_xscale("log", base=2)
        if key == "attempts_per_s":  # the stand-in is far above the others
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0.0)
        axes.set_xticks(LEVELS, [str(level) for level in LEVELS])
        axes.set_xlabel("requests in flight, or batch")
        axes.set_title(title, fontsize=10)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
