"""Replies: which code is run, and what is answered without running anything."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.envs.autoresearch.reply import syntax_error, understand
from wmrl_gym.envs.autoresearch.static.facts import SCRIPT
from wmrl_gym.sandbox import Limits, Sandbox


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("```py\na = 1\n```\nthen\n```python\na = 2\n```\nbye", "a = 2\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```Python3\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\n```python\nunfinished", "a = 1\n"),
        ("```bash\nls\n```\nand\n```python\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\n```bash\nls\n```", "a = 1\n"),
        ("````python\ntext = '''\n```\n'''\n````", "text = '''\n```\n'''\n"),
        ("~~~python\na = 1\n~~~", "a = 1\n"),
        ("DESCRIBE\n```python\na = 1\n```", "a = 1\n"),
        ("```python\r\na = 1\r\n```\r\n", "a = 1\n"),
        ("```python\n```", ""),
    ],
)
def test_the_last_complete_block_of_python_is_the_code(reply: str, code: str) -> None:
    understood = understand(reply)
    assert (understood.kind, understood.code) == ("code", code)


@pytest.mark.parametrize(
    "reply", ["DESCRIBE", "I would like to look.\n  DESCRIBE  \n", "<describe/>", "<describe />", "```bash\nls\n```\nDESCRIBE"]
)
def test_a_line_that_says_describe_asks_for_the_description(reply: str) -> None:
    assert understand(reply).kind == "describe"


@pytest.mark.parametrize(
    "reply", ["", "hello", "describe", "please DESCRIBE it", "```python\na = 1", "```bash\nls\n```", "`a = 1`"]
)
def test_anything_else_is_malformed(reply: str) -> None:
    assert understand(reply).kind == "malformed"


@given(st.text(alphabet="`~pythonDESCRIBE \n\r<>/", max_size=80))
def test_any_reply_is_understood_as_something(reply: str) -> None:
    understood = understand(reply)
    assert (understood.code == "") or understood.kind == "code"


BROKEN = ["x = = 1", "def f(:\n    pass", "  x = 1\n y = 2", "print('a", "return 1", "x = 1\n  y = 2", "f(**a, *b)", "é = ) 1"]


@pytest.mark.parametrize("code", BROKEN)
def test_a_syntax_error_is_told_exactly_as_running_it_would(code: str, sandbox: Sandbox) -> None:
    message = syntax_error(code)
    result = sandbox.run(code, data_dir=None, limits=Limits(wall_s=20))
    assert message is not None
    assert result.exit_code == 1
    assert result.stderr.strip("\n") == message
    assert SCRIPT in message


@pytest.mark.parametrize("code", ["", "x = 1", "raise SystemExit(3)", "import nothing_of_that_name", "'\\d'", "x is 1"])
def test_what_compiles_is_not_a_syntax_error_even_where_warnings_are_errors(code: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert syntax_error(code) is None


ROOT = Path(__file__).parents[2]


def test_code_that_no_compiler_can_take_is_a_syntax_error_and_not_a_crash(tmp_path: Path) -> None:
    assert syntax_error("x = 1\0") is not None
    deep = tmp_path / "deep.py"
    deep.write_text(
        "from wmrl_gym.envs.autoresearch.reply import syntax_error\nprint(syntax_error('(' * 5000 + ')' * 5000) is not None)\n"
    )
    done = subprocess.run([sys.executable, str(deep)], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout == "True\n"


def test_compiling_on_several_threads_leaves_the_filters_of_warnings_alone() -> None:
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [syntax_error("'\\d'") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
