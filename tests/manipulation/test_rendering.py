"""Where images come from: one thread a context, nothing left behind, no drawing after a fork, and what is said without OpenGL."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from glob import glob
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.envs.manipulation.rendering import RenderingUnavailable, _Canvas
from wmrl_gym.sandbox.bubblewrap import find_bubblewrap


def files(*names: str) -> list[str]:
    """Where this machine has these libraries."""
    folders = ("/usr/lib/", "/usr/lib64/", "/usr/lib/*/", "/usr/local/lib/")
    return [path for folder in folders for name in names for path in glob(f"{folder}lib{name}.so*")]


LIBRARIES = files("EGL", "OSMesa", "GL")
DRIVERS = files("EGL_mesa", "EGL_nvidia", "OSMesa")


def python(script: str, *, gl: str = "", without: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``script`` with ``MUJOCO_GL``, on this machine as it would be ``without`` some files."""
    hidden = [word for path in without or [] for word in ("--ro-bind", "/dev/null", path)]
    enclosed = [find_bubblewrap(), "--dev-bind", "/", "/", *hidden] if hidden else []
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **({"MUJOCO_GL": gl} if gl else {})}
    command = [*enclosed, sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)


MAKE = """
import gc, os, sys
import gymnasium as gym, wmrl_gym
from wmrl_gym.envs.manipulation import RenderingUnavailable
def make():
    env = gym.make("wmrl/VLA-reach-v0", image_size=48)
    env.reset(seed=0)
    return env
"""


@pytest.mark.needs_gl
@pytest.mark.parametrize("gl", ["egl", "osmesa"])
def test_environments_let_go_of_give_their_memory_back(gl: str) -> None:
    script = """
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
def let_go(times):
    for _ in range(times):
        make()
        gc.collect()
    return resident()
before = let_go(2)
print((let_go(12) - before) / 12)  # the allocator gives back by threes and fours, so that a few tell nothing
kept = make()  # until Python exits
"""
    done = python(MAKE + script, gl=gl)
    assert done.stderr == ""  # at exit neither
    assert float(done.stdout) < 20  # MB for each


@pytest.mark.needs_gl
def test_the_thread_that_draws_ends_with_its_environment() -> None:
    def drawing() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "wmrl-camera"}

    before = drawing()
    env: Any = gym.make("wmrl/VLA-reach-v0", image_size=32)
    env.reset(seed=0)
    (mine,) = drawing() - before
    env.close()
    assert not mine.is_alive()
    env = gym.make("wmrl/VLA-reach-v0", image_size=32)
    env.reset(seed=0)
    (mine,) = drawing() - before
    del env
    gc.collect()
    mine.join(60)
    assert not mine.is_alive()


def test_drawing_with_what_was_closed_meanwhile_says_so() -> None:
    canvas = _Canvas(object)
    canvas.stop()
    canvas.wait(60)
    said: list[str] = []

    def draw() -> None:
        try:
            canvas.draw(lambda _: np.zeros((1, 1, 3), np.uint8))
        except RenderingUnavailable as error:
            said.append(str(error))

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    drawing.join(60)
    assert said == ["no image can be drawn: the camera was closed, or Python is exiting"]


@pytest.mark.needs_gl
@pytest.mark.parametrize("gl", ["egl", "osmesa"])
def test_a_process_forked_after_an_image_was_drawn_says_spawn_and_ends(gl: str) -> None:
    script = """
env = make()
child = os.fork()
if child == 0:
    for draw in (make, lambda: env.reset(seed=0)):
        try:
            draw()
        except RenderingUnavailable as error:
            print("spawn" in str(error))
    env.close()
    del env
    gc.collect()
    sys.stdout.flush()
    os._exit(7)  # as multiprocessing does: OSMesa itself crashes in exit() after a fork
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), env.reset(seed=0)[0]["image"].std() > 10)
"""
    done = python(MAKE + script, gl=gl)
    assert (done.stdout, done.stderr) == ("True\nTrue\n7 True\n", "")


@pytest.mark.needs_gl
def test_a_process_forked_before_any_image_draws() -> None:
    script = """
env = gym.make("wmrl/VLA-reach-v0", image_size=48)
child = os.fork()
if child == 0:
    sys.exit(int(env.reset(seed=0)[0]["image"].std() > 10))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), env.reset(seed=0)[0]["image"].std() > 10)
"""
    done = python(MAKE + script)
    assert (done.stdout, done.stderr) == ("1 True\n", "")


@pytest.mark.parametrize("gl", ["", "egl", "osmesa"])
def test_opengl_that_is_not_there_is_one_clear_error(gl: str) -> None:
    script = """
try:
    make()
except RenderingUnavailable as error:
    print(error)
"""
    done = python(MAKE + script, gl=gl, without=LIBRARIES or ["/dev/full"])
    assert done.stdout.startswith("no image can be drawn"), done
    assert "apt-get install libegl1 libgl1-mesa-dri libosmesa6" in done.stdout
    assert done.stderr == ""


@pytest.mark.needs_gl
def test_opengl_without_a_driver_is_the_same_error_and_nothing_is_said_at_exit() -> None:
    script = """
try:
    make()
except RenderingUnavailable as error:
    print("libgl1-mesa-dri" in str(error))
"""
    done = python(MAKE + script, gl="egl", without=DRIVERS)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_what_draws_nothing_needs_no_opengl() -> None:
    script = """
for name, options in (("wmrl/VLAManipulationState-v0", {}), ("wmrl/VLAManipulation-v0", {"cameras": ()})):
    env = gym.make(name, **options)
    env.reset(seed=0)
    env.step(env.action_space.sample())
print("simulated")
"""
    done = python(MAKE + script, without=LIBRARIES or ["/dev/full"])
    assert (done.stdout, done.stderr) == ("simulated\n", "")


@pytest.mark.needs_gl
def test_who_imported_mujoco_first_does_not_matter() -> None:
    script = "import mujoco\n" + MAKE + "print(make().reset(seed=0)[0]['image'].any())"
    done = python(script)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
