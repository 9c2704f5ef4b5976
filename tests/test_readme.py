"""Everything that the README and the documentation tell a reader to type works as written.

Each ```` ```python ```` block runs as a script of its own, in an empty directory; a block under ``<!-- continues -->`` goes on
where the block before it ended. Shell blocks are not run (they install and train) but each command's target, subcommand, option,
module or extra must exist.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CONTINUES = "<!-- continues -->"
SHELLS = frozenset({"bash", "console", "sh", "shell"})
INERT = frozenset({"bibtex", "csv", "json", "mermaid", "text", "toml", "yaml"})
"""Languages of blocks that nobody runs."""
ORDINARY = frozenset({"cd", "git", "source"})
"""Commands that need nothing of ours."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Args:
        source: the document's name, for messages.
        line: line number of its first line of text, from 1.
        language: what stands after the opening fence.
        text: what stands between the fences.
        continues: whether it goes on where the block before it ended.
    """

    source: str
    line: int
    language: str
    text: str
    continues: bool


def blocks(document: str, source: str) -> list[Block]:
    """The fenced blocks of a Markdown document, in order."""
    found = []
    for match in FENCE.finditer(document):
        before = document[: match.start()]
        indent = len(match["indent"])
        text = "".join(line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in match["text"].splitlines(keepends=True))
        continues = before.rstrip().endswith(CONTINUES)
        found.append(Block(source, before.count("\n") + 2, match["language"], text, continues))
    return found


def scripts(found: Sequence[Block]) -> list[Block]:
    """The Python blocks as scripts: blocks that continue joined to what they continue, each at its line of the document."""
    joined: list[Block] = []
    for block in found:
        if block.language != "python":
            continue
        if not block.continues:
            joined.append(block)
            continue
        if not joined or joined[-1].source != block.source:
            raise ValueError(f"{block.source}:{block.line} continues, but no python block stands before it")
        last = joined[-1]
        gap = block.line - last.line - last.text.count("\n")
        joined[-1] = Block(last.source, last.line, last.language, last.text + "\n" * gap + block.text, last.continues)
    return joined


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, as words, without what stands before them in the environment."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":  # the rest is output
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in (*lexer, ";"):
            if set(word) <= set(";&|"):
                found.append(words)
                words = []
            elif words or not re.match(r"[A-Za-z_]\w*=", word):
                words.append(word)
    return [words for words in found if words]


def complaints(words: Sequence[str]) -> Iterator[str]:
    """What is wrong with a command, given as words."""
    name, rest = Path(words[0]).name, list(words[1:])
    if name == "make":
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        yield from (f"no make target {word!r}" for word in rest if not re.match(r"-|\w+=", word) and word not in targets)
    elif name == "wmrl":
        yield from wmrl_complaints(rest)
    elif name in {"python", "python3"} and rest[:1] == ["-m"]:
        module = rest[1]
        if module != "pip" and find_module(module) is None:
            yield f"no module {module!r}"
        elif module == "pip":
            yield from pip_complaints(rest[2:])
    elif name in {"python", "python3"} and rest[:1] == ["-c"]:
        yield from run([sys.executable, "-c", rest[1]], ROOT)
    elif name in {"python", "python3"}:
        yield from (f"no file {word!r}" for word in rest[:1] if not (ROOT / word).is_file())
    elif name == "pip":
        yield from pip_complaints(rest)
    elif name not in ORDINARY:
        yield f"unknown command {name!r}: teach this test how to check it"


def wmrl_complaints(rest: Sequence[str]) -> Iterator[str]:
    """What is wrong with the arguments of ``wmrl``: its help must know the subcommand and name each option."""
    code = "import sys; from wmrl_gym.cli import main; sys.exit(main())"
    subcommand = [word for word in rest[:1] if not word.startswith("-")]
    done = subprocess.run(
        [sys.executable, "-c", code, *subcommand, "--help"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        yield f"no wmrl subcommand {' '.join(subcommand)!r}: {done.stderr.strip()}"
        return
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("-") and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout):
            yield f"wmrl {' '.join(subcommand)} has no option {option!r}"


def pip_complaints(rest: Sequence[str]) -> Iterator[str]:
    """What is wrong with the arguments of ``pip``: it must install this project, with extras that exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in rest[1:]:
        match = re.fullmatch(r"(?P<name>\.|[A-Za-z][\w-]*)(?:\[(?P<extras>[\w,-]+)\])?", word)
        if match is None:
            continue
        if match["name"] not in {".", project["name"]} and not (ROOT / word).exists():
            yield f"pip installs {word!r}, which is not {project['name']}"
        for extra in (match["extras"] or "").split(","):
            if extra and extra not in project["optional-dependencies"]:
                yield f"no extra {extra!r}"


def find_module(name: str) -> object | None:
    """The module's spec, or ``None``; packages above it are imported."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def environment() -> dict[str, str]:
    """Ours, in which the checked-out package comes first."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))}


