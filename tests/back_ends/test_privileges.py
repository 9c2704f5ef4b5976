"""The ordinary user that the other tests run sandboxes as is one, and reaches what they need wherever it lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .privileges import UID, as_ordinary_user, environment

LOOK = "import os, sys; print(os.getresuid(), os.getgroups(), os.listdir(), [p for p in sys.argv[1:] if os.path.exists(p)])"


@pytest.mark.needs_root
def test_an_ordinary_user_reaches_a_folder_below_closed_ones_and_nothing_beside_it(tmp_path: Path) -> None:
    within = tmp_path / "closed" / "closed too" / "within"
    within.mkdir(parents=True)
    (within / "file").touch()
    beside = tmp_path / "closed" / "beside"
    beside.touch()
    for folder in (within.parent.parent, within.parent):
        folder.chmod(0o700)
    looked = subprocess.run(
        [*as_ordinary_user(), sys.executable, "-c", LOOK, beside],
        cwd=within, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert looked.stdout == f"{(UID,) * 3} [] ['file'] []\n", looked.stderr
    assert beside.exists(), "what is covered there is as it was here"
    assert os.stat(within.parent).st_mode & 0o777 == 0o700
