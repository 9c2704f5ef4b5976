"""Every sandbox that isolates, real ones: bubblewrap, a docker engine, and a Ray cluster of three nodes on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wmrl_gym.sandbox import DockerSandbox, LocalSandbox, RaySandbox, Sandbox, images
from wmrl_gym.sandbox.docker import IMAGE, connect

from .privileges import ONE_USER, SandboxElsewhere, as_ordinary_user

HEAD = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
OTHERS = {"num_cpus": 1, "object_store_memory": 100 << 20, "resources": {"extra": 2}}
DOCKER = pytest.param("docker", marks=pytest.mark.needs_docker)
OF_OTHERS = ["local_of_a_user", "local_cold_of_a_user"] if os.geteuid() == 0 else []  # else we are an ordinary user ourselves
IN_ONE_VARIANT = ("local_of_one_user", "ray_sandbox")
"""Where each attack is tried in the first of its variants only.

A run there is one of a sandbox in which all variants are tried, in a process of other privileges, or of another machine.
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """What uses the image needs an engine."""
    if "image" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.needs_docker)


@pytest.hookimpl(trylast=True)  # what -k has left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep one variant of each attack where one is enough."""
    tried = set()
    for item in list(items):
        sandbox = getattr(item, "callspec", None) and item.callspec.params.get("sandbox")  # type: ignore[attr-defined]
        if sandbox in IN_ONE_VARIANT:
            attack = (sandbox, item.path, item.originalname)  # type: ignore[attr-defined]
            if attack in tried:
                items.remove(item)
            tried.add(attack)


@pytest.fixture(scope="package")
def local() -> Iterator[Sandbox]:
    with LocalSandbox(preimport=()) as sandbox:
        yield sandbox


@pytest.fixture(scope="package")
def image() -> str:
    """The image, made of this machine if it is not there."""
    client = connect(None)
    try:
        if not client.images.list(IMAGE):
            images.build(base=images.import_machine(), network="none")
    finally:
        client.close()
    return IMAGE


@pytest.fixture(scope="package")
def docker(image: str) -> Iterator[Sandbox]:
    with DockerSandbox(image=image, spares=1, preimport=()) as sandbox:
        yield sandbox


def started(kind: Any, tries: int = 3) -> Any:
    """A cluster. A node gives up where its agents take more than 15 seconds to start, as on a very busy machine: then again."""
    made = kind()
    try:
        made.add_node(**HEAD)
        for _ in range(2):
            made.add_node(**OTHERS)
    except Exception:  # a plain one
        made.shutdown()
        if tries > 1:
            return started(kind, tries - 1)
        raise
    return made


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """A head and two other nodes, each a raylet of its own.

    All are there before this process connects: to start one it forks, after which answers to gRPC may never arrive any more.
    """
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
        level = logging.getLogger("ray").level
        made = started(Cluster)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()
        logging.getLogger("ray").setLevel(level)


@pytest.fixture(scope="package")
def ray_sandbox(cluster: Any) -> Iterator[Sandbox]:
    with RaySandbox(workers=1) as sandbox:
        yield sandbox


@pytest.fixture(scope="package")
def local_of_a_user() -> Iterator[Sandbox]:
    """The local sandbox of an ordinary user, who may make no control group."""
    sandbox = SandboxElsewhere(as_ordinary_user())
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="package")
def local_cold_of_a_user() -> Iterator[Sandbox]:
    """The same where each run starts an interpreter."""
    sandbox = SandboxElsewhere(as_ordinary_user(), "cold")
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="package")
def local_of_one_user() -> Iterator[Sandbox]:
    """The local sandbox of root in a namespace that knows no other user."""
    sandbox = SandboxElsewhere(ONE_USER)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="package", params=["local", *OF_OTHERS, "local_of_one_user", DOCKER, "ray_sandbox"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each back end in turn, and the local one with each kind of privileges."""
    chosen: Sandbox = request.getfixturevalue(request.param)
    return chosen
