"""What a user installs is the whole package, not only what an editable install finds in the source tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "wmrl_gym", source / "wmrl_gym", ignore=shutil.ignore_patterns("__pycache__"))
    expected = {path.relative_to(source).as_posix() for path in (source / "wmrl_gym").rglob("*") if path.is_file()}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        ".",
    ]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    assert "wmrl_gym/py.typed" in expected
    assert expected - carried == set()
    assert any(name.endswith("/LICENSE") for name in carried)
