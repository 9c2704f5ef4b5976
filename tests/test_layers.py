"""The layers of the package point one way, as the contracts in ``pyproject.toml`` say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint(root: Path) -> tuple[int, str]:
    """Run import-linter on the package in ``root``: its exit code and what it printed."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", command], cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_import_points_down() -> None:
    code, said = lint(ROOT)
    assert code == 0, said
    assert "0 broken" in said


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("corrections", "import wmrl_gym.wrappers", "Layers point one way"),
        ("data", "def later():\n    from wmrl_gym.world_models import base", "Layers point one way"),
        ("envs", "import wmrl_gym.world_models", "Layers point one way"),
        ("surprise", "", "Layers point one way"),
        ("world_models", "import wmrl_gym.sandbox", "World models know nothing of how outcomes come about"),
        ("envs", "import wmrl_gym.data", "Environments know nothing of being modelled"),
        ("wrappers", "import wmrl_gym.envs", "Wrappers work on any environment"),
        ("corrections", "import torch", "Corrections are mathematics on arrays"),
        ("reports", "import pytest", "The package needs nothing that is not installed with it"),
    ],
)
def test_an_import_that_points_up_breaks_its_contract(tmp_path: Path, module: str, line: str, contract: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "wmrl_gym", tmp_path / "wmrl_gym", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "wmrl_gym" / module).mkdir(exist_ok=True)
    (tmp_path / "wmrl_gym" / module / "__init__.py").touch()
    (tmp_path / "wmrl_gym" / module / "planted.py").write_text(line)
    code, said = lint(tmp_path)
    assert code == 1, said
    assert f"{contract} BROKEN" in said
