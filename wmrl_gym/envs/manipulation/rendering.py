"""Images of a MuJoCo model: off screen, upright, and without what makes software rendering slow."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rendering = Literal["fast", "exact"]
"""``"fast"``: no shadow map, multisampling or reflections, which cost 100 ms a frame on a CPU whatever the image's size.
``"exact"``: as the simulator's authors set it."""

GL_ADVICE = (
    "install a software renderer (Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri libosmesa6) and leave MUJOCO_GL unset, "
    "or set it to egl or osmesa before Python starts"
)


class RenderingUnavailable(RuntimeError):
    """This machine cannot draw images; says what to install."""


def choose_gl() -> None:
    """Without a display, let MuJoCo render by EGL, unless the user has chosen otherwise. Before MuJoCo is imported."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and "mujoco" not in sys.modules:
        os.environ.setdefault("MUJOCO_GL", "egl")


class Cameras:
    """Draws what the cameras of one MuJoCo model see.

    An OpenGL context belongs to one thread, and an environment may be stepped from several: everything here is drawn in a
    thread of its own, which starts with the first image.

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
        self._renderer: Any = None
        self._thread: ThreadPoolExecutor | None = None
        if rendering == "fast":
            model.vis.quality.offsamples = 0
            model.vis.quality.shadowsize = 0
            model.mat_reflectance[:] = 0.0
        model.vis.global_.offheight = max(height, int(model.vis.global_.offheight))
        model.vis.global_.offwidth = max(width, int(model.vis.global_.offwidth))

    def image(self, data: Any, camera: str) -> NDArray[np.uint8]:
        """What ``camera`` sees: uint8, shape (height, width, 3), the world's up at the top.

        Raises:
            RenderingUnavailable: there is no working OpenGL.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="wmrl-camera")
        return self._thread.submit(self._draw, data, camera).result()

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._thread is not None:
            if self._renderer is not None:
                self._thread.submit(self._renderer.close).result()
            self._thread.shutdown(wait=True)
        self._renderer, self._thread = None, None

    def _draw(self, data: Any, camera: str) -> NDArray[np.uint8]:
        import mujoco

        if self._renderer is None:
            self._renderer = self._make_renderer()
        option = mujoco.MjvOption()
        if not self.show_sites:
            option.sitegroup[:] = 0
        option.geomgroup[list(self.hidden_groups)] = 0
        self._renderer.update_scene(data, camera=camera, scene_option=option)
        image: NDArray[np.uint8] = self._renderer.render()
        return np.ascontiguousarray(image[::-1, ::-1]) if self._upside_down(data, camera) else image.copy()

    def _make_renderer(self) -> Any:
        import mujoco

        try:
            return mujoco.Renderer(self.model, self.height, self.width)
        except Exception as error:  # each OpenGL platform fails in its own way, an ImportError and an AttributeError among them
            backend = os.environ.get("MUJOCO_GL") or "the default"
            raise RenderingUnavailable(f"no image can be drawn with OpenGL by {backend} ({error}): {GL_ADVICE}") from error

    def _upside_down(self, data: Any, camera: str) -> bool:
        """Whether a camera that stands in the world is mounted head down. Cameras that move with the robot are as they are."""
        number = self.model.camera(camera).id
        if self.model.cam_bodyid[number] != 0:
            return False
        up = data.cam_xmat[number].reshape(3, 3)[:, 1]
        return bool(up[2] < -0.1 or (abs(up[2]) <= 0.1 and up[1] < 0.0))
