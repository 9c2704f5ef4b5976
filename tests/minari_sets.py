"""Small Minari data sets, written by Minari itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer

from wmrl_gym import batch
from wmrl_gym.factored import Factored, Outcome, resolve

Policy = Callable[[np.random.Generator, Any], Any]


def write(root: Path, name: str, env: gym.Env[Any, Any] | None, buffers: list[EpisodeBuffer], **spaces: Any) -> Path:
    """Write episodes below ``root``; returns the data set's folder."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    try:
        spec = None if env is None else env.spec
        said = {"author": "tests", "author_email": "none", "code_permalink": "none", "algorithm_name": "random"}
        minari.create_dataset_from_buffers(name, buffers, env=spec, eval_env=spec, description="for tests", **said, **spaces)
    finally:
        del os.environ["MINARI_DATASETS_PATH"]
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before
    return root / name


def random_episodes(env: gym.Env[Any, Any], count: int, *, seed: int = 0) -> list[EpisodeBuffer]:
    """Whole episodes of random actions."""
    env.action_space.seed(seed)
    return [_episode(env, number, seed + number) for number in range(count)]


def _episode(env: gym.Env[Any, Any], number: int, seed: int) -> EpisodeBuffer:
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, terminations, truncations = [observation], [], [], [], []
    while not (terminations and (terminations[-1] or truncations[-1])):
        actions.append(env.action_space.sample())
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(float(reward))
        terminations.append(terminated)
        truncations.append(truncated)
    return EpisodeBuffer(
        id=number,
        seed=seed,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
    )


def factored_episodes(factored: Factored[Any, Any], count: int, *, seed: int = 0) -> tuple[list[EpisodeBuffer], list[Any]]:
    """Episodes of random actions with what each attempt brought, and the attempts themselves, a batch for each episode."""
    rng = np.random.default_rng(seed)
    buffers, attempts = [], []
    for number in range(count):
        buffer, tried = _factored_episode(factored, number, rng)
        buffers.append(buffer)
        attempts.append(tried)
    return buffers, attempts


def _factored_episode(factored: Factored[Any, Any], number: int, rng: np.random.Generator) -> tuple[EpisodeBuffer, Any]:
    observation, info = factored.start(np.array([number], np.int64))
    state, context = factored.begin(observation, info), int(info["context"][0])
    observations, actions, attempts, outcomes, steps = [observation[0]], [], [], [], []
    while not steps or not (steps[-1].terminated[0] or steps[-1].truncated[0]):
        actions.append(rng.integers(0, factored.action_space.nvec))  # type: ignore[attr-defined]
        attempts.append(factored.attempt(state, actions[-1][None]))
        outcomes.append(resolve(factored, attempts[-1]))
        state, step = factored.advance(state, attempts[-1], outcomes[-1])
        observations.append(step.observation[0])
        steps.append(step)
    outcome = batch.concatenate(outcomes)
    told: dict[str, Any] = {field.name: np.asarray(getattr(outcome, field.name)) for field in fields(Outcome)}
    told["feedback"] = [str(text) for text in outcome.feedback]
    buffer = EpisodeBuffer(
        id=number,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=[float(step.reward[0]) for step in steps],
        terminations=[bool(step.terminated[0]) for step in steps],
        truncations=[bool(step.truncated[0]) for step in steps],
        infos={"context": [context] * len(steps), "reward_valid": [bool(s.reward_valid[0]) for s in steps], "outcome": told},
    )
    return buffer, batch.concatenate(attempts)
