"""Real environments, executions and updates that raise: who is told, and what goes on."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from wmrl_gym.engine.gym_execution import EnvExecution
from wmrl_gym.engine.learner import BackgroundUpdates
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

ALL = np.ones(3, bool)


class Fragile(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises when it is told to, once in a step or a reset; it says whether it is being stepped, or closed."""

    made: ClassVar[list[Fragile]] = []

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.fails = self.closed = self.inside = False
        self.slow: threading.Event | None = None
        Fragile.made.append(self)

    def _break(self) -> None:
        if self.fails:
            self.fails = False
            raise OSError("the simulator went away")

    def reset(self, **options: Any) -> Any:
        self._break()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._break()
        self.inside = True
        if self.slow is not None:
            self.slow.wait(1)
        result = super().step(action)
        self.inside = False
        return result

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture(autouse=True)
def made() -> list[Fragile]:
    Fragile.made = []
    return Fragile.made


def start(real: EnvExecution, slots: list[int]) -> None:
    n = len(slots)
    real.start(np.array(slots), np.arange(n), options=None, keep=np.ones(n, bool))


def test_a_reset_that_fails_once_does_not_keep_the_only_environment_busy(made: list[Fragile]) -> None:
    real = EnvExecution(first=Fragile())
    made[0].fails = True
    with pytest.raises(OSError, match="went away"):
        start(real, [0])
    start(real, [0])
    assert real.step(np.array([0]), np.array([1])).step.reward.tolist() == [1.0]
    real.close()


def test_when_a_step_fails_no_other_is_under_way_and_all_begin_anew(made: list[Fragile]) -> None:
    real, slots = EnvExecution(Fragile, max_real=3), np.arange(3)
    start(real, [0, 1, 2])
    made[0].fails, made[1].slow = True, threading.Event()
    with pytest.raises(OSError, match="went away"):
        real.step(slots, np.ones(3, np.int64))
    assert not any(env.inside for env in made)
    with pytest.raises(RuntimeError, match="slot 0 has no real episode under way"):
        real.step(slots, np.ones(3, np.int64))
    start(real, [0, 1, 2])
    assert real.step(slots, np.ones(3, np.int64)).step.reward.tolist() == [1.0] * 3
    real.close()
    assert all(env.closed for env in made)


def test_an_instance_that_raised_is_replaced_but_the_users_own_is_kept(made: list[Fragile]) -> None:
    real = EnvExecution(Fragile, first=Fragile())
    start(real, [0])  # takes the first, so that the next one is made
    with pytest.raises(ZeroDivisionError):
        real.replay(0, None, lambda mask: 1 // 0)
    assert [env.closed for env in made] == [False, True]
    made[0].fails = True
    with pytest.raises(OSError, match="went away"):
        real.step(np.array([0]), np.array([1]))
    assert not made[0].closed
    assert len(real.replay(0, None, [0, 1])) == 2
    real.close()


def test_closing_closes_every_instance_should_one_raise(made: list[Fragile]) -> None:
    class Stuck(Fragile):
        def close(self) -> None:
            super().close()
            raise OSError("the window is gone")

    real = EnvExecution(Stuck)
    start(real, [0, 1, 2])
    with pytest.raises(OSError, match="the window is gone"):
        real.close()
    assert [env.closed for env in made] == [True] * 3
    with pytest.raises(RuntimeError, match="closed"):
        real.replay(0, None, [0])
    assert len(made) == 3


def test_a_run_goes_on_after_a_real_step_failed(made: list[Fragile]) -> None:
    env = WorldModelWrapper(Fragile(), Drift(), anchors=1.0, seed=0, max_episode_steps=5)
    env.reset(seed=0)
    made[0].fails = True
    with pytest.raises(OSError, match="went away"):
        env.step(1)
    env.reset()
    assert env.step(1)[1] == 1.0
    env.close()


def test_nothing_runs_on_after_random_actions_failed() -> None:
    class Second(Bandit):
        """Its second execution raises."""

        def execute(self, attempt: Any) -> Any:
            if self.executed == 1:
                raise OSError("the cluster went away")
            return super().execute(attempt)

    second = Second()
    envs = WorldModelVectorEnv(second, fitted(Bandit()), num_envs=2, max_real=2, seed=0)
    with pytest.raises(OSError, match="the cluster went away"):
        envs.warm_up(500)
    done = second.executed
    assert envs.engine.real.submit(0, None, []).result() == []  # the threads are free
    assert second.executed == done < 500
    envs.close()


class Failing:
    """A model whose updates fail when they are told to."""

    fails = True

    def compute_update(self, transitions: Any, rng: np.random.Generator) -> Any:
        if self.fails:
            raise MemoryError("no room for the batch")
        return transitions

    def apply_update(self, computed: Any) -> dict[str, float]:
        return {"wm/steps": float(computed)}


def test_an_update_that_failed_is_told_once_and_the_next_one_begins() -> None:
    model: Any = Failing()
    updates = BackgroundUpdates(model)
    updates.begin(1, seed=0)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="no room for the batch"):
        updates.apply(wait=True)
    assert not updates.running
    model.fails = False
    updates.begin(2, seed=0)  # type: ignore[arg-type]
    done = updates.apply(wait=True)
    assert done is not None
    assert done[0] == {"wm/steps": 2.0}
    updates.close()


def test_cpu_seconds_that_nobody_counts_are_not_told() -> None:
    plain = WorldModelWrapper(gym.make("CartPole-v1"), Drift(), anchors=1.0, seed=0)
    plain.reset(seed=0)
    plain.step(1)
    assert plain.stats()["cost/executions"] == 1
    assert plain.stats()["cost/real_wall_s"] > 0
    assert "cost/real_cpu_s" not in plain.stats()
    assert "real_cpu_s" not in plain.last_cost
    resumed = WorldModelWrapper(gym.make("CartPole-v1"), Drift(), anchors=0.0, seed=0)
    while plain.engine.runs_for_real(0):
        plain.step(1)
    resumed.load_state_dict(plain.state_dict())
    assert "cost/real_cpu_s" not in resumed.stats()
    bandit = Bandit()
    envs = WorldModelVectorEnv(bandit, fitted(bandit), num_envs=2, anchors=1.0, autoreset_mode=AutoresetMode.SAME_STEP, seed=0)
    envs.reset(seed=0)
    envs.step(np.ones((2, 2), np.int64))
    assert envs.stats()["cost/real_cpu_s"] >= 0.0
    for each in (plain, resumed, envs):
        each.close()
