"""Texts travel through Gymnasium's vector environments, shared memory and autoreset as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from tests.test_spaces import LENGTH, TEXTS, Echo
from wmrl_gym.spaces import UnicodeText


class Chatter(gym.Env[str, str]):
    """A text observation and a text action without any Dict around them; says more than its space allows when asked to."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText(LENGTH)
        self.action_space = UnicodeText(LENGTH)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "hello", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action * 2 if action == "overflow me" * 2 else action, 0.0, False, False, {}


def say(words: Sequence[str], stop: Sequence[int] | None = None) -> dict[str, Any]:
    return {"say": tuple(words), "stop": np.zeros(len(words), dtype=np.int64) if stop is None else np.array(stop)}


VectorFactory = Callable[[Sequence[Callable[[], gym.Env[Any, Any]]]], VectorEnv[Any, Any, Any]]

VECTOR_ENVS = [
    pytest.param(SyncVectorEnv, id="sync"),
    *(
        pytest.param(partial(AsyncVectorEnv, context=context, shared_memory=shared), id=f"{context}-{memory}")
        for context in ("fork", "spawn", "forkserver")
        for shared, memory in ((True, "shared-memory"), (False, "pipes"))
    ),
]


@pytest.fixture(params=VECTOR_ENVS)
def make(request: pytest.FixtureRequest) -> VectorFactory:
    factory: VectorFactory = request.param
    return factory


# Python >= 3.12 warns of every fork in a process that has threads. That is what the "fork" case does on purpose.
forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

either = pytest.mark.parametrize("factory", [SyncVectorEnv, AsyncVectorEnv])


@pytest.mark.parametrize("env", [Echo, Chatter])
def test_check_env_has_nothing_to_say(env: type[gym.Env[Any, Any]]) -> None:
    made = gym.make(EnvSpec("Texts-v0", entry_point=env))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)


@forks
def test_vector_envs_carry_every_text_both_ways(make: VectorFactory) -> None:
    envs = make([partial(Echo, "🙂" * LENGTH), partial(Echo, "line\n")])
    try:
        first, _ = envs.reset(seed=0)
        assert first["text"] == ("🙂" * LENGTH, "line\n")
        assert type(first["text"]) is tuple
        assert first in envs.observation_space
        for said in zip(TEXTS, TEXTS[::-1], strict=True):
            observation, reward, *_ = envs.step(say(said))
            assert observation["text"] == said
            assert observation in envs.observation_space
            assert reward.tolist() == [len(text) for text in said] == observation["length"][:, 0].tolist()
        assert first["text"] == ("🙂" * LENGTH, "line\n"), "an earlier observation must not change"
    finally:
        envs.close()


@forks
@either
def test_vector_envs_reset_one_slot_alone(factory: Callable[..., VectorEnv[Any, Any, Any]]) -> None:
    envs = factory([partial(Echo, start) for start in ("é", "🙂")])
    try:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.reset(seed=0)
        _, _, terminated, *_ = envs.step(say(["end", "go on"], stop=[1, 0]))
        assert terminated.tolist() == [True, False]
        observation, *_ = envs.step(say(["ignored", "still here"]))
        assert observation["text"] == ("é", "still here")
    finally:
        envs.close()


@forks
@either
def test_same_step_autoreset_keeps_the_final_text(factory: Callable[..., VectorEnv[Any, Any, Any]]) -> None:
    envs = factory([partial(Echo, "start"), partial(Echo, "start")], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        envs.reset(seed=0)
        observation, _, _, _, info = envs.step(say(["last 🙂\n", "middle"], stop=[1, 0]))
        assert observation["text"] == ("start", "middle")
        assert info["final_obs"][0]["text"] == "last 🙂\n"
    finally:
        envs.close()


@forks
@either
def test_bare_text_spaces_work_in_vector_envs_with_sampled_actions(factory: Callable[..., VectorEnv[Any, Any, Any]]) -> None:
    envs = factory([Chatter, Chatter, Chatter])
    try:
        observation, _ = envs.reset(seed=0)
        assert observation == ("hello",) * 3
        envs.action_space.seed(0)
        actions = envs.action_space.sample()
        observation, *_ = envs.step(actions)
        assert observation == actions
        assert observation in envs.observation_space
    finally:
        envs.close()


@forks
def test_without_copying_shared_memory_is_live() -> None:
    envs = AsyncVectorEnv([Chatter, Chatter], copy=False)
    try:
        observation, _ = envs.reset(seed=0)
        before = tuple(observation)
        envs.step(("π", "ß\n"))
        assert before == ("hello", "hello")
        assert tuple(observation) == ("π", "ß\n")
    finally:
        envs.close()


@forks
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium says which worker failed
def test_a_worker_whose_text_is_too_long_raises_and_does_not_cut_it() -> None:
    envs = AsyncVectorEnv([Chatter])
    try:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=rf"at most {LENGTH} characters for UnicodeText\({LENGTH}\), got 44"):
            envs.step(("overflow me" * 2,))
    finally:
        envs.close(terminate=True)
