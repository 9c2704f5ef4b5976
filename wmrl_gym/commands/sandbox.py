"""``wmrl sandbox``: make the image of the docker sandbox, and see which sandboxes work here."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to an ``argparse`` collection of subparsers."""
    sandbox = commands.add_parser("sandbox", help="build the docker sandbox's image, or check which sandboxes work here")
    actions = sandbox.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="build the image of the docker sandbox")
    build.add_argument("--base", default=None, help="the image to start from (default: python:3.11-slim)")
    build.add_argument(
        "--from-this-machine", action="store_true", help="start from this machine's interpreter and packages; pulls nothing"
    )
    build.add_argument("--tag", default=None, help="the image's name (default: wmrl-gym-sandbox)")
    build.add_argument("--packages", nargs="+", default=None, help="what to install where the base has no scikit-learn")
    build.add_argument("--network", default=None, help="the engine's network mode while it builds, such as host")
    check = actions.add_parser("check", help="try what a sandbox enforces on this machine")
    check.add_argument("kind", nargs="*", default=["local"], help="local, docker or ray (default: local)")
    sandbox.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; returns the exit status."""
    from wmrl_gym.commands import complain
    from wmrl_gym.sandbox import SandboxUnavailable

    try:
        return _build(arguments) if arguments.action == "build" else _check(arguments.kind)
    except (SandboxUnavailable, ValueError) as error:
        return complain("sandbox", error)


def _build(arguments: argparse.Namespace) -> int:
    from wmrl_gym.sandbox import images
    from wmrl_gym.sandbox.docker import IMAGE

    base = arguments.base
    if arguments.from_this_machine:
        if base is not None:
            raise ValueError("--base and --from-this-machine exclude each other")
        base = images.import_machine()
    tag = arguments.tag or IMAGE
    packages = tuple(arguments.packages or images.PACKAGES)
    image = images.build(base=base or images.BASE, tag=tag, packages=packages, network=arguments.network)
    print(f"built {tag} ({image})")
    return 0


def _check(kinds: list[str]) -> int:
    from wmrl_gym.sandbox import DockerSandbox, Limits, LocalSandbox, make_sandbox
    from wmrl_gym.sandbox.check import counted_by, measure

    bare = {"local": LocalSandbox, "docker": DockerSandbox}  # a container for each probe needs no library imported
    status = 0
    for kind in kinds:
        sandbox = bare[kind](preimport=()) if kind in bare else make_sandbox(kind)
        try:
            result = sandbox.run("import sklearn; print(sklearn.__version__)", data_dir=None, limits=Limits(wall_s=60))
            works = result.exit_code == 0
            status |= not works
            print(f"{kind}: {'ok, scikit-learn ' + result.stdout.strip() if works else result.failed or result.stderr.strip()}")
            for name, held in measure(sandbox) if works else ():
                status |= not held and kind != "unsafe-rlimits"
                print(f"  {name}: {'enforced' if held else 'NOT ENFORCED'}")
            if kind == "local":
                print(f"  {counted_by()}")
        finally:
            sandbox.close()
    return int(status)
