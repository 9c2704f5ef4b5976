"""Make the image that containers run: from a base image, or from this machine where none can be pulled."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import IO

from .base import SandboxUnavailable
from .docker import IMAGE, connect
from .local import PREIMPORT
from .visible import DATA_FOLDERS, Interpreter, covered_paths, is_within

BASE = "python:3.11-slim"
MACHINE = f"{IMAGE}-base"
"""The base image that is made of this machine."""
PACKAGES = ("numpy", "pandas", "scipy", "scikit-learn")
_PACKAGES = "/opt/wmrl/site-packages"
"""Where the image has this machine's packages, which may be in a folder here that a container covers, such as /tmp."""
_SKIPPED = re.compile(r"tests?|idlelib|tkinter|turtledemo|ensurepip|site-packages|config-.*")


def dockerfile() -> str:
    """The text of the image's Dockerfile."""
    return (files("wmrl_gym.sandbox") / "image" / "Dockerfile").read_text(encoding="utf-8")


def build(*, base: str = BASE, tag: str = IMAGE, packages: tuple[str, ...] = PACKAGES, network: str | None = None) -> str:
    """Build the image.

    Args:
        base: the image to start from.
        tag: the name to give it.
        packages: what to install where the base lacks the usual libraries.
        network: the engine's network mode while it builds, such as "host"; None for its default.

    Returns:
        The image's id.

    Raises:
        SandboxUnavailable: there is no engine, or the build failed.
    """
    client = connect(None)
    arguments = {"BASE": base, "PACKAGES": " ".join(packages), "HIDDEN": " ".join(DATA_FOLDERS)}
    try:
        image, _ = client.images.build(
            fileobj=io.BytesIO(dockerfile().encode()), tag=tag, buildargs=arguments, network_mode=network, rm=True, forcerm=True
        )
        return str(image.id)
    except Exception as error:
        raise SandboxUnavailable(
            f"the image could not be built from {base!r}: {error}; where no image can be pulled, `wmrl sandbox build "
            f"--from-this-machine` makes the base of this machine's own interpreter"
        ) from error
    finally:
        client.close()


def import_machine(tag: str = MACHINE) -> str:
    """Make a base image of this machine's interpreter, libraries and packages, and return its name.

    Raises:
        SandboxUnavailable: there is no engine, or it refused the image.
    """
    client = connect(None)
    changes = [
        f"ENV PATH={Path(os.path.realpath(sys.executable)).parent}:/usr/bin:/bin",
        f"ENV PYTHONPATH={_PACKAGES}",
    ]
    try:
        with tempfile.TemporaryFile() as file:
            write_archive(file)
            file.seek(0)
            client.api.import_image_from_data(file, repository=tag, changes=changes)
        return tag
    except Exception as error:
        raise SandboxUnavailable(f"docker could not import this machine's files: {error}") from error
    finally:
        client.close()


def write_archive(file: IO[bytes]) -> None:
    """Write a tar archive with the interpreter, :data:`PACKAGES`, and the shared libraries that they have open.

    Raises:
        SandboxUnavailable: answers lie where they cannot be told from these.
    """
    with tarfile.open(fileobj=file, mode="w") as archive:
        done: set[str] = set()
        covered = covered_paths(Interpreter.of(None))
        for path in ("/bin/sh", *_interpreter(), *_libraries(), *_distributions()):
            if not any(is_within(os.path.realpath(path), folder) for folder in covered):
                _add(archive, path, done)


def _add(archive: tarfile.TarFile, path: str, done: set[str]) -> None:
    """Add one file under its own path, readable by all; a link as the file that it leads to, unless both are below one folder."""
    for target in dict.fromkeys((os.path.realpath(path), path)):
        if target in done or not os.path.isfile(target):
            continue
        done.add(target)
        inside = _inside(target)
        for parent in [*reversed(Path(inside).parents)][1:]:
            if str(parent) not in done:
                done.add(str(parent))
                folder = tarfile.TarInfo(str(parent))
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder)
        real = os.path.realpath(target)
        member = archive.gettarinfo(real, arcname=inside)
        member.mode, member.uid, member.gid, member.uname, member.gname = member.mode | 0o444, 0, 0, "root", "root"
        if member.mode & 0o100:
            member.mode |= 0o111
        member.type, member.linkname = tarfile.REGTYPE, ""
        member.size = os.path.getsize(real)
        with open(real, "rb") as content:
            archive.addfile(member, content)


def _inside(path: str) -> str:
    """Where the image has a file."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        if path.startswith(f"{folder}/"):
            return f"{_PACKAGES}/{path.removeprefix(f'{folder}/')}"
    return path


def _interpreter() -> Iterator[str]:
    real = os.path.realpath(sys.executable)
    yield real
    for name in ("python3", os.path.basename(real)):
        yield os.path.join(os.path.dirname(real), name)
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        base = folder.replace(sys.prefix, sys.base_prefix, 1)
        yield from _walk(base)


def _walk(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _SKIPPED.fullmatch(name)]
        yield from (os.path.join(place, name) for name in names if not name.endswith(".a"))


_OPENED = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        pass  # what cannot be imported here could not be imported there
print("\\n".join(sorted({line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if ".so" in line})))
"""


def _libraries() -> Iterator[str]:
    """Every shared library that is open once all that code may want has been imported, and the loader.

    Those of packages come with their package: one alone, of a package that another only looks for, would pass for the whole.
    """
    packages = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
    dynamic = Path(sysconfig.get_path("platstdlib").replace(sys.prefix, sys.base_prefix, 1), "lib-dynload")
    names = [path.name.split(".")[0] for path in dynamic.glob("*.so")]
    command = [sys.executable, "-W", "ignore", "-c", _OPENED, *PREIMPORT, *names]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith(packages):
            continue
        # A library is asked for by another name than that of its file: by a link beside it.
        path = Path(line)
        for beside in path.parent.glob(f"{path.name.split('.so')[0]}.so*"):
            if beside.resolve() == path.resolve():
                yield str(beside)
                if str(beside).startswith("/usr/lib/"):
                    yield str(beside).removeprefix("/usr")
    for loader in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"):
        if os.path.exists(loader):
            yield loader


def _distributions() -> Iterator[str]:
    """The files of the packages and of what they require, compiled ones included, without the data that tasks are made from."""
    waiting, seen = list(PACKAGES), set()
    roots: dict[str, None] = {}
    while waiting:
        name = waiting.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found.requires or ():
            if "extra ==" not in line:
                waiting.append(re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0])
        for file in found.files or ():
            if file.parts[0] != "..":
                roots.setdefault(str(Path(str(found.locate_file(file.parts[0])))))
    for root in roots:
        if os.path.isdir(root):
            yield from (path for path in _walk(root) if not any(f"/{hidden}/" in path for hidden in DATA_FOLDERS))
        else:
            yield root
