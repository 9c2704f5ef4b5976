"""The ids that ``import wmrl_gym`` registers. Entry points are strings: nothing is imported until an environment is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from wmrl_gym.factored import Factored
    from wmrl_gym.world_models import WorldModel
    from wmrl_gym.wrappers.presets import PresetName

IDS = ("wmrl/AutoResearch-v0", "wmrl/AutoResearchDesign-v0")

METAWORLD_TASKS = (
    *("assembly", "basketball", "bin-picking", "box-close", "button-press", "button-press-topdown", "button-press-topdown-wall"),
    *("button-press-wall", "coffee-button", "coffee-pull", "coffee-push", "dial-turn", "disassemble", "door-close", "door-lock"),
    *("door-open", "door-unlock", "drawer-close", "drawer-open", "faucet-close", "faucet-open", "hammer", "hand-insert"),
    *("handle-press", "handle-press-side", "handle-pull", "handle-pull-side", "lever-pull", "peg-insert-side", "peg-unplug-side"),
    *("pick-out-of-hole", "pick-place", "pick-place-wall", "plate-slide", "plate-slide-back", "plate-slide-back-side"),
    *("plate-slide-side", "push", "push-back", "push-wall", "reach", "reach-wall", "shelf-place", "soccer", "stick-pull"),
    *("stick-push", "sweep", "sweep-into", "window-close", "window-open"),
)
"""Each of them is an id as well: ``wmrl/VLA-drawer-open-v0``."""

MANIPULATION_STEPS = 200
"""Steps after which an episode on Meta-World is truncated."""

LIBERO_STEPS = 520
"""The same on LIBERO."""


def register_environments() -> None:
    """Register all ids; ids that are registered already stay as they are."""
    if IDS[0] not in gym.registry:
        gym.register(
            id=IDS[0],
            entry_point="wmrl_gym.registration:one_autoresearch",
            vector_entry_point="wmrl_gym.registration:make_autoresearch",
        )
    if IDS[1] not in gym.registry:
        gym.register(
            id=IDS[1],
            entry_point="wmrl_gym.registration:one_autoresearch_design",
            vector_entry_point="wmrl_gym.registration:make_autoresearch_design",
        )
    _register_manipulation()


def _register_manipulation() -> None:
    entries: dict[str, tuple[str, dict[str, Any]]] = {
        "wmrl/VLAManipulation-v0": ("one_manipulation", {}),
        "wmrl/VLAManipulationState-v0": ("one_manipulation_state", {}),
        "wmrl/LIBERO-v0": ("one_libero", {}),
        **{f"wmrl/VLA-{task}-v0": ("one_manipulation", {"task": task}) for task in METAWORLD_TASKS},
    }
    for name, (maker, options) in entries.items():
        if name not in gym.registry:
            made = globals()[maker]
            gym.register(
                name,
                entry_point=f"wmrl_gym.registration:{maker}",
                kwargs=options,
                max_episode_steps=made.max_episode_steps,
                additional_wrappers=made.additional_wrappers,
            )


class OneEnvironment:
    """What ``gymnasium.make(id, ...)`` calls: an environment, in a world model where one is given.

    Args:
        cls: the environment's class, as ``"module:Class"``; imported when it is used.
        metadata: the class's own.
        max_episode_steps: its time limit.
        additional_wrappers: what stands around it, innermost first.
    """

    def __init__(
        self,
        cls: str,
        metadata: dict[str, Any],
        *,
        max_episode_steps: int | None = None,
        additional_wrappers: tuple[WrapperSpec, ...] = (),
    ) -> None:
        self.cls, self.metadata = cls, metadata
        self.max_episode_steps, self.additional_wrappers = max_episode_steps, additional_wrappers

    def __call__(
        self, *, world_model: WorldModel | None = None, preset: PresetName | None = None, **options: Any
    ) -> gym.Env[Any, Any]:
        """Make one.

        Args:
            world_model: None executes every step for real.
            preset: corrections around the world model, see :func:`wmrl_gym.wrappers.corrected`.
            **options: with a world model those of :class:`~wmrl_gym.wrappers.WorldModelWrapper` say how to imagine; the others
                are the environment's own.

        Raises:
            ValueError: options that say how to imagine, without a world model.
        """
        if world_model is None and preset is None and not options.keys() & _CORRECTIONS:
            if options:  # the environment itself names what it does not know
                _refuse(_engine_options() & options.keys(), preset)
            return cast("gym.Env[Any, Any]", load_env_creator(self.cls)(**options))
        imagining, own = _parted(options, world_model, preset)
        inner = EnvSpec(
            self.cls.split(":")[1] + "-v0",
            self.cls,
            max_episode_steps=self.max_episode_steps,
            additional_wrappers=self.additional_wrappers,
            kwargs=own,
        )
        from wmrl_gym.wrappers import WorldModelWrapper, corrected

        real, model = gym.make(inner), cast("WorldModel", world_model)
        env = (
            WorldModelWrapper(real, model, **imagining) if preset is None else corrected(real, model, preset=preset, **imagining)
        )
        layer: Any = env
        while layer is not real:
            layer.made_by_id, layer = True, layer.env
        return env


_CORRECTIONS = frozenset(("late", "max_gain"))
"""Options of the corrections, which need a preset."""
_VECTOR = frozenset(("warmup",))
"""Options of many environments in a world model besides the engine's."""


