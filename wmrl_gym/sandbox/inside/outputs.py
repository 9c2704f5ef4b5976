"""What comes out of a sandbox: text of any length, kept within a bound, and one file, of which nothing is trusted."""

from __future__ import annotations

import errno
import os
import stat


class Capture:
    """Keeps the beginning and the end of a stream of bytes; a traceback is at the end, what led to it at the beginning.

    Args:
        limit: bytes to keep at most, the marker line included.

    >>> kept = Capture(100)
    >>> kept.write(b"a" * 1000)
    >>> text = kept.text()
    >>> len(text) <= 100, "bytes cut" in text, text[0], text[-1]
    (True, True, 'a', 'a')
    """

    def __init__(self, limit: int) -> None:
        self._room = max(limit - len(self._marker(2**62)), 2)
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @staticmethod
    def _marker(cut: int) -> str:
        return f"\n[... {cut} bytes cut ...]\n"

    def write(self, data: bytes) -> None:
        """Take more of the stream."""
        self._total += len(data)
        space = self._limit - len(self._head)
        if space > 0:
            self._head += data[:space]
            data = data[space:]
        self._tail += data[-self._limit :]
        if len(self._tail) > 4 * self._limit:
            del self._tail[: -self._limit]

    def text(self) -> str:
        """What was kept, as text; what is no UTF-8 is replaced."""
        if self._total <= self._limit:
            return self._head.decode(errors="replace")
        half = self._room // 2
        tail = (self._head + self._tail)[-half:]
        marker = self._marker(self._total - 2 * half)
        return self._head[:half].decode(errors="replace") + marker + tail.decode(errors="replace")


_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a fifo",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFLNK: "is a symbolic link",
}


def read_submission(path: str, *, limit_mb: int) -> tuple[bytes | None, str | None]:
    """The content of the regular file at ``path``, or None and what is wrong with it.

    Never follows a link, never blocks on a fifo and never reads more than ``limit_mb`` MiB.
    """
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind in _KINDS:
            return None, _KINDS[kind]
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, "missing"
    except OSError as error:
        return None, _KINDS[stat.S_IFLNK] if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None, _KINDS.get(stat.S_IFMT(status.st_mode), "is not a regular file")
        if status.st_size > limit_mb << 20:
            return None, f"larger than {limit_mb} MB"
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(limit_mb << 20), None
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    finally:
        os.close(fd)
