"""Files are there whole or as they were, and a place that cannot be written is named with what to do."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.synchronize
import os
import threading
from pathlib import Path

import pytest

from wmrl_gym.files import CannotWrite, folder_made_anew, locked, write_json, write_text, write_whole, writing


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "it"
    write_text(path, "old")

    def half(part: Path) -> None:
        part.write_text("ne")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_whole(path, half)
    assert (path.read_text(), names(tmp_path)) == ("old", ["it"])
    write_json(path, {"a": 1})
    assert path.read_text() == '{\n "a": 1\n}\n'


def test_two_writers_of_one_path_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "it"

    def outer(part: Path) -> None:
        part.write_text("outer")
        write_text(path, "inner")  # another one begins and ends meanwhile
        assert path.read_text() == "inner"

    write_whole(path, outer)
    assert (path.read_text(), names(tmp_path)) == ("outer", ["it"])


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "there is no permission to write there"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EEXIST, "what is there is a file, not a folder"),
        (errno.ENAMETOOLONG, "a name in its path is too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path, number: int, why: str) -> None:
    with (
        pytest.raises(CannotWrite, match=f"cannot write .*: {why}; set WMRL_HOME") as raised,
        writing(tmp_path, advice="set WMRL_HOME"),
    ):
        raise OSError(number, os.strerror(number), str(tmp_path))
    assert raised.value.errno == number


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    write_text(path, "old")

    def write(part: Path) -> None:
        part.write_text("half")
        Path("/dev/full").write_text("the rest")

    with pytest.raises(CannotWrite, match="the disk is full; make room"):
        write_whole(path, write)
    assert (path.read_text(), names(tmp_path)) == ("old", ["it"])


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError), writing(tmp_path, advice="nothing"):
        raise InterruptedError(errno.EINTR, "interrupted")


def test_a_folder_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with folder_made_anew(path) as part:
        (part / "a").touch()
        assert not path.exists()

    def fail() -> None:
        with folder_made_anew(path) as part:
            (part / "b").touch()
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    assert names(path) == ["a"]
    with folder_made_anew(path) as part:
        (part / "c").touch()
    assert (names(path), names(tmp_path)) == (["c"], ["set"])


def _hold(folder: Path, entered: multiprocessing.synchronize.Event, leave: multiprocessing.synchronize.Event) -> None:
    with locked(folder):
        entered.set()
        leave.wait(60)


def test_a_lock_waits_for_another_process_and_ends_with_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, entered, leave))
    other.start()
    assert entered.wait(60)
    told: list[bool] = []

    def waiting() -> None:
        told.append(True)
        other.kill()

    with locked(tmp_path, waiting=waiting):
        assert told == [True]
    other.join()


def test_a_lock_leaves_nothing_and_is_one_at_a_time_among_many(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(30):
            with locked(tmp_path / "folder"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, names(tmp_path / "folder")) == (1, [])
