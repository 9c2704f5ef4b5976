"""A whole run on disk: the algorithm, what the world model has learnt, anchors and corrections, random numbers."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from wmrl_gym.files import folder_made_anew, writing
from wmrl_gym.integrations.sb3.buffers import WeightedBuffer
from wmrl_gym.integrations.sb3.replay import Relabelling
from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv, base_of, vec_layers
from wmrl_gym.world_models import WorldModel, load_model
from wmrl_gym.wrappers import world_model_parts
from wmrl_gym.wrappers.diagnostics import layers

AlgorithmT = TypeVar("AlgorithmT", bound=BaseAlgorithm)

_FORMAT = 1
_TRAINER, _WORLD_MODEL, _STATE = "trainer.zip", "world_model", "state.pkl"
_OF_THE_ENVIRONMENT = ("venv", "debiasing", "residual", "engine", "real")
"""What a replay buffer refers to, and is given anew."""
_SCALES = ("obs_rms", "ret_rms", "returns")


def save(path: str | Path, trainer: BaseAlgorithm) -> None:
    """Save a run in a folder, whole: it goes on from there with :func:`load`, to the same end where nothing depends on the clock.

    Call it between two calls of ``learn``, or at the end of a rollout. Background anchors that have not finished are executed
    again after loading. What :class:`LateAnchors` has parked is not saved.

    Args:
        path: the folder; what it held is replaced when the new one is complete.
        trainer: an algorithm on what :func:`to_vec_env` made.

    Raises:
        TypeError: it trains on another environment.
        CannotWrite: the folder cannot be written; what was there is whole.
        RuntimeError: a real episode of an environment that cannot be saved is under way.
    """
    folder = Path(path)
    venv = base_of(trainer.get_env())
    parts = world_model_parts(venv.envs)
    state = {
        "format": _FORMAT,
        "world_model": parts is not None,
        "layers": [layer.state_dict() for layer in _with_state(venv)],
        "steps": {name: getattr(venv, name).copy() for name in ("_return", "_length")},
        "scales": [{name: getattr(each, name) for name in _SCALES} for each in _normalisers(trainer.get_env())],
        "buffer": _buffer_state(trainer),
        "random": _random_state(trainer),
    }
    with writing(folder, advice="make room there, or choose another folder"), folder_made_anew(folder) as made:
        trainer.save(made / _TRAINER, exclude=["rollout_buffer_kwargs", "replay_buffer_kwargs"])
        if parts is not None:
            parts.model.save(made / _WORLD_MODEL)
        (made / _STATE).write_bytes(pickle.dumps(state))


def load(
    path: str | Path,
    algorithm: type[AlgorithmT],
    environment: Callable[[WorldModel | None], VecEnv],
    *,
    world_model: WorldModel | None = None,
    **changes: Any,
) -> AlgorithmT:
    """Go on with a run that :func:`save` saved: ``load("run", PPO, make).learn(10_000, reset_num_timesteps=False)``.

    Without a world model the environments have no state that could be saved, and begin new episodes.

    Like SB3's own files, the folder holds pickled objects: load only what you trust.

    Args:
        path: the folder.
        algorithm: the class of the trainer.
        environment: makes the environment anew, around the world model that it is given, with the arguments it had: such as
            ``lambda model: to_vec_env(corrected("CartPole-v1", model, num_envs=8))``. It is given None where there was no model.
        world_model: a fresh one of a kind of your own, whose ``load`` is called with what its ``save`` wrote; None makes one of
            ours.
        **changes: what is to be other than saved, such as ``learning_rate=1e-4`` or ``weighted(venv)``.

    Raises:
        FileNotFoundError: there is no such run in the folder.
        ValueError: it was saved by another version, or the environment has other layers than it had.
        TypeError: ``environment`` makes another one than :func:`to_vec_env` does.
    """
    folder = Path(path)
    if not (folder / _STATE).is_file():
        raise FileNotFoundError(f"{folder} holds no run that sb3.save saved: there is no {_STATE} in it")
    state = pickle.loads((folder / _STATE).read_bytes())
    if state.get("format") != _FORMAT:
        raise ValueError(
            f"the run in {folder} has the format {state.get('format')}, expected {_FORMAT}: another version saved it"
        )
    outer = environment(_world_model(folder / _WORLD_MODEL, world_model))
    venv = base_of(outer)
    stateful = list(_with_state(venv))
    if len(stateful) != len(state["layers"]):
        raise ValueError(f"the saved run has {len(state['layers'])} layers with a state, the environment has {len(stateful)}")
    for layer, saved in zip(stateful, state["layers"], strict=True):
        layer.load_state_dict(saved)
    for name, value in state["steps"].items():
        getattr(venv, name)[:] = value
    for normaliser, saved in zip(_normalisers(outer), state["scales"], strict=True):
        for name, value in saved.items():
            setattr(normaliser, name, value)
    trainer = algorithm.load(
        folder / _TRAINER,
        env=outer,
        force_reset=not state["world_model"],
        **{**_buffer_arguments(state["buffer"], venv), **changes},
    )
    _restore_buffer(trainer, state["buffer"])
    _restore_random_state(trainer, state["random"])
    return trainer


def _random_state(trainer: BaseAlgorithm) -> dict[str, Any]:
    """Of everything that SB3 draws from: the programs' generators, and the action space's."""
    space = trainer.action_space.np_random.bit_generator.state
    own = np.random.get_state()
    return {"python": random.getstate(), "numpy": own, "torch": torch.get_rng_state(), "actions": space}


def _restore_random_state(trainer: BaseAlgorithm, saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    trainer.action_space.np_random.bit_generator.state = saved["actions"]


def _world_model(folder: Path, own: WorldModel | None) -> WorldModel | None:
    if not folder.is_dir():
        return None
    if own is None:
        return load_model(folder)
    own.load(folder)
    return own


def _with_state(venv: GymnasiumVecEnv) -> Iterator[Any]:
    """The layers that have a state of their own; looked up on the class, since wrappers forward what they do not have."""
    return (layer for layer in layers(venv.envs) if hasattr(type(layer), "state_dict"))


def _normalisers(venv: Any) -> Iterator[VecNormalize]:
    return (layer for layer in vec_layers(venv) if isinstance(layer, VecNormalize))


def _buffer_state(trainer: BaseAlgorithm) -> dict[str, Any] | None:
    kept: Any = getattr(trainer, "replay_buffer", None)
    if isinstance(kept, Relabelling):
        rows = {name: value for name, value in vars(kept).items() if name not in _OF_THE_ENVIRONMENT}
        return {"kind": "replay", "rows": rows, "real_share": 0.0 if kept.real is None else kept.real.share}
    if kept is not None:
        return {"kind": "plain replay", "rows": dict(vars(kept))}
    rollout: Any = getattr(trainer, "rollout_buffer", None)
    return {"kind": "rollout", "rng": rollout.rng} if isinstance(rollout, WeightedBuffer) else None


def _buffer_arguments(saved: dict[str, Any] | None, venv: GymnasiumVecEnv) -> dict[str, Any]:
    if saved is None or saved["kind"] == "plain replay":
        kind = "rollout" if saved is None else "replay"
        return {f"{kind}_buffer_kwargs": {}}
    if saved["kind"] == "rollout":
        return {"rollout_buffer_kwargs": {"venv": venv}}
    return {"replay_buffer_kwargs": {"venv": venv, "real_share": saved["real_share"]}}


def _restore_buffer(trainer: Any, saved: dict[str, Any] | None) -> None:
    if saved is None:
        return
    if saved["kind"] == "rollout":
        trainer.rollout_buffer.rng = saved["rng"]
    else:
        vars(trainer.replay_buffer).update(saved["rows"])
