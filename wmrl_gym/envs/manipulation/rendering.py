"""Images of a MuJoCo model: off screen, upright, and without what makes software rendering slow."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rendering = Literal["fast", "exact"]
"""``"fast"``: no shadow map, multisampling or reflections, which cost 100 ms a frame on a CPU whatever the image's size.
``"exact"``: as the simulator's authors set it."""

GL_ADVICE = (
    "install a software renderer (Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri libosmesa6, and libgl1 libglib2.0-0 "
    "for LIBERO) and leave MUJOCO_GL unset, or set it to egl or osmesa before Python starts"
)
FORKED = (
    "this process was forked from one that had drawn images, and OpenGL does not survive a fork: start workers by spawn, as in "
    'AsyncVectorEnv(..., context="spawn"), or draw nothing before they start'
)

_LIBRARIES = {"egl": ("libEGL.so.1", "libEGL.so"), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}
_OFF = "disable"  # MuJoCo's word for being imported without OpenGL
_LOOK = 0.5  # seconds between two looks at whether the thread that draws is there
_EXIT_WAIT = 10.0  # seconds that a context may take to be freed when Python exits

Image: TypeAlias = NDArray[np.uint8]
Draw: TypeAlias = Callable[[Any], Image]


class RenderingUnavailable(RuntimeError):
    """This machine cannot draw images; says what to install."""


def choose_gl() -> None:
    """Without a display, let MuJoCo render by EGL or by OSMesa, whichever there is, unless the user has chosen otherwise. Where
    there is neither it is imported without OpenGL, and simulates."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not _chosen():
        os.environ["MUJOCO_GL"] = next((platform for platform in _LIBRARIES if _is_there(platform)), _OFF)
        if "mujoco.gl_context" in sys.modules:  # somebody imported it before, and it took what needs a display
            importlib.reload(sys.modules["mujoco.gl_context"])


def import_mujoco() -> Any:
    """The module ``mujoco``, which loads OpenGL when it is imported.

    Raises:
        ImportError: MuJoCo is not installed.
        RenderingUnavailable: the OpenGL that ``MUJOCO_GL`` names is not there.
    """
    with drawing_is_needed():
        choose_gl()
        import mujoco
    return mujoco


@contextlib.contextmanager
def drawing_is_needed() -> Iterator[None]:
    """Turn a failure to load OpenGL in the block into an error that says what to install.

    Raises:
        ModuleNotFoundError: another module is missing.
        RenderingUnavailable: there is no working OpenGL.
    """
    try:
        yield
    except RenderingUnavailable:
        raise
    except Exception as error:  # each OpenGL platform fails in its own way, an ImportError and an AttributeError among them
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("OpenGL"):
            raise
        by = f"MUJOCO_GL={_chosen()}" if _chosen() else "MuJoCo's default"
        raise RenderingUnavailable(f"no image can be drawn with OpenGL by {by} ({error}): {GL_ADVICE}") from error


class Cameras:
    """Draws what the cameras of one MuJoCo model see.

    An OpenGL context belongs to one thread, and an environment may be stepped from several: everything here is drawn in a
    thread of its own, which starts with the first image. That thread frees the context too, when the cameras are closed, or let
    go of, or when Python exits.

    Args:
        model: a ``mujoco.MjModel``; in fast rendering its visual settings are changed, and nothing that is simulated.
        height: of images, in pixels.
        width: of images, in pixels.
        rendering: fast or exact.
        show_sites: whether sites are drawn, among which simulators mark their goals.
        hidden_groups: groups of geoms that are not drawn, such as robosuite's collision shapes.
    """

    def __init__(
        self,
        model: Any,
        *,
        height: int,
        width: int,
        rendering: Rendering = "fast",
        show_sites: bool = False,
        hidden_groups: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.height, self.width = height, width
        self.show_sites, self.hidden_groups = show_sites, hidden_groups
        self._canvas: _Canvas | None = None
        if rendering == "fast":
            model.vis.quality.offsamples = 0
            model.vis.quality.shadowsize = 0
            model.mat_reflectance[:] = 0.0
        model.vis.global_.offheight = max(height, int(model.vis.global_.offheight))
        model.vis.global_.offwidth = max(width, int(model.vis.global_.offwidth))

    def image(self, data: Any, camera: str) -> Image:
        """What ``camera`` sees: uint8, shape (height, width, 3), the world's up at the top.

        Raises:
            RenderingUnavailable: there is no working OpenGL, or the process was forked after images were drawn.
        """
        if _process.forked_after_drawing:
            raise RenderingUnavailable(FORKED)
        if self._canvas is None:
            self._canvas = _Canvas(partial(_make_renderer, self.model, self.height, self.width))
            weakref.finalize(self, self._canvas.stop).atexit = False  # `_free_all` does that, and waits
        return self._canvas.draw(partial(self._draw, data, camera))

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._canvas is not None:
            self._canvas.stop()
            self._canvas.wait()
        self._canvas = None

    def _draw(self, data: Any, camera: str, renderer: Any) -> Image:
        import mujoco

        option = mujoco.MjvOption()
        if not self.show_sites:
            option.sitegroup[:] = 0
        option.geomgroup[list(self.hidden_groups)] = 0
        renderer.update_scene(data, camera=camera, scene_option=option)
        image: Image = renderer.render()
        return np.ascontiguousarray(image[::-1, ::-1]) if self._upside_down(data, camera) else image.copy()

    def _upside_down(self, data: Any, camera: str) -> bool:
        """Whether a camera that stands in the world is mounted head down. Cameras that move with the robot are as they are."""
        number = self.model.camera(camera).id
        if self.model.cam_bodyid[number] != 0:
            return False
        up = data.cam_xmat[number].reshape(3, 3)[:, 1]
        return bool(up[2] < -0.1 or (abs(up[2]) <= 0.1 and up[1] < 0.0))


class _Canvas:
    """A renderer, and the only thread that touches it. It refers to no cameras, so that they can be let go of.

    The thread is a daemon and no executor's: those have ended when Python calls what was registered with ``atexit``, and nobody
    could free the context on its own thread any more.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._jobs: SimpleQueue[tuple[Future[Image], Draw] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_draw_until_none, args=(self._jobs, make), daemon=True, name="wmrl-camera")
        self._thread.start()
        _process.canvases.add(self)

    def draw(self, draw: Draw) -> Image:
        """What ``draw`` makes of the renderer.

        Raises:
            RenderingUnavailable: the thread has ended, because this was closed elsewhere or Python exits.
        """
        done: Future[Image] = Future()
        self._jobs.put((done, draw))
        while not wait((done,), _LOOK).done:
            if not self._thread.is_alive() and not done.done():
                raise RenderingUnavailable("no image can be drawn: the camera was closed, or Python is exiting")
        return done.result()

    def stop(self) -> None:
        """Have the context freed, without waiting: a garbage collector calls this on whatever thread it runs, this one's too."""
        self._jobs.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the context has been freed. In a forked child there is no thread to wait for."""
        if not _process.forked_after_drawing:
            self._thread.join(seconds)


def _draw_until_none(jobs: SimpleQueue[tuple[Future[Image], Draw] | None], make: Callable[[], Any]) -> None:
    """The life of a canvas's thread."""
    renderer = None
    while (job := jobs.get()) is not None:
        done, draw = job
        try:
            if renderer is None:
                renderer = make()
            done.set_result(draw(renderer))
        except BaseException as error:
            done.set_exception(error)
        del job, done, draw  # while it waits for the next one it must not keep the cameras alive
    if renderer is not None:
        renderer.close()


