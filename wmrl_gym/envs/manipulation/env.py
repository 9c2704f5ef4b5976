"""The manipulation environments: a robot arm, cameras, and a sentence that says what to do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from wmrl_gym.envs.manipulation.actions import OutOfRange, checked_action
from wmrl_gym.envs.manipulation.instructions import MAX_INSTRUCTION, Phrasing, checked_instruction, known_task
from wmrl_gym.envs.manipulation.simulator import Simulator, Split, Start, checked_split
from wmrl_gym.spaces import UnicodeText

RewardKind = Literal["sparse", "dense"]
_OPTIONS = ("task", "split", "instruction", "state")


@dataclass(frozen=True, slots=True)
class EpisodeRules:
    """What an episode is, whatever is simulated.

    Args:
        reward: "sparse": 1 in the step that succeeds, else 0. "dense": the simulator's own shaped reward.
        terminate_on_success: whether success ends the episode; None does so with the sparse reward. With a dense reward that
            pays every step an end would be a punishment.
        split: which initial states.
        phrasing: which sentences.
        instruction: one sentence for all episodes, instead of a task's own.
        out_of_range: what is done with numbers of an action that are out of range.
        action_repeat: steps of the simulator that each action is applied for, fewer only where success ends the episode. Only the
            last of them is observed, so that images cost less; the dense reward is the sum over them.

    Raises:
        ValueError: an argument out of range.
    """

    reward: RewardKind = "sparse"
    terminate_on_success: bool | None = None
    split: Split = "id"
    phrasing: Phrasing = "train"
    instruction: str | None = None
    out_of_range: OutOfRange = "clip"
    action_repeat: int = 1

    def __post_init__(self) -> None:
        if self.reward not in ("sparse", "dense"):
            raise ValueError(f'reward must be "sparse" or "dense", got {self.reward!r}')
        if self.phrasing not in ("plain", "train", "held_out"):
            raise ValueError(f'phrasing must be "plain", "train" or "held_out", got {self.phrasing!r}')
        if self.out_of_range not in ("clip", "error"):
            raise ValueError(f'out_of_range must be "clip" or "error", got {self.out_of_range!r}')
        if self.action_repeat < 1:
            raise ValueError(f"action_repeat must be at least 1, got {self.action_repeat}")
        checked_split(self.split)
        if self.instruction is not None:
            checked_instruction(self.instruction)

    @property
    def ends_on_success(self) -> bool:
        """Whether success ends the episode."""
        return self.reward == "sparse" if self.terminate_on_success is None else self.terminate_on_success


class ManipulationEnv(gym.Env[Any, NDArray[np.float32]]):
    """A simulator as an environment; a subclass says what of it is observed.

    ``info`` holds ``is_success`` (bool), ``task`` (its name) and ``context`` (which of the environment's tasks it is).

    Args:
        simulator: simulates.
        tasks: names of the tasks that episodes are drawn from.
        rules: what an episode is.
        cameras: names of the cameras, the one that :meth:`render` shows first; without one nothing can be rendered.
        render_mode: "rgb_array" or None.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 80}  # type: ignore[misc]

    def __init__(
        self,
        simulator: Simulator,
        tasks: Sequence[str],
        *,
        rules: EpisodeRules,
        cameras: Sequence[str],
        render_mode: str | None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, got {render_mode!r}")
        if render_mode is not None and not cameras:
            raise ValueError(f"render_mode {render_mode!r} needs a camera, got no cameras")
        self.simulator = simulator
        self.tasks = tuple(tasks)
        self.rules = rules
        self.cameras = tuple(cameras)
        self.render_mode = render_mode
        if rules.action_repeat > 1:  # fewer frames of the same time
            fps = max(1, round(self.metadata["render_fps"] / rules.action_repeat))
            self.metadata = {**self.metadata, "render_fps": fps}  # type: ignore[misc]
        self.action_space = simulator.action_space  # type: ignore[assignment]
        self.instruction = ""
        self._start: Start | None = None
        self._over, self._closed = True, False

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: everything but the running episode, since a simulation cannot be copied."""
        return {**vars(self), "_start": None, "_over": True, "instruction": ""}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the same seed and options give the same one.

        Args:
            seed: of the task, the sentence and the initial state.
            options: ``task``, ``split``, ``instruction`` or ``state`` (number of a fixed initial state) for this episode only.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            ValueError: an option that there is not, or a value out of range.
        """
        self._must_be_open("reset")
        super().reset(seed=seed)
        options = options or {}
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ValueError(f"reset() knows the options {', '.join(_OPTIONS)}, got {', '.join(map(repr, unknown))}")
        drawn = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        task = known_task(options["task"], self.tasks) if "task" in options else drawn
        self._start = Start(task, checked_split(options.get("split", self.rules.split)), options.get("state"))
        self.simulator.start(self._start, self.np_random)
        self.instruction = self._instruction(options)
        self._over = False
        return self._observe(), self._info(success=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            gymnasium.error.ResetNeeded: before the first reset, or after the end of an episode.
            ValueError: an action with an entry that is not finite, or (``out_of_range="error"``) out of range.
        """
        self._must_be_open("step")
        if self._over:
            raise gym.error.ResetNeeded("the episode is over, or none has begun: call reset() before step()")
        wanted = checked_action(action, self.simulator.action_space, out_of_range=self.rules.out_of_range)
        dense = 0.0
        for _ in range(self.rules.action_repeat):
            outcome = self.simulator.step(wanted)
            dense += outcome.dense
            self._over = outcome.success and self.rules.ends_on_success
            if self._over:
                break
        reward = float(outcome.success) if self.rules.reward == "sparse" else dense
        return self._observe(), reward, self._over, False, self._info(success=outcome.success)

    def render(self) -> NDArray[np.uint8] | None:
        """What the first camera sees: uint8, shape (height, width, 3); None without a render mode.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._must_be_open("render")
        if self._start is None:
            raise gym.error.ResetNeeded("there is nothing to see yet: call reset() before render()")
        return None if self.render_mode is None else self.simulator.image(self.cameras[0])

    def expert_action(self) -> NDArray[np.float32]:
        """What the simulator's scripted expert would do now: float32, inside the action space.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            gymnasium.error.ResetNeeded: before the first reset.
            NotImplementedError: the simulator has none.
        """
        self._must_be_open("expert_action")
        if self._start is None:
            raise gym.error.ResetNeeded("the expert has nothing to look at yet: call reset() before expert_action()")
        return self.simulator.expert_action()

    def close(self) -> None:
        """Free the simulator and its OpenGL contexts. A closed environment stays closed."""
        self._start, self._over, self._closed = None, True, True
        self.simulator.close()

    def _must_be_open(self, method: str) -> None:
        if self._closed:
            raise gym.error.ClosedEnvironmentError(f"{method}() was called on an environment that was closed: make another one")

    @abstractmethod
    def _observe(self) -> Any:
        """The observation of now."""

    def _instruction(self, options: Mapping[str, Any]) -> str:
        sentences = self.simulator.sentences(self.rules.phrasing)
        drawn = sentences[int(self.np_random.integers(len(sentences)))]
        return checked_instruction(options.get("instruction", self.rules.instruction or drawn))

    def _info(self, *, success: bool) -> dict[str, Any]:
        assert self._start is not None
        return {"is_success": success, "task": self._start.task, "context": self.tasks.index(self._start.task)}


class VisionLanguageEnv(ManipulationEnv):
    """Observes what a vision-language-action policy does: images, the robot's own state, and a sentence."""

    def __init__(
        self,
        simulator: Simulator,
        tasks: Sequence[str],
        *,
        rules: EpisodeRules,
        cameras: Sequence[str],
        image_shape: tuple[int, int],
        render_mode: str | None,
    ) -> None:
        super().__init__(simulator, tasks, rules=rules, cameras=cameras, render_mode=render_mode)
        image = Box(0, 255, (*image_shape, 3), np.uint8)
        self._keys = {camera: "image" if place == 0 else f"image_{camera}" for place, camera in enumerate(self.cameras)}
        self.observation_space = Dict(
            {
                **{key: image for key in self._keys.values()},
                "instruction": UnicodeText(MAX_INSTRUCTION, min_length=1),
                "state": simulator.proprioception_space,
            }
        )

    def _observe(self) -> dict[str, Any]:
        images = {key: self.simulator.image(camera) for camera, key in self._keys.items()}
        return {**images, "instruction": self.instruction, "state": self.simulator.proprioception()}


def image_shape_of(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels.

    Raises:
        ValueError: a side that is not between 16 and 1024.
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    for side in (height, width):
        if not 16 <= side <= 1024:
            raise ValueError(f"image_size must be 16 to 1024 pixels, got {image_size}")
    return int(height), int(width)


def chosen(names: str | Sequence[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    """``names`` as a tuple, each of them ``known``.

    Raises:
        ValueError: none, one twice, or one that there is not.
    """
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given or len(set(given)) < len(given):
        raise ValueError(f"expected one {what} or several different ones, got {names!r}")
    for name in given:
        if what == "task":
            known_task(name, known)
        elif name not in known:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return given
