"""Threads that belong to one process: forked children, copies, and what is closed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from wmrl_gym.threads import Threads

_IN_A_CHILD = """
import os, signal
def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # what waits for ever ends here
        os._exit(0 if work() else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FORKS = {
    "threads": """
from wmrl_gym.threads import Threads
threads = Threads(2, "own")
assert threads.submit(int, "3").result() == 3
in_a_child(lambda: threads.submit(int, "4").result() == 4 and threads.shutdown() is None)
""",
    "a pool of sandboxes whose only worker is busy": """
import threading
from wmrl_gym.sandbox import LocalSandbox, SandboxPool
pool = SandboxPool(LocalSandbox(preimport=()), cache=False, max_in_flight=2)
assert pool.submit("print(1)").result().stdout == "1\\n"
busy = pool.submit("import time\\ntime.sleep(2)")
in_a_child(lambda: [pool.submit(f"print({n})").result().stdout for n in range(3)] == ["0\\n", "1\\n", "2\\n"])
assert busy.result().exit_code == 0
""",
    "slots that are executed side by side": """
import numpy as np
from tests.bandit import Bandit
from wmrl_gym.envs.factored_env import FactoredVectorEnv
envs = FactoredVectorEnv(Bandit(), 4, max_real=2)
envs.reset(seed=0)
envs.step(np.ones((4, 2), np.int64))
in_a_child(lambda: np.isfinite(envs.step(np.ones((4, 2), np.int64))[1]).all())
""",
    "anchors in the background": """
import numpy as np
from tests.wrappers.test_background import Held, actions, background
held = Held(max_turns=1)
envs = background(held, max_real=2)
envs.reset(seed=5)
for each in actions(2):
    envs.step(each)
def child():
    held.go.set()
    return envs.engine.in_flight == 8 and envs.engine.wait(50) and envs.engine.stream.added == 8
in_a_child(child)
held.go.set()
""",
    "an update in the background": """
import threading
import numpy as np
from tests.bandit import Bandit
from wmrl_gym.engine.learner import BackgroundUpdates
go = threading.Event()
class Slow:
    def compute_update(self, transitions, rng):
        assert go.wait(60)
        return transitions
    def apply_update(self, computed):
        return {"wm/new": float(computed)}
updates = BackgroundUpdates(Slow())
updates.begin(3, seed=0)
def child():
    go.set()
    return updates.apply(wait=True)[0] == {"wm/new": 3.0}
in_a_child(child)
go.set()
""",
}


@pytest.mark.parametrize("what", FORKS)
def test_a_forked_child_waits_for_no_thread_of_its_parent(what: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _IN_A_CHILD + FORKS[what]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=Path(__file__).parents[1])
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_copies_have_threads_of_their_own() -> None:
    threads = Threads(1, "own")
    assert threads.submit(int, "1").result() == 1
    for other in (copy.deepcopy(threads), pickle.loads(pickle.dumps(threads))):
        assert other.submit(int, "2").result() == 2
        other.shutdown()
    threads.shutdown()
    with pytest.raises(RuntimeError, match="own is closed"):
        threads.submit(int, "3")


def test_the_error_of_work_is_in_its_future_and_later_work_goes_on() -> None:
    threads = Threads(1, "own")
    assert isinstance(threads.submit(int, "x").exception(), ValueError)
    assert threads.submit(int, "4").result() == 4
    threads.shutdown()
