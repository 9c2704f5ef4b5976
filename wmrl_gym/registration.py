"""The ids that ``import wmrl_gym`` registers. Entry points are strings: nothing is imported until an environment is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from wmrl_gym.factored import Factored

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
_IMAGINED = (
    "anchors",
    "group_size",
    "anchor_mode",
    "pairs",
    "warmup",
    "update_every",
    "update_mode",
    "max_model_steps",
    "start_states",
    "max_in_flight",
    "uncertainty",
    "seed",
)


def register_environments() -> None:
    """Register all ids; ids that are registered already stay as they are."""
    if IDS[0] not in gym.registry:
        gym.register(
            id=IDS[0],
            entry_point="wmrl_gym.envs.autoresearch:AutoResearchEnv",
            vector_entry_point="wmrl_gym.registration:make_autoresearch",
        )
    if IDS[1] not in gym.registry:
        gym.register(
            id=IDS[1],
            entry_point="wmrl_gym.envs.autoresearch:AutoResearchDesignEnv",
            vector_entry_point="wmrl_gym.registration:make_autoresearch_design",
        )
    _register_manipulation()


def _register_manipulation() -> None:
    from gymnasium.envs.registration import WrapperSpec

    package = "wmrl_gym.envs.manipulation"
    refuse = WrapperSpec("RefuseAfterEnd", f"{package}.ended:RefuseAfterEnd", {})
    entries: dict[str, tuple[str, dict[str, Any]]] = {
        "wmrl/VLAManipulation-v0": (f"{package}:VLAManipulationEnv", {}),
        "wmrl/VLAManipulationState-v0": (f"{package}:VLAManipulationStateEnv", {}),
        "wmrl/LIBERO-v0": (f"{package}:LiberoEnv", {}),
    }
    for task in METAWORLD_TASKS:
        entries[f"wmrl/VLA-{task}-v0"] = (f"{package}:VLAManipulationEnv", {"task": task})
    for name, (entry_point, options) in entries.items():
        if name not in gym.registry:
            steps = LIBERO_STEPS if "LIBERO" in name else MANIPULATION_STEPS
            gym.register(name, entry_point=entry_point, kwargs=options, max_episode_steps=steps, additional_wrappers=(refuse,))


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

    model, preset, late = options.pop("world_model", None), options.pop("preset", None), options.pop("late", False)
    gain = {"max_gain": options.pop("max_gain")} if "max_gain" in options else {}
    max_real = options.pop("max_real", 1)
    mode = options.pop("autoreset_mode", AutoresetMode.NEXT_STEP)
    imagined = {key: options.pop(key) for key in _IMAGINED if key in options}
    if (late or gain) and preset is None:
        raise ValueError("late and max_gain are for the corrections, which need preset=..., got none")
    if model is None and (imagined or preset is not None):
        unusable = sorted(imagined) + (["preset"] if preset is not None else [])
        raise ValueError(f"{', '.join(unusable)} say how to imagine, which needs world_model=..., got none")
    options.setdefault("workers", max_real)
    if model is None:
        return FactoredVectorEnv(factored(**options), num_envs=num_envs, max_real=max_real, autoreset_mode=mode)
    shared = {"max_real": max_real, "autoreset_mode": mode, **imagined}
    if preset is None:
        return WorldModelVectorEnv(factored(**options), model, num_envs=num_envs, **shared)
    return corrected(factored(**options), model, num_envs=num_envs, preset=preset, late=late, **gain, **shared)
