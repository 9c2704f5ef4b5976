"""What users import and pass has a public name, and stands in signatures and docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.engine.options import EngineOptions
from wmrl_gym.wrappers import (
    WorldModelWrapper,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@pytest.mark.parametrize("cls", [WorldModelWrapper, WorldModelVectorEnv])
def test_every_option_stands_in_signature_and_docstring(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters
    for each in dataclasses.fields(EngineOptions):
        if each.metadata["internal"]:
            assert each.name not in parameters
            continue
        assert parameters[each.name].default == each.default
        assert f"{each.name}: {each.metadata['doc']}" in cls.__doc__


def test_what_is_public_is_reachable_after_one_import() -> None:
    code = (
        "import wmrl_gym\n"
        "assert {'factored', 'wrappers', 'world_models'} <= set(dir(wmrl_gym))\n"
        "assert 'keep_old_names' not in dir(wmrl_gym)\n"
        "print(wmrl_gym.wrappers.vector.WorldModelVectorEnv.__name__, wmrl_gym.factored.Factored.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["WorldModelVectorEnv", "Factored"]


def test_readme_docs_and_examples_import_public_names_only() -> None:
    root = Path(__file__).parents[2]
    sources = [*root.glob("examples/*.py"), root / "README.md", *root.glob("docs/*.md")]
    found = set()
    for source in sources:
        for package, names in re.findall(
            r"^\s*from (wmrl_gym[\w.]*) import ([\w, ]+)$", source.read_text(encoding="utf-8"), re.M
        ):
            module = importlib.import_module(package)
            for name in re.findall(r"(\w+)(?: as \w+)?(?:,|$)", names):
                found.add((package, name))
                public = getattr(module, "__all__", None) or dir(module)
                assert name in public, f"{source.name}: {package} does not show {name}"
    assert len(found) > 10
