"""Saves of every kind of model that are killed, that meet another one, or that have nowhere to go."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.world_models.test_checkpoints import MODELS
from wmrl_gym.files import CannotWrite
from wmrl_gym.world_models import load_model

ROOT = Path(__file__).parents[2]
KILLED = """
import os, sys
from pathlib import Path
from tests.world_models.test_checkpoints import MODELS
from wmrl_gym.world_models import load_model
kind, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
left, replace = last, os.replace
def counted(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os._exit(9)  # as SIGKILL would
    return replace(*arguments, **options)
model = MODELS[kind]()
os.replace = counted
Path.replace = lambda self, target: (counted(str(self), str(target)), Path(target))[1]
model.save(folder)
print("saved", last - left)
"""


@pytest.mark.parametrize("kind", MODELS)
def test_wherever_a_save_is_killed_the_folder_holds_a_whole_model(kind: str, tmp_path: Path) -> None:
    MODELS[kind]().save(tmp_path)
    for last in range(4):
        command = [sys.executable, "-c", KILLED, kind, str(tmp_path), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
        load_model(tmp_path)
        if done.stdout.startswith("saved"):
            break
        assert done.returncode == 9, done.stderr
    assert done.stdout.startswith("saved"), done.stderr
    left_over = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith(".lock"))
    assert left_over == []


@pytest.mark.parametrize("kind", MODELS)
def test_two_writers_and_a_reader_of_one_folder_do_not_meet(kind: str, tmp_path: Path) -> None:
    models = [MODELS[kind](), MODELS[kind]()]
    models[0].save(tmp_path)
    failed: list[BaseException] = []

    def save(model: object) -> None:
        try:
            for _ in range(8):
                model.save(tmp_path)  # type: ignore[attr-defined]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        load_model(tmp_path)
    assert failed == []
    load_model(tmp_path)


@pytest.mark.parametrize("kind", MODELS)
def test_a_place_that_cannot_be_written_is_named(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    (tmp_path / "file").write_text("")
    for place, why in ((tmp_path / "file", "a file, not a folder"), (tmp_path / "file/in", "part of its path is a file")):
        with pytest.raises(CannotWrite, match=why):
            model.save(place)
    with pytest.raises(CannotWrite, match="read-only|no permission|cannot be made"):
        model.save("/proc/nowhere")
