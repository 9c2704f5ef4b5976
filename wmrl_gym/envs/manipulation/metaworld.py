"""Meta-World's fifty tasks of one arm, with seeds that hold, initial states split in two, and goals that stay out of sight."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Box
from numpy.typing import NDArray

from wmrl_gym.envs.manipulation.instructions import instruction_table, known_task, whereabouts
from wmrl_gym.envs.manipulation.rendering import Cameras, Rendering, import_mujoco
from wmrl_gym.envs.manipulation.simulator import SimStep, Simulator, Split, Start, inside
from wmrl_gym.envs.manipulation.versions import versions_of

Goal = Literal["language", "marker", "hidden"]
"""How a target in empty space is made known: by words in the instruction, by a marker in the image, or not at all."""

CAMERAS = ("corner", "corner2", "corner3", "topview", "behindGripper", "gripperPOV")
"""The cameras of every task."""

FREE_TARGETS = frozenset({"reach", "reach-wall", "push", "push-wall", "push-back", "pick-place", "pick-place-wall"})
"""Tasks whose target is a point that no object in sight marks."""

INNER_SHARE = 0.7
"""Share of the initial states that are in-domain: the inner ones; the rest, towards the edges, are out of distribution."""

_OBJECTS = 14  # numbers that describe the objects, padded with zeros
_MOVED = ("body_pos", "body_quat", "geom_pos", "site_pos")  # parts of a model that starting an episode may change
_JOINTS = tuple(f"right_j{number}" for number in range(7))


class MetaWorld(Simulator):
    """Meta-World's tasks. Each task's model is loaded when it is first started.

    Args:
        height: of images, in pixels.
        width: of images, in pixels.
        rendering: fast or exact.
        goal: how a target in empty space is made known.

    Raises:
        DependencyNotInstalled: Meta-World is missing.
    """

    tasks = tuple(instruction_table())
    frames_per_second = 80
    action_space = Box(-1.0, 1.0, (4,), np.float32)
    proprioception_space = Box(
        np.array([-2.0] * 3 + [-5.0] * 3 + [0.0] + [-2 * np.pi] * 7, np.float32),
        np.array([2.0] * 3 + [5.0] * 3 + [1.0] + [2 * np.pi] * 7, np.float32),
    )
    privileged_space = Box(
        np.array([-2.0] * 3 + [0.0] + [-2.0] * _OBJECTS + [-1.0] * (4 + _OBJECTS) + [-2.0] * 3, np.float32),
        np.array([2.0] * 3 + [1.0] + [2.0] * _OBJECTS + [1.0] * (4 + _OBJECTS) + [2.0] * 3, np.float32),
    )

    def __init__(self, *, height: int, width: int, rendering: Rendering = "fast", goal: Goal = "language") -> None:
        if goal not in ("language", "marker", "hidden"):
            raise ValueError(f'goal must be "language", "marker" or "hidden", got {goal!r}')
        self._classes = _load_classes()
        self.height, self.width, self.rendering, self.goal = height, width, rendering, goal
        self._loaded: dict[str, Any] = {}
        self._pristine: dict[str, dict[str, NDArray[np.float64]]] = {}
        self._cameras: dict[str, Cameras] = {}
        self._experts: dict[str, Any] = {}
        self._task = ""
        self._hand_before = np.zeros(3)
        self._before = np.zeros(4 + _OBJECTS)
        self._now = np.zeros(4 + _OBJECTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), height=self.height, width=self.width, rendering=self.rendering, goal=self.goal), ()

    @property
    def env(self) -> Any:
        """Meta-World's own environment of the present task."""
        return self._loaded[self._task]

    def start(self, start: Start, generator: np.random.Generator) -> None:
        import mujoco

        self._task = known_task(start.task, self.tasks)
        if start.state is not None:
            raise ValueError("Meta-World's initial states are drawn: there are no numbered ones")
        env = self._load(self._task)
        # Meta-World draws from a global generator, or freezes one draw: here each draw comes from the episode's own.
        env._get_state_rand_vec = partial(draw_start, env._random_reset_space, start.split, generator)
        # Its own reset() settles the arm beside objects where the last episode left them, twice, and returns an observation of
        # before they were moved.
        for name, values in self._pristine[self._task].items():
            getattr(env.model, name)[:] = values
        mujoco.mj_resetData(env.model, env.data)
        env.curr_path_length = 0
        env.reset_model()
        mujoco.mj_forward(env.model, env.data)
        self._now = self._before = env._get_curr_obs_combined_no_goal()
        self._hand_before = self._now[:3]
        env._prev_obs = self._now.copy()

    def step(self, action: NDArray[np.float32]) -> SimStep:
        _, dense, _, _, info = self.env.step(action)
        self._before, self._hand_before = self._now, self._now[:3]
        self._now = self.env._get_curr_obs_combined_no_goal()
        return SimStep(float(dense), bool(info["success"]))

    def proprioception(self) -> NDArray[np.float32]:
        """Hand position (3, m) and velocity (3, m/s), opening of the gripper (1, 0 to 1), angles of the arm's joints (7, rad)."""
        joints = [self.env.data.joint(name).qpos[0] for name in _JOINTS]
        velocity = (self._now[:3] - self._hand_before) * self.frames_per_second
        return inside(np.concatenate([self._now[:3], velocity, self._now[3:4], joints]), self.proprioception_space)

    def privileged(self) -> NDArray[np.float32]:
        """Hand, gripper and objects (18), how they changed in the last step (18), and the target (3): float32, shape (39,)."""
        return inside(np.concatenate([self._now, self._now - self._before, self.target]), self.privileged_space)

    @property
    def target(self) -> NDArray[np.float64]:
        """Where the task's target is, in metres: float64, shape (3,). A real robot does not know it."""
        return np.asarray(self.env._get_pos_goal(), dtype=np.float64)[:3]

    def image(self, camera: str) -> NDArray[np.uint8]:
        if self._task not in self._cameras:
            self._cameras[self._task] = Cameras(
                self.env.model,
                height=self.height,
                width=self.width,
                rendering=self.rendering,
                show_sites=self.goal == "marker",
            )
        return self._cameras[self._task].image(self.env.data, camera)

    def sentences(self, phrasing: str) -> tuple[str, ...]:
        sentences = instruction_table()[self._task].of(phrasing)  # type: ignore[arg-type]
        if self.goal != "language" or self._task not in FREE_TARGETS:
            return sentences
        bounds = self.env.goal_space
        where = whereabouts(self.target, bounds.low[:3], bounds.high[:3])
        return tuple(f"{sentence}: {where}" for sentence in sentences)

    def expert_action(self) -> NDArray[np.float32]:
        if self._task not in self._experts:
            from metaworld import policies

            experts: dict[str, Any] = dict(policies.ENV_POLICY_MAP)
            self._experts[self._task] = experts[f"{self._task}-v3"]()
        seen = np.concatenate([self._now, self._before, self.target])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says each time that its action will be clipped
            action = np.asarray(self._experts[self._task].get_action(seen), dtype=np.float32)
        return np.clip(action, self.action_space.low, self.action_space.high)

    def versions(self) -> dict[str, str]:
        return versions_of("metaworld", "mujoco")

    def close(self) -> None:
        for cameras in self._cameras.values():
            cameras.close()
        for env in self._loaded.values():
            env.close()
        self._cameras, self._loaded, self._experts = {}, {}, {}

    def _load(self, task: str) -> Any:
        if task not in self._loaded:
            env = _compiled_once(self._classes[f"{task}-v3"])()
            env._set_task_called = True
            # The reward and the scripted experts read the target from Meta-World's own observation, which nobody else sees.
            env._partially_observable = False
            env.__dict__.pop("sawyer_observation_space", None)
            env.max_path_length = 2**31  # time limits are Gymnasium's, and stepping on must not raise
            self._pristine[task] = {name: getattr(env.model, name).copy() for name in _MOVED}
            self._loaded[task] = env
        return self._loaded[task]


