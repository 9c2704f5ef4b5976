"""Containers: used once, kept ready, and gone afterwards; and what is said where there are none."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wmrl_gym.cli import main
from wmrl_gym.sandbox import DockerSandbox, Limits, LocalSandbox, SandboxUnavailable, images, make_sandbox
from wmrl_gym.sandbox.check import PROBES
from wmrl_gym.sandbox.docker import connect, sweep
from wmrl_gym.sandbox.docker_container import LABEL, OWNER


@pytest.fixture
def client(image: str) -> Iterator[Any]:
    client = connect(image)
    yield client
    client.close()


def ours(client: Any, owner: str) -> set[str]:
    return {container.id for container in client.containers.list(all=True, filters={"label": f"{LABEL}={owner}"})}


STARTED = """
import os, sys
from wmrl_gym.sandbox import DockerSandbox, Limits
from wmrl_gym.sandbox.docker_container import OWNER, Shape
sandbox = DockerSandbox(image={image!r}, spares=0, preimport=())
container = sandbox._start(Shape.of(Limits()))
print(OWNER, flush=True)
"""


def host(image: str, then: str, *command: str) -> subprocess.Popen[str]:
    """A process that has started a container, and then does something else."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = STARTED.format(image=image) + then
    return subprocess.Popen(
        [*command, sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_container_serves_one_run_and_others_wait(client: Any, image: str, limits: Limits) -> None:
    with DockerSandbox(image=image, spares=1, preimport=()) as sandbox:
        names = [sandbox.run("print(open('/proc/self/mountinfo').read())", data_dir=None, limits=limits).stdout for _ in range(2)]
        used = [name.partition("/docker/containers/")[2][:64] for name in names]
        assert used[0] != used[1], "each run has a container of its own"
        spare = {container._container.id for container in sandbox._alive}
    assert ours(client, OWNER).isdisjoint({*used, *spare})
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run("", data_dir=None, limits=limits)


def test_a_container_has_no_privilege(docker: DockerSandbox, limits: Limits) -> None:
    code = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(*(status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")), status["Uid"].split()[0] != "0")
"""
    assert docker.run(code, data_dir=None, limits=limits).stdout == f"{'0' * 16} {'0' * 16} 1 2 True\n"


def test_the_data_that_tasks_are_made_from_is_not_in_the_image(docker: DockerSandbox, limits: Limits) -> None:
    result = docker.run("import sklearn.datasets\nsklearn.datasets.load_digits()", data_dir=None, limits=limits)
    assert result.exit_code == 1
    assert "Error" in result.stderr


def test_verdicts_are_those_of_the_local_sandbox(docker: DockerSandbox, limits: Limits, task: Path) -> None:
    code = """
import os
import numpy as np
train = np.loadtxt(os.environ["DATA_DIR"] + "/train.csv", delimiter=",", skiprows=1)
print(np.linalg.norm(train), sorted(os.listdir("/data")))
np.savetxt(os.environ["SUBMISSION_PATH"], train)
1 / 0
"""
    with LocalSandbox(preimport=()) as local:
        one, other = (each.run(code, data_dir=task / "public", limits=limits) for each in (local, docker))
    assert (one.exit_code, one.stdout, one.stderr, one.submission) == (
        other.exit_code,
        other.stdout,
        other.stderr,
        other.submission,
    )
    assert one.submission is not None


def test_what_a_killed_process_left_is_swept_up(client: Any, image: str) -> None:
    with host(image, "os.kill(os.getpid(), 9)") as killed:
        assert killed.stdout is not None
        owner = killed.stdout.read().strip()
    for container in client.containers.list(filters={"label": f"{LABEL}={owner}"}):
        container.wait(timeout=120)  # it ends by itself when nobody is there any more
    sweep(client)
    assert len(ours(client, owner)) == 1, "its owner may still want to know how it ended"
    sweep(client, after_s=0.0)
    assert ours(client, owner) == set()


def test_a_live_run_of_another_pid_namespace_is_left_alone(client: Any, image: str) -> None:
    then = """
sys.stdin.readline()
print(container.run(b"print(6 * 7)", data=None, limits=Limits()).stdout, flush=True)
"""
    with host(image, then, "unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc") as other:
        assert other.stdout is not None
        owner = other.stdout.readline().strip()
        sweep(client, after_s=0.0)
        assert len(ours(client, owner)) == 1
        assert other.communicate("go\n", timeout=120)[0].startswith("42")
    assert ours(client, owner) == set()


def test_low_limits_of_an_engine_are_no_crash(client: Any, image: str, limits: Limits) -> None:
    tag = f"wmrl-test-limits-{os.getpid()}"
    entry = '["/bin/sh", "-c", "ulimit -n 512 && exec \\"$@\\"", "sh"]'
    client.images.build(fileobj=io.BytesIO(f"FROM {image}\nENTRYPOINT {entry}\n".encode()), tag=tag, rm=True)
    try:
        with DockerSandbox(image=tag, spares=0, preimport=()) as sandbox:
            result = sandbox.run("import resource\nprint(resource.getrlimit(7))", data_dir=None, limits=limits)
        assert (result.exit_code, result.stdout, result.failed) == (0, "(512, 512)\n", None)
    finally:
        client.images.remove(tag, force=True)


def test_a_sandbox_of_containers_pickles(docker: DockerSandbox, limits: Limits) -> None:
    with pickle.loads(pickle.dumps(docker)) as copy:
        assert copy.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_large_data_is_shown_as_it_is(docker: DockerSandbox, limits: Limits, task: Path) -> None:
    for folder in (task, task / "public"):
        folder.chmod(0o755)
    with (task / "public" / "large.bin").open("wb") as file:
        file.truncate(300 << 20)
    code = "import os\nprint(os.stat('/data/large.bin').st_size >> 20, os.access('/data/large.bin', os.W_OK))"
    assert docker.run(code, data_dir=task / "public", limits=limits).stdout == "300 False\n"


def test_without_an_engine_the_advice_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnavailable, match=r"no docker engine answers.*dockerd.*DOCKER_HOST.*sandbox=\"local\""):
        make_sandbox("docker")


def test_without_the_image_the_advice_names_the_command(image: str) -> None:
    with pytest.raises(SandboxUnavailable, match=r"no image 'wmrl-none'.*wmrl sandbox build"):
        DockerSandbox(image="wmrl-none")


def test_without_the_sdk_the_advice_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'wmrl-gym\[docker\]'"):
        DockerSandbox()


def test_the_command_builds_the_image_from_any_base(image: str, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tag = f"wmrl-test-{os.getpid()}"
    try:
        assert main(["sandbox", "build", "--base", images.MACHINE, "--tag", tag, "--network", "none"]) == 0
        assert f"built {tag}" in capsys.readouterr().out
    finally:
        client.images.remove(tag, force=True)
    assert main(["sandbox", "build", "--base", "wmrl-no-such-base:none"]) == 2
    assert "--from-this-machine" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["local", pytest.param("docker", marks=pytest.mark.needs_docker)])
def test_the_command_tries_a_sandbox(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        request.getfixturevalue("image")
    assert main(["sandbox", "check", kind]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{kind}: ok, scikit-learn ")
    assert printed.count(": enforced") == len(PROBES)
    assert ("memory is " in printed) == (kind == "local")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert main(["sandbox", "check", "docker"]) == 2
    assert "no docker engine answers" in capsys.readouterr().err


def test_the_command_finds_what_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="isolates nothing"):
        assert main(["sandbox", "check", "unsafe-rlimits"]) == 0
    printed = capsys.readouterr().out
    for name in ("network", "files of this machine"):
        assert f"  {name}: NOT ENFORCED" in printed
    for name in ("CPU time", "memory of one process", "processes"):
        assert f"  {name}: enforced" in printed


def test_senseless_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        DockerSandbox(workers=0)
    with pytest.raises(ValueError, match="spares must be at least 0, got -1"):
        DockerSandbox(spares=-1)