def run(command: Sequence[str], directory: Path) -> Iterator[str]:
    """Run ``command`` in ``directory``; what it wrote to stderr if it failed."""
    done = subprocess.run(
        command, cwd=directory, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        yield f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def run_script(script: Block, directory: Path) -> list[str]:
    """Run a Python block as a file, whose tracebacks name the lines of the document; what went wrong."""
    path = directory / f"{Path(script.source).stem}_line_{script.line}.py"
    path.write_text("\n" * (script.line - 1) + script.text, encoding="utf-8")
    return list(run([sys.executable, str(path)], directory))


def documents() -> list[Block]:
    """The blocks of all that the project tells its readers."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        block
        for path in paths
        if path.exists()
        for block in blocks(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


def cases(found: Sequence[Block]) -> list[object]:
    """Test cases, one a block; ``None`` where there are none, for a test that must then fail instead of vanishing."""
    return [pytest.param(block, id=f"{block.source}:{block.line}", marks=needs(block)) for block in found] or [
        pytest.param(None, id="none")
    ]


def needs(block: Block) -> list[pytest.MarkDecorator]:
    """What a script needs that not every machine has: robots are seen, but for the state variant's."""
    seen = block.language == "python" and re.search(r"wmrl/(VLA-|VLAManipulation-|LIBERO-)", block.text)
    return [pytest.mark.needs_gl] if seen else []


@pytest.mark.parametrize("script", cases(scripts(documents())))
def test_every_python_block_runs(script: Block | None, tmp_path: Path) -> None:
    assert script is not None, "README.md has no python block"
    assert run_script(script, tmp_path) == []


@pytest.mark.parametrize("block", cases([block for block in documents() if block.language in SHELLS]))
def test_every_shell_command_exists(block: Block | None) -> None:
    assert block is not None, "README.md has no shell block"
    assert [complaint for words in commands(block) for complaint in complaints(words)] == []


def test_the_readme_shows_python_and_says_what_to_type() -> None:
    languages = {block.language for block in documents() if block.source == "README.md"}
    assert "python" in languages
    assert languages & SHELLS


def test_every_block_names_a_language_that_is_checked_or_never_run() -> None:
    unknown = [f"{b.source}:{b.line} {b.language!r}" for b in documents() if b.language not in {"python", *SHELLS, *INERT}]
    assert unknown == []


SMALL = f"""# A document

```python
x = 1
```

- in a list:

  ```python
  if True:
      y = 2
  ```

{CONTINUES}
```python
assert (x_is := y) == 2
```

```bash
# comment
A=1 make demo X=2 && wmrl demo \\
  --seconds 20
```

```console
$ make test
12 passed
```
"""


def test_blocks_keep_language_line_and_indentation() -> None:
    found = blocks(SMALL, "small.md")
    assert [(b.language, b.line, b.continues) for b in found] == [
        ("python", 4, False),
        ("python", 10, False),
        ("python", 16, True),
        ("bash", 20, False),
        ("console", 26, False),
    ]
    assert found[1].text == "if True:\n    y = 2\n"


def test_blocks_that_continue_join_the_one_before_at_their_own_line(tmp_path: Path) -> None:
    first, second = scripts(blocks(SMALL, "small.md"))
    assert (first.line, second.line) == (4, 10)
    assert second.text.splitlines()[16 - 10] == "assert (x_is := y) == 2"
    assert run_script(first, tmp_path) == run_script(second, tmp_path) == []


def test_a_block_that_continues_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"small\.md:3 continues"):
        scripts(blocks(f"{CONTINUES}\n```python\nx = 1\n```\n", "small.md"))


def test_a_failing_block_is_reported_with_its_line(tmp_path: Path) -> None:
    (script,) = scripts(blocks("text\n\n```python\nx = 1\n1 / 0\n```\n", "small.md"))
    (said,) = run_script(script, tmp_path)
    assert "line 5" in said
    assert "ZeroDivisionError" in said


def test_commands_are_split_and_freed_of_comments_prompts_and_output() -> None:
    bash, console = (block for block in blocks(SMALL, "small.md") if block.language in SHELLS)
    assert commands(bash) == [["make", "demo", "X=2"], ["wmrl", "demo", "--seconds", "20"]]
    assert commands(console) == [["make", "test"]]


@pytest.mark.parametrize(
    "line",
    [
        "make demo test DEMO_ARGS='--seconds 20'",
        "python -m pytest -q",
        "python -c 'import wmrl_gym'",
        "pip install 'wmrl-gym[sb3,tasks]'",
        "python3 -m pip install -e '.[dev]'",
        "git clone somewhere && cd wmrl-gym",
    ],
)
def test_commands_that_exist_pass(line: str) -> None:
    (block,) = blocks(f"```bash\n{line}\n```\n", "small.md")
    assert [complaint for words in commands(block) for complaint in complaints(words)] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make nonsense", "no make target 'nonsense'"),
        ("wmrl nonsense", "no wmrl subcommand 'nonsense'"),
        ("python -m wmrl_gym.nonsense", "no module 'wmrl_gym.nonsense'"),
        ("python -m nonsense.sense", "no module 'nonsense.sense'"),
        ("python nonsense.py", "no file 'nonsense.py'"),
        ("python -c 'import nonsense'", "No module named 'nonsense'"),
        ("pip install 'wmrl-gym[nonsense]'", "no extra 'nonsense'"),
        ("pip install nonsense", "which is not wmrl-gym"),
        ("frobnicate", "unknown command 'frobnicate'"),
    ],
)
def test_commands_that_do_not_exist_are_reported(line: str, said: str) -> None:
    (block,) = blocks(f"```bash\n{line}\n```\n", "small.md")
    (complaint,) = [complaint for words in commands(block) for complaint in complaints(words)]
    assert said in complaint
