"""A cluster: what is lost with a node is done again, actors come and go, and what is said where there is none."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wmrl_gym.sandbox import Limits, RaySandbox, SandboxUnavailable, make_sandbox


def test_data_that_has_changed_is_seen(ray_sandbox: RaySandbox, limits: Limits, task: Path) -> None:
    code = "import os\nprint(sorted(os.listdir('/data')), open('/data/train.csv').read())"
    ray_sandbox.run(code, data_dir=task / "public", limits=limits)
    (task / "public" / "train.csv").write_text("changed")
    (task / "public" / "test.csv").touch()
    assert ray_sandbox.run(code, data_dir=task / "public", limits=limits).stdout == "['test.csv', 'train.csv'] changed\n"


def test_bad_data_is_refused_as_elsewhere(ray_sandbox: RaySandbox, limits: Limits, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="existing folder"):
        ray_sandbox.run("", data_dir=tmp_path / "none", limits=limits)


def test_idle_actors_are_ended_and_started_again(cluster: Any, limits: Limits) -> None:
    with RaySandbox(workers=None, num_cpus=0.1, idle_s=0.0) as sandbox:
        for number in range(2):
            assert sandbox.run(f"print({number})", data_dir=None, limits=limits).stdout == f"{number}\n"
            assert sandbox._actors == 0
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run("", data_dir=None, limits=limits)


def test_a_sandbox_on_a_cluster_pickles(cluster: Any, limits: Limits) -> None:
    with RaySandbox(num_cpus=0) as sandbox, pickle.loads(pickle.dumps(sandbox)) as copy:
        assert copy.run("print(1)", data_dir=None, limits=limits).stdout == "1\n"


def test_a_sandbox_that_the_machines_lack_is_a_clear_error(cluster: Any, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    with RaySandbox(inner="nothing", num_cpus=0) as sandbox, pytest.raises(SandboxUnavailable, match="'nothing'"):
        sandbox.run("", data_dir=None, limits=limits)


def test_without_ray_the_advice_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'wmrl-gym\[ray\]'"):
        make_sandbox("ray")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"workers": 0}, "workers"), ({"retries": -1}, "retries"), ({"inner": "ray"}, "inside of a Ray sandbox")],
)
def test_senseless_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RaySandbox(**arguments)


# The last one, as the cluster has a node less afterwards.
def test_runs_of_a_node_that_is_lost_are_done_again(cluster: Any, limits: Limits, task: Path) -> None:
    from ray._private.state import actors

    code = """
import os, time
time.sleep(1.5)
print(open(os.environ["DATA_DIR"] + "/train.csv").read().strip(), {number})
"""
    others = set(actors())
    with RaySandbox(workers=2, num_cpus=0, resources={"extra": 1}) as doomed, ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(doomed.run, code.format(number=number), data_dir=task / "public", limits=limits) for number in range(4)
        ]
        assert runs[0].result().failed is None
        used = [actor["Address"]["NodeID"] for name, actor in actors().items() if name not in others]
        cluster.remove_node(next(node for node in cluster.worker_nodes if node.node_id in used), allow_graceful=False)
        results = [run.result() for run in runs]
    assert [result.failed for result in results] == [None] * 4
    assert [result.stdout for result in results] == [f"id,y\n1,2 {number}\n" for number in range(4)]