class _Process:
    """What this process has drawn with."""

    def __init__(self) -> None:
        self.drew = self.forked_after_drawing = False
        self.canvases: weakref.WeakSet[_Canvas] = weakref.WeakSet()

    def note_fork(self) -> None:
        """In a child: remember what the parent has done, with our cameras or with MuJoCo's or robosuite's own."""
        others = ("mujoco.egl", "robosuite.renderers.context.egl_context")
        displays = [getattr(sys.modules.get(name), "EGL_DISPLAY", None) for name in others]
        self.forked_after_drawing |= self.drew or any(display is not None for display in displays)


_process = _Process()
os.register_at_fork(after_in_child=_process.note_fork)


def _free_all() -> None:
    """When Python exits: free each context on its own thread, while MuJoCo's display is there."""
    if not _process.forked_after_drawing:
        canvases = list(_process.canvases)
        for canvas in canvases:
            canvas.stop()
        for canvas in canvases:
            canvas.wait(_EXIT_WAIT)


def _make_renderer(model: Any, height: int, width: int) -> Any:
    import mujoco

    if _chosen() == _OFF:
        raise RenderingUnavailable(f"no image can be drawn: there is no OpenGL without a display on this machine: {GL_ADVICE}")
    first, _process.drew = not _process.drew, True
    with drawing_is_needed():
        # What could not be made whole is thrown away, and would complain of what it lacks.
        mujoco.Renderer._gl_context = mujoco.Renderer._mjr_context = None
        mujoco.gl_context.GLContext._context = None
        renderer = mujoco.Renderer(model, height, width)
    if first:  # after MuJoCo has registered the end of its display, and so before it comes
        atexit.register(_free_all)
    return renderer


def _chosen() -> str:
    return os.environ.get("MUJOCO_GL", "").lower().strip()


def _is_there(platform: str) -> bool:
    for library in _LIBRARIES[platform]:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False
