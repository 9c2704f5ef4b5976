"""``wmrl/VLAManipulation-v0`` and ``wmrl/VLAManipulationState-v0``: Meta-World's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from wmrl_gym.envs.manipulation.actions import OutOfRange
from wmrl_gym.envs.manipulation.env import (
    EpisodeRules,
    ManipulationEnv,
    RewardKind,
    VisionLanguageEnv,
    chosen,
    image_shape_of,
)
from wmrl_gym.envs.manipulation.instructions import Phrasing
from wmrl_gym.envs.manipulation.metaworld import CAMERAS, Goal, MetaWorld
from wmrl_gym.envs.manipulation.rendering import Rendering
from wmrl_gym.envs.manipulation.simulator import Split


class VLAManipulationEnv(VisionLanguageEnv):
    """A robot arm, a camera and a sentence: Meta-World's fifty tasks for vision-language-action policies.

    **Action**: Box(-1, 1, (4,)): how the hand moves along x, y and z (a centimetre a step at most), and the gripper's effort.

    **Observation**: a ``Dict`` of ``image`` (uint8, (H, W, 3), upright), ``image_<camera>`` for each further camera, ``state``
    (float32, (14,): hand position and velocity, gripper, joint angles; nothing of objects or targets) and ``instruction`` (text).

    **Reward**: 1 in the step that succeeds, which ends the episode; or Meta-World's shaped reward (0 to 10 a step).

    Args:
        task: the name of a task, or several, one drawn for each episode.
        image_size: pixels of each side, or (height, width).
        cameras: name of a camera, or several; none, ``()``, leaves the robot blind, and steps cheap.
        reward: "sparse" or "dense".
        split: initial states from the inner 70% of where objects and targets can be ("id"), the rest ("ood"), or "all".
        phrasing: "plain" (one sentence a task), "train" (three), or "held_out" (two others).
        instruction: one sentence for all episodes, instead.
        goal: how a target in empty space (reach, push and pick-place tasks) is made known: "language" adds to the sentence
            whereabouts it is, in thirds of the workspace; "marker" draws Meta-World's coloured markers; "hidden" does neither.
        rendering: "fast" (no shadows, reflections or anti-aliasing), or "exact" as Meta-World has it, ten times slower.
        out_of_range: "clip" or "error".
        terminate_on_success: None does so with the sparse reward only.
        action_repeat: steps of the simulator that each action is applied for; only the last is observed, and drawn.
        render_mode: "rgb_array" or None.

    Raises:
        DependencyNotInstalled: Meta-World is missing.
        ValueError: an argument out of range.

    >>> env = VLAManipulationEnv(task="drawer-open", image_size=64, phrasing="plain")
    >>> observation, info = env.reset(seed=0)
    >>> observation["image"].shape, observation["state"].shape, observation["instruction"], info["task"]
    ((64, 64, 3), (14,), 'open the drawer', 'drawer-open')
    >>> observation, reward, terminated, truncated, info = env.step(env.expert_action())
    >>> reward, info["is_success"]
    (0.0, False)
    >>> env.close()
    """

    def __init__(
        self,
        task: str | Sequence[str] = "reach",
        *,
        image_size: int | tuple[int, int] = 128,
        cameras: str | Sequence[str] = "corner2",
        reward: RewardKind = "sparse",
        split: Split = "id",
        phrasing: Phrasing = "train",
        instruction: str | None = None,
        goal: Goal = "language",
        rendering: Rendering = "fast",
        out_of_range: OutOfRange = "clip",
        terminate_on_success: bool | None = None,
        action_repeat: int = 1,
        render_mode: str | None = None,
    ) -> None:
        rules = EpisodeRules(reward, terminate_on_success, split, phrasing, instruction, out_of_range, action_repeat)
        shape = image_shape_of(image_size)
        chosen_tasks = chosen(task, MetaWorld.tasks, "task")
        chosen_cameras = () if cameras in ((), []) else chosen(cameras, CAMERAS, "camera")
        simulator = MetaWorld(height=shape[0], width=shape[1], rendering=rendering, goal=goal)
        super().__init__(simulator, chosen_tasks, rules=rules, cameras=chosen_cameras, image_shape=shape, render_mode=render_mode)


class VLAManipulationStateEnv(ManipulationEnv):
    """The same tasks without images, for quick studies: the observation is the simulator's own state, the target included.

    **Action** and **reward**: as in :class:`VLAManipulationEnv`.

    **Observation**: float32, shape (39 + tasks,) where there are several tasks, (39,) with one: hand, gripper and objects (18),
    how they changed in the last step (18), the target (3), and which task it is.

    Args:
        task: the name of a task, or several, one drawn for each episode.
        reward: "sparse" or "dense".
        split: which initial states.
        out_of_range: "clip" or "error".
        terminate_on_success: None does so with the sparse reward only.
        action_repeat: steps of the simulator that each action is applied for.
        render_mode: "rgb_array" or None.
        image_size: pixels of what :meth:`render` returns.

    >>> env = VLAManipulationStateEnv(task=["reach", "push"])
    >>> env.observation_space.shape
    (41,)
    """

    simulator: MetaWorld

    def __init__(
        self,
        task: str | Sequence[str] = "reach",
        *,
        reward: RewardKind = "sparse",
        split: Split = "id",
        out_of_range: OutOfRange = "clip",
        terminate_on_success: bool | None = None,
        action_repeat: int = 1,
        render_mode: str | None = None,
        image_size: int | tuple[int, int] = 256,
    ) -> None:
        rules = EpisodeRules(reward, terminate_on_success, split, out_of_range=out_of_range, action_repeat=action_repeat)
        height, width = image_shape_of(image_size)
        chosen_tasks = chosen(task, MetaWorld.tasks, "task")
        simulator = MetaWorld(height=height, width=width, goal="marker")
        super().__init__(simulator, chosen_tasks, rules=rules, cameras=("corner2",), render_mode=render_mode)
        space, extra = simulator.privileged_space, len(self.tasks) if len(self.tasks) > 1 else 0
        low, high = np.append(space.low, np.zeros(extra)), np.append(space.high, np.ones(extra))
        self.observation_space = Box(low.astype(np.float32), high.astype(np.float32))

    def _observe(self) -> NDArray[np.float32]:
        which: Any = []
        if len(self.tasks) > 1:
            assert self._start is not None
            which = [float(self._start.task == task) for task in self.tasks]
        return np.append(self.simulator.privileged(), np.array(which, np.float32)).astype(np.float32)
