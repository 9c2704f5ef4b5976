"""``wmrl collect``: real episodes of any environment, by a scripted expert or at random, as data sets that others read."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from wmrl_gym.commands.settings import alone_in, settings_of

FORMATS = ("minari", "lerobot")
_SEEDS = 2**31
_LONGEST_NAME = 200
"""Characters of a folder's name, which has 30 more while it is written, of the 255 that file systems allow."""


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    collect = commands.add_parser("collect", help="record real episodes to Minari and LeRobot data sets")
    collect.add_argument("env", help="id of an environment, such as wmrl/VLAManipulation-v0")
    collect.add_argument("--episodes", type=int, default=10, help="of each task (default: 10)")
    collect.add_argument("--task", default=None, help="names of tasks, separated by commas (default: the environment's own)")
    collect.add_argument("--expert", action="store_true", help="the environment's scripted expert acts, not chance")
    collect.add_argument("--format", default="minari", help="minari, lerobot, or both with a comma (default: minari)")
    collect.add_argument("--out", type=Path, default=None, help="folder (default: runs/collect/ENV)")
    collect.add_argument("--name", default=None, help="of the Minari data set (default: wmrl/ENV-POLICY-v0)")
    collect.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    collect.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment, in JSON")
    collect.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Collect what is missing, write the data sets, and print success rates; returns the exit status."""
    import gymnasium as gym

    from wmrl_gym.commands import complain, plain_console
    from wmrl_gym.data.demonstrations import CollectionError
    from wmrl_gym.files import CannotWrite

    try:
        formats = _formats(arguments.format)
        options = _options(arguments.set, arguments.task)
        _check_seeds(arguments)
        if arguments.name is not None:
            _check_name(arguments.name)
        env = _made(arguments.env, options)
        if arguments.out is None:
            arguments.out = Path("runs/collect") / arguments.env.rpartition("/")[2].removesuffix("-v0")
        try:
            with alone_in(arguments.out):
                _collect(env, arguments, options, formats=formats, console=plain_console())
        finally:
            env.close()
    except (ValueError, CannotWrite, CollectionError, NotImplementedError, gym.error.Error) as error:
        return complain("collect", error)
    return 0


def _check_seeds(arguments: argparse.Namespace) -> None:
    """Check that every episode has a seed that environments take and data sets keep."""
    total = arguments.episodes * (1 if arguments.task is None else len(arguments.task.split(",")))
    if arguments.episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {arguments.episodes}")
    if arguments.seed < 0 or arguments.seed + total > _SEEDS:
        raise ValueError(
            f"seeds must lie in [0, {_SEEDS}), and with --seed {arguments.seed} those of {total} episodes would go from "
            f"{arguments.seed} to {arguments.seed + total - 1}"
        )


def _check_name(name: str) -> None:
    """Check the name of a data set before anything is collected for it."""
    if not re.search(r"-v\d+$", name):
        raise ValueError(f"--name must end with a version, such as -v0, got {name!r}")
    if not re.fullmatch(r"([\w-]+/)*[\w-]+-v\d+", name, re.ASCII):
        raise ValueError(f"--name must be made of letters, digits, - and _, in parts with / between them, got {name!r}")
    longest = max(map(len, name.split("/")))
    if longest > _LONGEST_NAME:
        raise ValueError(f"the parts of --name must have at most {_LONGEST_NAME} characters, got one of {longest}")


def _made(name: str, options: dict[str, Any]) -> Any:
    """The environment of that id.

    Raises:
        ValueError: it does not take these options, or the module that registers it is not there.
    """
    import gymnasium as gym

    try:
        return gym.make(name, **options)
    except (TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"{name} cannot be made with the options {options}: {error}") from error


def _collect(env: Any, arguments: argparse.Namespace, options: dict[str, Any], *, formats: list[str], console: Any) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from wmrl_gym.data.demonstrations import Collection, EpisodeFolder, run_episode
    from wmrl_gym.envs.manipulation.versions import versions_of

    out = arguments.out
    policy = "expert" if arguments.expert else "random"
    versions = versions_of("gymnasium", "numpy", *versions_of())
    fps = int(env.metadata.get("render_fps") or 30)
    folder = EpisodeFolder(out, Collection(arguments.env, options, policy, arguments.seed, fps, versions))
    tasks: list[str | None] = [None] if arguments.task is None else list(arguments.task.split(","))
    columns = (TextColumn("{task.description:<10}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[said]}", markup=False), console=console) as bars:
        total = arguments.episodes * len(tasks)
        bar = bars.add_task("collect", total=total, said="")
        for number in range(total):
            seed, task = arguments.seed + number, tasks[number % len(tasks)]
            if not folder.has(seed):
                episode = run_episode(env, _policy(policy, seed), seed=seed, options=None if task is None else {"task": task})
                folder.add(episode)
            bars.update(bar, advance=1, said="")
        for kind in formats:
            written = bars.add_task(kind, total=len(folder), said="")
            path = _write(kind, folder, env, arguments, lambda done, at=written: bars.update(at, completed=done))
            bars.update(written, said=str(path))
    console.print(_table(folder.success_rates()))


def _policy(policy: str, seed: int) -> Any:
    if policy == "expert":
        return _expert
    spaces: list[Any] = []

    def act(env: Any, observation: Any) -> Any:
        if not spaces:
            from copy import deepcopy

            spaces.append(deepcopy(env.action_space))
            spaces[0].seed(seed)
        return spaces[0].sample()

    return act


def _expert(env: Any, observation: Any) -> Any:
    if not hasattr(env.unwrapped, "expert_action"):
        raise NotImplementedError(f"{env.unwrapped} ships no scripted expert: leave out --expert")
    return env.unwrapped.expert_action()


def _write(kind: str, folder: Any, env: Any, arguments: argparse.Namespace, progress: Any) -> Path:
    if kind == "minari":
        from wmrl_gym.data.minari import write_minari

        task = _slug(arguments.task)
        name = arguments.env.rpartition("/")[2].removesuffix("-v0")
        default = f"wmrl/{name}{task}-{folder.collection.policy}-v0"
        return write_minari(folder, env, folder.path / "minari", dataset_id=arguments.name or default, progress=progress)
    from wmrl_gym.data.lerobot import write_lerobot

    return write_lerobot(folder, folder.path / "lerobot", robot_type=_robot(env), progress=progress)


def _slug(task: str | None) -> str:
    """What a data set's name says of its tasks; a name of fifty would be longer than a file's name may be."""
    tasks = [] if task is None else task.split(",")
    return f"-{len(tasks)}-tasks" if len(tasks) > 4 else "".join(f"-{each}" for each in tasks)


def _robot(env: Any) -> str:
    return str(getattr(getattr(env.unwrapped, "simulator", None), "robot", "unknown"))


def _formats(given: str) -> list[str]:
    formats = given.split(",")
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise ValueError(f"--format must be among {', '.join(FORMATS)}, got {', '.join(unknown)}")
    return formats


def _options(settings: list[str], task: str | None) -> dict[str, Any]:
    options = settings_of(settings)
    if task is not None:
        options["task"] = task.split(",")
    return options


def _table(rates: dict[str, tuple[int, int]]) -> Any:
    from rich.table import Table

    table = Table("task", "episodes", "successes", "rate")
    for task, (won, total) in sorted(rates.items()):
        table.add_row(task or "-", str(total), str(won), f"{won / total:.0%}")
    return table
