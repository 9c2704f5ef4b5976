"""Of a private folder not even sizes and times are to be had, wherever the task lies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wmrl_gym.sandbox import Limits, LocalSandbox

SIZE, TIME = 123_457, 1_000_000_123
LOOK = """
import os, time
seen = 0
for place in ({places}, "/data", "/data/..", "/tmp", "/workspace", "/runner", "/proc/1/root{task}", "/proc/self/root{task}"):
    for folder, folders, names in os.walk(place):
        for name in [".", "..", *folders, *names]:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            seen += 1
            if found.st_size == {size} or {time} in map(int, (found.st_mtime, found.st_atime, found.st_ctime)):
                print("GOT", os.path.join(folder, name))
print("seen", seen > 3)
"""


@pytest.fixture(params=["outside of what is shown", "inside"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A task whose private folder has a size and times that nothing else has."""
    shown = Path("/usr/local/share")
    if request.param == "inside" and not os.access(shown, os.W_OK):
        place: Path = tmp_path / "venv" / "share"
        place.mkdir(parents=True)
    else:
        place = shown if request.param == "inside" else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root = Path(folder)
        for part, content in (("public", b"id,y\n"), ("private", bytes(SIZE))):
            (root / part).mkdir()
            (root / part / "file.csv").write_bytes(content)
        for path in (root / "private/file.csv", root / "private"):
            os.utime(path, (TIME, TIME))
        yield root


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_sizes_and_times_of_answers_are_nowhere_to_be_seen(task: Path, warm: bool) -> None:
    places = ", ".join(map(repr, (str(task), str(task.parent))))
    with LocalSandbox(preimport=(), warm=warm) as sandbox:
        result = sandbox.run(
            LOOK.format(places=places, task=task, size=SIZE, time=TIME), data_dir=task / "public", limits=Limits(wall_s=60)
        )
    assert result.stdout == "seen True\n", result
