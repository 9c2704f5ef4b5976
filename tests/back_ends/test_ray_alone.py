"""A sandbox on a cluster of its own, whatever clusters there were before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
from wmrl_gym.sandbox import Limits, RaySandbox
import ray
with RaySandbox(num_cpus=0) as sandbox:
    print(sandbox.run("print(6 * 7)", data_dir=None, limits=Limits()).stdout, end="")
ray.shutdown()
"""


def test_a_cluster_that_has_ended_is_not_waited_for() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as folder:  # sockets have short names
        (Path(folder) / "ray").mkdir()
        for place in (Path(folder), Path(folder) / "ray"):
            (place / "ray_current_cluster").write_text("127.0.0.1:1")  # a machine that went down leaves this
        root = str(Path(__file__).parents[2])
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        variables |= {"RAY_TMPDIR": folder, "PYTHONPATH": root, "RAY_raylet_start_wait_time_s": "150"}
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=280, env=variables)
    assert done.stdout == "42\n", done.stderr[-3000:]
