"""Thousands of hostile replies, submissions and task folders: ``python -m benchmarks.fuzz_replies``.

Replies go through ``step()`` of the text environment with the real parser, the real sandbox and the real grader. Submissions go
to the grader of tasks of every kind. Task folders are good ones, damaged. Replies of a chat server go to a world model that
asks it (:mod:`benchmarks.fuzz_servers`). Counted are verdicts, exceptions (there must be none),
what took longest, and how much memory this process holds at the beginning, half-way and at the end. Results go to
``benchmarks/results/fuzz_replies.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.fuzz_servers import fuzz_servers
from benchmarks.tally import Tally
from wmrl_gym.envs.autoresearch import AutoResearchEnv, TaskError, load_task
from wmrl_gym.envs.autoresearch.reply import MAX_REPLY
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.envs.autoresearch.tasks.format import FILES
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.sandbox import Limits
from wmrl_gym.study.run import machine
from wmrl_gym.study.training import open_sandbox

RESULTS = Path(__file__).parent / "results"
TASKS = ("diabetes", "penguin-sex", "seattle-weather")
LIMITS = Limits(wall_s=2.0, cpu_s=1.0, memory_mb=512)


def finally_bomb(depth: int) -> str:
    """The compiler writes each ``finally`` twice, so that this takes 2**depth times the memory of its last line."""
    lines = []
    for level in range(depth):
        lines += [f"{' ' * level}try: x", f"{' ' * level}finally:"]
    return "\n".join([*lines, f"{' ' * depth}" + ";".join(["f(x)"] * 40)])


HOSTILE_CODE = (
    *(finally_bomb(depth) for depth in (3, 12, 19)),
    *(sign * 8000 for sign in ("(", "[", "{", "-", "not ", "lambda:", "x.", "x;", "x<", "x or ", "*", "@x\n", "\\\n", "x=", "~")),
    *("(" * n + ")" * n for n in (50, 199, 3000)),
    "\n".join(" " * level + "if x:" for level in range(150)),
    "\n".join(" " * level + "def f():" for level in range(99)) + "\n" + " " * 99 + "pass",
    "f'{" * 3000,
    "f'" + "{x!r:{y}}" * 3000 + "'",
    "x = '" + "\\N{DIGIT ONE}" * 2000 + "'",
    "9**9**9, 'a' * 10**9, (1,) * 10**8, 2**-1, 1 << 10**9",
    "1" * 30000,
    "0x" + "f" * 30000,
    "x = " + "'a' " * 8000,
    "\ufdfa" * 8000,
    "x = 1\0",
    "\ufeffx = 1",
    "x = '\ud800'",
    *(f"# coding: {name}\n+AGYAbwBv" for name in ("utf-7", "rot13", "zlib", "idna", "punycode", "unicode_escape", "none")),
    "from sklearn.datasets import load_boston",
    "from sklearn import *\nfrom sklearn.datasets import *\nimport sklearn.conftest, sklearn.externals._packaging",
    "from sklearn.svm import SVC\nSVC(C=" + "9" * 4000 + ", kernel='" + "x" * 9000 + "', gamma=1e999, degree=-1j, x=...)",
    "match x:\n case " + "|".join("[a]" for _ in range(4000)) + ": pass",
    "with " + ", ".join(["x"] * 6000) + ": pass",
    "print('\x1b]0;title\x07\x1b[2J\x9b31m')\nraise ValueError('\x1b[8m\u202e')",
    "global x\nnonlocal y\nreturn\nyield\nawait z",
    "x\x0cy\u2028z\x85w",
    "import os\nos.write(1, bytes(range(256)) * 500)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGSEGV)",
    "import os\nopen(os.environ['SUBMISSION_PATH'], 'wb').write(b'\\xef\\xbb\\xbfid,y\\n\\x00,\\xff')",
    "import os\nos.symlink('/etc/passwd', os.environ['SUBMISSION_PATH'])",
    "import os\nos.mkfifo(os.environ['SUBMISSION_PATH'])",
    "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
    "x = []\nwhile True: x.append(bytearray(1 << 24))",
)
"""Scripts that have hurt parsers, compilers, graders or sandboxes, or could."""
HOSTILE_REPLIES = (
    "",
    "~" * 32767 + "`",
    "`" * 32768,
    " " * 32768,
    "\t" * 32000 + "DESCRIBE",
    "```python\n" * 3000,
    "~~~\n```\n" * 3000,
    "   ```" + " " * 30000 + "`",
    "```" + "\u2003" * 30000,
    "<describe" + "\n" * 30000 + "/>",
    "DESCRIBE" + "\t" * 30000 + "x",
    "\r" * 32768,
    "x" * (MAX_REPLY + 1),
    "\ud800\udfff" * 5000,
    "\0" * 20000,
    "DESCRIBE",
)
"""Replies that hold no script, and have hurt readers of Markdown, or could."""


def fenced(code: str) -> str:
    """A reply that holds a script."""
    return f"~~~python\n{code}\n~~~"


def hostile_replies(rng: np.random.Generator) -> Iterator[str]:
    """The corpus, then pieces of it put together at random, without end."""
    corpus = [*HOSTILE_REPLIES, *map(fenced, HOSTILE_CODE)]
    yield from corpus
    while True:
        kind = int(rng.integers(4))
        if kind == 0:
            yield _spliced(corpus, rng)
        elif kind == 1:
            yield fenced(_spliced(HOSTILE_CODE, rng))
        elif kind == 2:
            yield "".join(map(chr, rng.integers(0, 0x250, int(rng.integers(400)))))
        else:
            yield fenced("".join(rng.choice(list("()[]{}:;,=\n \t'\"\\#@*+-if1x.\0\ufeff"), int(rng.integers(300)))))


def _spliced(texts: Sequence[str], rng: np.random.Generator) -> str:
    parts = []
    for text in rng.choice(np.array(texts, dtype=object), 3):
        start, length = int(rng.integers(len(text) + 1)), int(rng.integers(8000))
        parts.append(text[start : start + length] if rng.random() < 0.5 else text[:length])
    return "".join(parts)[:MAX_REPLY]


def hostile_submissions(sample: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """A good submission, damaged at random, without end."""
    cells = [
        b"",
        b"nan",
        b"-inf",
        b"1e999",
        b"NA",
        b"0x1",
        b"\xff",
        b"\0",
        b'"',
        b'"""',
        b"1" * 5000,
        b"\xef\xbb\xbf",
        b"a" * 200_000,
    ]
    while True:
        content = bytearray(sample)
        for _ in range(int(rng.integers(1, 6))):
            place = int(rng.integers(len(content) + 1))
            choice = int(rng.integers(4))
            if choice == 0:
                content[place:place] = cells[int(rng.integers(len(cells)))]
            elif choice == 1:
                del content[place : place + int(rng.integers(1, 300))]
            elif choice == 2:
                content[place : place + 4] = rng.bytes(4)
            else:
                content = content + content[place : place + 500]
        yield bytes(content)


