"""Writes files so that each is complete or as it was before, even if a process is killed or several write at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission to write there",
    errno.EPERM: "there is no permission to write there",
    errno.ENOENT: "the folder above it does not exist, and cannot be made",
    errno.ENOTDIR: "a part of its path is a file",
    errno.EEXIST: "what is there is a file, not a folder",
    errno.EISDIR: "what is there is a folder, not a file",
    errno.ENAMETOOLONG: "a name in its path is too long",
    errno.ELOOP: "a link in its path leads back to itself",
}


OUT = "choose another folder with --out"
"""The advice where a command or a function writes a folder of results."""


class CannotWrite(OSError):
    """A place cannot be written; the message names it, says why, and what to do."""

    def __str__(self) -> str:
        return str(self.strerror)


def cache_home() -> Path:
    """Where embedded tasks and cached runs are kept: ``WMRL_HOME``, else the user's cache folder."""
    if "WMRL_HOME" in os.environ:
        return Path(os.environ["WMRL_HOME"])
    import platformdirs

    return Path(platformdirs.user_cache_dir("wmrl-gym"))


@contextlib.contextmanager
def writing(path: str | Path, *, advice: str) -> Iterator[None]:
    """Turn a failure to write in the block into an error that names the place and says what to do.

    Args:
        path: what is written.
        advice: what the user may do about it, such as ``"choose another folder with --out"``.

    Raises:
        CannotWrite: in place of the operating system's own error.
    """
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        where = "" if error.filename is None or str(error.filename) == str(path) else f" (at {error.filename})"
        message = f"cannot write {path}{where}: {_REASONS[error.errno]}; {advice}"
        raise CannotWrite(error.errno, message) from error


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file beside ``path``, which takes its place when it is complete and on disk.

    The name of the file beside it is nobody else's, so that two processes may write the same path; the last one stays.

    Raises:
        CannotWrite: the place cannot be written; what was there is whole.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    with writing(path, advice="make room there, or choose another place"):
        try:
            write(part)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON that people can read, whole."""
    write_text(path, json.dumps(document, indent=1) + "\n")


@contextlib.contextmanager
def folder_made_anew(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``path`` when the block has ended without an error; until then the old one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    part.mkdir()
    try:
        yield part
        if path.exists():
            old = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
            path.rename(old)
            part.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_begun(folder: Path, marker: str, *, what: str, differing: Callable[[Any], list[str]], error: type[ValueError]) -> bool:
    """Whether a folder holds a run already, which goes on there; it is made where it is missing.

    Args:
        folder: of the run.
        marker: the file, JSON, that says which run a folder holds.
        what: the run, in words, such as ``"a comparison"``.
        differing: names the settings in which the run that the document is of is another one.
        error: raised where the folder holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / marker
    if not path.is_file():
        if any(each.name != ".lock" for each in folder.iterdir()):
            raise error(f"{folder} holds other files, and no {what.split()[-1]}: choose another folder with --out")
        return False
    names = differing(json.loads(path.read_text(encoding="utf-8")))
    if names:
        raise error(
            f"{folder} holds {what} with other settings ({', '.join(names)}): "
            "choose another folder with --out, or begin anew with --fresh"
        )
    return True


@contextlib.contextmanager
def locked(folder: Path, *, waiting: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Lock a folder for the block, so that only one process works in it; it is made where it is missing.

    The lock ends with the process that holds it, however it ends; the file that is locked is removed with it.

    Args:
        folder: where a file ``.lock`` is made and locked.
        waiting: called once, if another process works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, told = folder / ".lock", False
    while True:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock.fileno(), path):  # whoever held it has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
