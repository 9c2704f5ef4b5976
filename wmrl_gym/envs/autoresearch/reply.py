"""What an agent's reply asks for: code to run, the data's description, or nothing that can be understood."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wmrl_gym.envs.autoresearch.static.scripts import read_script
from wmrl_gym.lazy import renamed

MAX_REPLY = 32768
"""The longest reply that is read, in characters."""
_PYTHON = ("python", "py", "python3", "")
_DESCRIBE = re.compile(r"DESCRIBE|<describe[ \t]*/>")
_FENCE = 3
"""The fewest signs of a fence."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What an agent's reply asks for.

    Args:
        kind: code, describe or malformed.
        code: the code; "" unless kind is code.
    """

    kind: Literal["code", "describe", "malformed"]
    code: str = ""


def understand(reply: str) -> ParsedReply:
    r"""Read a reply, in time that is linear in its length; one that is longer than :data:`MAX_REPLY` is malformed.

    The last complete fenced block that is marked ``python``, ``py``, ``python3`` or not marked at all is the code. Without
    one, a line that says ``DESCRIBE`` or ``<describe/>`` and nothing else asks for the data's description.

    >>> understand("Let me try.\n```python\nprint(1)\n```")
    ParsedReply(kind='code', code='print(1)\n')
    >>> understand("First I look at the data.\nDESCRIBE").kind
    'describe'
    >>> understand("```python\nprint(1)").kind
    'malformed'
    """
    if len(reply) > MAX_REPLY:
        return ParsedReply("malformed")
    # Not str.splitlines: a form feed or a line separator may stand inside a line of Python.
    lines = reply.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    code = _last_block(lines)
    if code is not None:
        return ParsedReply("code", code)
    return ParsedReply("describe" if any(_DESCRIBE.fullmatch(line.strip(" \t")) for line in lines) else "malformed")


class _Fence(NamedTuple):
    """A line that opens or closes a block: its signs, and the word after them."""

    signs: str
    word: str


def _fence(line: str) -> _Fence | None:
    """The fence that a line is: at most three spaces, three or more of a sign, and nothing with a backtick after them."""
    if "```" not in line and "~~~" not in line:
        return None
    start = len(line) - len(line.lstrip(" "))
    sign = line[start : start + 1]
    if start > 3 or sign not in ("`", "~"):
        return None
    rest = line[start:].lstrip(sign)
    signs = line[start : len(line) - len(rest)]
    if len(signs) < _FENCE or "`" in rest:
        return None
    after = rest.lstrip(" \t")
    return _Fence(signs, after.split(None, 1)[0] if after and not after[0].isspace() else "")


def _last_block(lines: list[str]) -> str | None:
    """The body of the last complete block of Python; a fence inside a block does not open another."""
    found: tuple[int, int] | None = None
    opened: tuple[_Fence, int] | None = None
    for number, line in enumerate(lines):
        fence = _fence(line)
        if fence is None:
            continue
        if opened is None:
            opened = fence, number + 1
        elif fence.signs.startswith(opened[0].signs) and not fence.word:
            if opened[0].word.lower() in _PYTHON:
                found = opened[1], number
            opened = None
    return None if found is None else "".join(f"{line}\n" for line in lines[slice(*found)])


def syntax_error(code: str) -> str | None:
    """What running the code would print if it does not compile, None if it does.

    Raises:
        ScriptUnreadable: the process that compiles it was lost.

    >>> print(syntax_error("x = = 1"))
      File "/workspace/solution.py", line 1
        x = = 1
            ^
    SyntaxError: invalid syntax
    """
    return read_script(code).error


__getattr__ = renamed(__name__, {"Reply": "ParsedReply"})