def damaged(folder: Path, rng: np.random.Generator) -> None:
    """Damage a task's folder."""
    path = folder / FILES[int(rng.integers(len(FILES)))]
    choice = int(rng.integers(6))
    if choice == 0:
        path.unlink()
    elif choice == 1:
        path.write_bytes(b"")
    elif choice == 2:
        path.unlink()
        path.mkdir()
    elif choice == 3:
        path.write_bytes(rng.bytes(int(rng.integers(2000))))
    else:
        path.write_bytes(next(hostile_submissions(path.read_bytes(), rng)))


def fuzz_replies(count: int, *, seed: int) -> dict[str, Any]:
    """Replies through ``step()``, features included, as a world model asks for them."""
    sandbox, rng = open_sandbox(1), np.random.default_rng(seed)
    env = AutoResearchEnv(list(TASKS), sandbox=sandbox, limits=LIMITS, max_turns=50, render_mode="ansi")
    factored, tally, source = env.factored, Tally(count), hostile_replies(rng)
    env.reset(seed=seed)

    def step() -> str:
        reply = next(source)
        attempt = factored.attempt(factored.begin(None, {"context": np.zeros(1, np.int64)}), (reply,))
        assert np.isfinite(factored.features(attempt)).all()
        observation, _, terminated, truncated, info = env.step(reply)
        assert observation in env.observation_space
        if terminated or truncated:
            env.render()
            env.reset()
        return STATUSES[info["status"]] if info["reward_valid"] else "unknown"

    try:
        for _ in range(count):
            tally.run(step)
    finally:
        env.close()
        sandbox.close()
    return tally.report()


def fuzz_submissions(count: int, *, seed: int) -> dict[str, Any]:
    """Submissions to the grader of tasks of every kind."""
    rng, tally = np.random.default_rng(seed), Tally(count)
    tasks = [load_task(name) for name in ("diabetes", "penguin-sex", "seattle-weather", "bbc-news", "digits")]
    sources = [hostile_submissions((task.public / "sample_submission.csv").read_bytes(), rng) for task in tasks]
    for number in range(count):
        task, source = tasks[number % len(tasks)], sources[number % len(tasks)]
        tally.run(lambda task=task, source=source: "valid" if grade(task, next(source)).problem is None else "invalid")  # type: ignore[misc]
    return tally.report()


def fuzz_folders(count: int, *, seed: int) -> dict[str, Any]:
    """Damaged task folders: each loads, or is refused in words."""
    rng, tally, good = np.random.default_rng(seed), Tally(count), load_task("heart-disease").directory

    def load() -> str:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "task"
            shutil.copytree(good, copy)
            damaged(copy, rng)
            try:
                load_task(copy)
            except TaskError:
                return "refused"
            return "loaded"

    for _ in range(count):
        tally.run(load)
    return tally.report()


PARTS = {"folders": fuzz_folders, "submissions": fuzz_submissions, "replies": fuzz_replies, "servers": fuzz_servers}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 1 if anything raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=10_000)
    parser.add_argument("--submissions", type=int, default=2_000)
    parser.add_argument("--folders", type=int, default=1_000)
    parser.add_argument("--servers", type=int, default=1_000, help="replies of a chat server")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run; the others are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args(argv)
    path = chosen.results / "fuzz_replies.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    document: dict[str, Any] = {"machine": machine()} | {name: kept[name] for name in PARTS if name in kept}
    for name in chosen.only:
        started = perf_counter()
        document[name] = PARTS[name](getattr(chosen, name), seed=chosen.seed)
        document[name]["wall_s"] = round(perf_counter() - started, 1)
        print(name, json.dumps(document[name], indent=1), flush=True)
    chosen.results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(document[name]["exceptions"] or document[name].get("over_their_limit") for name in chosen.only))


if __name__ == "__main__":
    raise SystemExit(main())