def draw_start(space: Box, split: Split, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw an initial state from the inner part of ``space`` ("id"), from the rest of it ("ood"), or from all of it.

    The inner part is a box around the middle with :data:`INNER_SHARE` of the volume, over the axes that vary.

    >>> space = Box(np.array([0.0, 5.0]), np.array([1.0, 5.0]), dtype=np.float64)
    >>> float(abs(draw_start(space, "id", np.random.default_rng(0))[0] - 0.5)) < 0.35
    True
    >>> float(abs(draw_start(space, "ood", np.random.default_rng(0))[0] - 0.5)) > 0.35
    True
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    varying = high > low
    half = INNER_SHARE ** (1.0 / max(int(varying.sum()), 1)) / 2
    while True:
        unit = generator.uniform(size=low.shape)
        inner = bool((np.abs(unit - 0.5)[varying] <= half).all())
        if split == "all" or inner == (split == "id"):
            return low + unit * (high - low)


@cache
def _compiled_once(kind: Any) -> Any:
    """A Meta-World class whose model is compiled once in this process and copied after: that is most of its making."""
    compiled: list[Any] = []

    def initialize(self: Any) -> tuple[Any, Any]:
        import mujoco

        if not compiled:
            compiled.append(mujoco.MjModel.from_xml_path(self.fullpath))
        model = deepcopy(compiled[0])
        model.vis.global_.offwidth, model.vis.global_.offheight = self.width, self.height
        return model, mujoco.MjData(model)

    return type(kind.__name__, (kind,), {"_initialize_simulation": initialize})


def _load_classes() -> dict[str, Any]:
    try:
        import_mujoco()
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise DependencyNotInstalled(
            f"metaworld is not installed, run `pip install 'wmrl-gym[manipulation]'` ({error})"
        ) from error
    return dict(ALL_V3_ENVIRONMENTS)
