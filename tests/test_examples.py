"""No example is forgotten: the README lists each, and a test runs it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def test_the_readme_lists_the_examples_that_there_are() -> None:
    assert sorted(re.findall(r"\(examples/(\w+)\.py\)", (ROOT / "README.md").read_text())) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_test_runs_each_example(name: str) -> None:
    called = {
        f"{node.func.value.id}.{node.func.attr}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    fixture = {"wmrl_in_one_file": "one_file"}  # loaded by its path
    assert f"{fixture.get(name, name)}.main" in called
