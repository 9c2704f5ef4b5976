"""Join control groups, become an unprivileged user if we are root, and run bubblewrap.

Run as a script of its own: ``python launch.py '<json>'``. An interpreter under ``/root``, say, cannot be reached by anyone else,
so root first binds it to a neutral place, in a mount namespace that only bubblewrap will see.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from typing import Any

STAGE = "/tmp"
_CLONE_NEWNS, _MS_NOSUID_NODEV, _MS_BIND_REC, _MS_PRIVATE_REC = 0x20000, 2 | 4, 4096 | 16384, (1 << 18) | 16384


def main(config: dict[str, Any]) -> None:
    """Prepare and execute.

    Args:
        config: "groups", files of control groups to join; "die_first", whether the kernel is to kill this when memory runs out
            rather than others; "argv", the command; "uid", the user and group to become, None to stay; and for another user
            "binds", paths to stage as ``STAGE/<index>``, and "copies", folders to copy to ``STAGE/copy<index>``, readable by all.
    """
    for path in config["groups"]:
        with open(path, "w") as file:
            file.write("0")
    if config["die_first"]:  # /proc will be read-only by then
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    if config["uid"] is not None:
        _stage(config["binds"], config["copies"])
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
    os.execv(config["argv"][0], config["argv"])


def _stage(paths: list[str], folders: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(libc, "none", "/", "", _MS_PRIVATE_REC)
    binds = [(os.open(path, os.O_PATH | os.O_CLOEXEC), os.path.isdir(path)) for path in paths]
    copies = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in folders]
    _mount(libc, "tmpfs", STAGE, "tmpfs", _MS_NOSUID_NODEV)
    os.chmod(STAGE, 0o755)
    for index, (fd, is_folder) in enumerate(binds):
        target = f"{STAGE}/{index}"
        if is_folder:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
        _mount(libc, f"/proc/self/fd/{fd}", target, "", _MS_BIND_REC)
    for index, fd in enumerate(copies):
        _copy(f"/proc/self/fd/{fd}", f"{STAGE}/copy{index}")


def _copy(source: str, target: str) -> None:
    os.umask(0o022)
    shutil.copytree(f"{source}/", target, copy_function=shutil.copyfile)
    for folder, _, files in os.walk(target):
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644)


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str, flags: int) -> None:
    result = libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _check(result, f"mount {source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
