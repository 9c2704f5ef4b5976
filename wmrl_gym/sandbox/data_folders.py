"""Data folders on their way into a sandbox, and temporary folders that go with the process that made them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# A larger data folder is bound into a sandbox made for the one run, rather than copied into one.
COPIED_BYTES = 1 << 28
_NEW_S = 60.0


@dataclass(frozen=True, slots=True)
class DataFolder:
    """What a data folder held when it was looked at.

    Args:
        path: the folder.
        entries: for each file its name relative to the folder, its real path, size in bytes, time of change in ns, and inode; an
            empty folder is named with a slash at its end.
    """

    path: Path
    entries: tuple[tuple[str, str, int, int, int], ...]

    @classmethod
    def scan(cls, path: Path) -> DataFolder:
        """Look at the folder ``path``.

        Raises:
            ValueError: there is no such folder, or a symbolic link in it leads out of it: what lies beside a data folder, such as
                a task's answers, must never get into a sandbox.
        """
        path = Path(path).resolve()
        if not path.is_dir():
            raise ValueError(f"data_dir must be an existing folder, got {str(path)!r}")
        return cls(path, tuple(sorted(_entries(path, path))))

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(size for _, _, size, _, _ in self.entries)

    def check_readable_by_all(self) -> None:
        """Check that an unprivileged user could read the folder if it were bound where that user can reach it.

        Raises:
            ValueError: not every user may read it.
        """
        files = [Path(path) for _, path, *_ in self.entries if path]
        folders = {self.path} | {folder for path in files for folder in path.parents if folder.is_relative_to(self.path)}
        for path in (*folders, *files):
            needed = 0o005 if path in folders else 0o004
            if path.stat().st_mode & needed != needed:
                size = COPIED_BYTES >> 20
                raise ValueError(f"a data folder larger than {size} MiB must be readable by all users, but {str(path)!r} is not")

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Each entry's name and content, one at a time.

        Raises:
            ValueError: a file cannot be read.
        """
        for name, path, *_ in self.entries:
            try:
                yield name, Path(path).read_bytes() if path else b""
            except OSError as error:
                raise ValueError(f"a data folder's files must be readable, but {path!r} is not: {error.strerror}") from error


def _entries(root: Path, folder: Path) -> Iterator[tuple[str, str, int, int, int]]:
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
            if not Path(real).is_relative_to(root):
                raise ValueError(f"a data folder may not link to what is outside of it, but {entry.path!r} links to {real!r}")
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, Path(entry.path))
        elif entry.is_file():
            status = entry.stat()
            yield os.path.relpath(entry.path, root), entry.path, status.st_size, status.st_mtime_ns, status.st_ino
    if not entries and folder != root:
        yield f"{os.path.relpath(folder, root)}/", "", 0, 0, 0


class LeasedFolder:
    """A temporary folder with a lock on it that ends with this process, so that others can tell what it left when it was killed.

    A process id would not tell: it means another process in every container.

    Args:
        prefix: of its name.

    Raises:
        OSError: no temporary folder can be made; the message names the variable to set.
    """

    def __init__(self, prefix: str) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}-"))
        except OSError as error:
            advice = "set TMPDIR to a folder that can be written"
            raise OSError(error.errno, f"no temporary folder can be made ({error.strerror}): {advice}") from error
        self._lease = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lease, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all that is in it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        lease, self._lease = self._lease, -1
        if lease >= 0:
            os.close(lease)

    @staticmethod
    def sweep(prefix: str) -> None:
        """Remove those whose process has ended; one that was made just now may not have its lock yet."""
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
            with suppress(OSError):
                if time.time() - path.stat().st_ctime < _NEW_S:
                    continue
                lease = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lease)
