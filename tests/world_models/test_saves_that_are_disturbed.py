"""Saves of every kind of model that are killed, that meet another one, or that have nowhere to go."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import pytest

from tests.world_models.test_checkpoints import MODELS
from wmrl_gym.files import CannotWrite
from wmrl_gym.world_models import WorldModel, load_model


def saved_in_a_child(model: WorldModel, folder: Path, *, last: int) -> int:
    """Save in a forked process that ends, as by SIGKILL, before it replaces file number ``last``; its exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child needs none
        child = os.fork()
    if child == 0:
        left, replace = last, os.replace

        def counted(source: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            replace(source, target)
            return Path(target)

        Path.replace = counted  # type: ignore[assignment, method-assign]
        try:
            model.save(folder)
        finally:
            os._exit(0 if left >= 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", MODELS)
def test_wherever_a_save_is_killed_the_folder_holds_a_whole_model(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    model.save(tmp_path)
    ended = [saved_in_a_child(model, tmp_path, last=last) for last in range(4) if load_model(tmp_path) is not None]
    load_model(tmp_path)
    assert ended[0] == 9
    assert ended[-1] == 0
    assert ended == sorted(ended, reverse=True)
    assert not list(tmp_path.glob(".lock"))


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
    with pytest.raises(CannotWrite, match=r"read-only|no permission|cannot be made"):
        model.save("/proc/nowhere")
