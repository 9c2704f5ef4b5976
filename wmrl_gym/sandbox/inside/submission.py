"""Read the one file that comes out of a sandbox, trusting nothing about it."""

from __future__ import annotations

import errno
import os
import stat

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