def _engine_options() -> set[str]:
    from wmrl_gym.engine.options import names

    return {*names()} - {"max_episode_steps"}


def _parted(options: dict[str, Any], world_model: Any, preset: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that say how to imagine and correct, and the environment's own.

    Raises:
        ValueError: options that say how to imagine without a world model, or how to correct without a preset.
    """
    known = _engine_options() | _CORRECTIONS | _VECTOR | {"max_episode_steps"}
    imagining = {name: value for name, value in options.items() if name in known}
    if imagining.keys() & _CORRECTIONS and preset is None:
        raise ValueError("late and max_gain are for the corrections, which need preset=..., got none")
    if world_model is None:
        _refuse(set(imagining) - {"max_episode_steps"}, preset)
    return imagining, {name: value for name, value in options.items() if name not in known}


def _refuse(imagining: set[str], preset: str | None) -> None:
    unusable = sorted(imagining) + (["preset"] if preset is not None else [])
    if unusable:
        raise ValueError(f"{', '.join(unusable)} say how to imagine, which needs world_model=..., got none")


_TEXT = {"render_modes": ["ansi"], "render_fps": 1}
_IMAGES = {"render_modes": ["rgb_array"], "render_fps": 80}
_REFUSE = (WrapperSpec("RefuseAfterEnd", "wmrl_gym.envs.manipulation.ended:RefuseAfterEnd", {}),)

one_autoresearch = OneEnvironment("wmrl_gym.envs.autoresearch:AutoResearchEnv", _TEXT)
one_autoresearch_design = OneEnvironment("wmrl_gym.envs.autoresearch:AutoResearchDesignEnv", _TEXT)
one_manipulation = OneEnvironment(
    "wmrl_gym.envs.manipulation:VLAManipulationEnv", _IMAGES, max_episode_steps=MANIPULATION_STEPS, additional_wrappers=_REFUSE
)
one_manipulation_state = OneEnvironment(
    "wmrl_gym.envs.manipulation:VLAManipulationStateEnv",
    _IMAGES,
    max_episode_steps=MANIPULATION_STEPS,
    additional_wrappers=_REFUSE,
)
one_libero = OneEnvironment(
    "wmrl_gym.envs.manipulation:LiberoEnv", _IMAGES, max_episode_steps=LIBERO_STEPS, additional_wrappers=_REFUSE
)


def make_autoresearch(num_envs: int = 1, **options: Any) -> VectorEnv[Any, Any, Any]:
    """What ``gymnasium.make_vec("wmrl/AutoResearch-v0", num_envs=...)`` calls; see :func:`make_autoresearch_design`."""
    from wmrl_gym.envs.autoresearch import AutoResearchText

    return _make(AutoResearchText, num_envs, options)


def make_autoresearch_design(num_envs: int = 1, **options: Any) -> VectorEnv[Any, Any, Any]:
    """What ``gymnasium.make_vec("wmrl/AutoResearchDesign-v0", num_envs=...)`` calls.

    Args:
        num_envs: environments.
        **options: without ``world_model`` every step is executed for real, ``max_real`` at once. With it, those of
            :class:`~wmrl_gym.wrappers.vector.WorldModelVectorEnv` say how to imagine, and ``preset`` adds the corrections. The
            others are the environment's own.

    Raises:
        ValueError: options that say how to imagine, without a world model.
    """
    from wmrl_gym.envs.autoresearch import AutoResearchDesign

    return _make(AutoResearchDesign, num_envs, options)


def _make(factored: type[Factored[Any, Any]], num_envs: int, options: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    from gymnasium.vector import AutoresetMode

    from wmrl_gym.envs.factored_env import FactoredVectorEnv
    from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

    model, preset = options.pop("world_model", None), options.pop("preset", None)
    shared = {"max_real": options.pop("max_real", 1), "autoreset_mode": options.pop("autoreset_mode", AutoresetMode.NEXT_STEP)}
    imagining, own = _parted(options, model, preset)
    own.setdefault("workers", shared["max_real"])
    if model is None:
        return FactoredVectorEnv(factored(**own), num_envs=num_envs, **shared, **imagining)
    if preset is None:
        return WorldModelVectorEnv(factored(**own), model, num_envs=num_envs, **shared, **imagining)
    return corrected(factored(**own), model, num_envs=num_envs, preset=preset, **shared, **imagining)
