"""What an agent's reply asks for: code to run, the data's description, or nothing that can be understood."""

from __future__ import annotations

import functools
import re
import traceback
from dataclasses import dataclass
from typing import Literal

from wmrl_gym.envs.autoresearch.static.statements import certainly_compiles, unwarned

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$")
_PYTHON = ("python", "py", "python3", "")
_DESCRIBE = re.compile(r"^[ \t]*(?:DESCRIBE|<describe\s*/>)[ \t]*$", re.MULTILINE)
SCRIPT = "/workspace/solution.py"
"""What a sandbox calls the script in a traceback."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, understood.

    Args:
        kind: code, describe or malformed.
        code: the code; "" unless kind is code.
    """

    kind: Literal["code", "describe", "malformed"]
    code: str = ""


def understand(reply: str) -> Reply:
    r"""Read a reply.

    The last complete fenced block that is marked ``python``, ``py``, ``python3`` or not marked at all is the code. Without
    one, a line that says ``DESCRIBE`` or ``<describe/>`` and nothing else asks for the data's description.

    >>> understand("Let me try.\n```python\nprint(1)\n```")
    Reply(kind='code', code='print(1)\n')
    >>> understand("First I look at the data.\nDESCRIBE").kind
    'describe'
    >>> understand("```python\nprint(1)").kind
    'malformed'
    """
    code = _last_block(reply)
    if code is not None:
        return Reply("code", code)
    return Reply("describe") if _DESCRIBE.search(reply) else Reply("malformed")


def _last_block(reply: str) -> str | None:
    """The body of the last complete block of Python; a fence inside a block does not open another."""
    found, opened, lines = None, None, list[str]()
    for line in reply.splitlines():
        match = _FENCE.match(line)
        if opened is None:
            if match:
                opened, lines = match, []
        elif match and match[1].startswith(opened[1]) and not match[2]:
            if opened[2].lower() in _PYTHON:
                found = "".join(f"{body}\n" for body in lines)
            opened = None
        else:
            lines.append(line)
    return found


@functools.lru_cache(maxsize=4096)
def syntax_error(code: str) -> str | None:
    """What running the code would print if it does not compile, None if it does.

    >>> print(syntax_error("x = = 1"))
      File "/workspace/solution.py", line 1
        x = = 1
            ^
    SyntaxError: invalid syntax
    """
    if certainly_compiles(code, lambda piece: _compile_error(piece) is None):
        return None
    return _compile_error(code)


def _compile_error(code: str) -> str | None:
    try:
        with unwarned():
            compile(code, SCRIPT, "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = code.splitlines()
        if error.text is None and error.lineno is not None and error.lineno <= len(lines):
            error.text = lines[error.lineno - 1]  # the compiler's later stages look for it in a file
        return "".join(traceback.format_exception_only(error)).rstrip()
    except (ValueError, MemoryError, RecursionError) as error:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return None
