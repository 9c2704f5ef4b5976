"""Anchors behind imagined episodes: crashes, resuming, and the order of arrival."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.bandit import Bandit
from tests.exploitable import Spiked
from wmrl_gym.wrappers.vector import OnlineDebiasing, WorldModelVectorEnv

SAME = AutoresetMode.SAME_STEP


def background(bandit: Bandit, **options: Any) -> WorldModelVectorEnv:
    settings: dict[str, Any] = {"num_envs": 4, "anchors": 1.0, "update_every": 0, "autoreset_mode": SAME, "seed": 0}
    model = Spiked(bandit, noise=0.0)
    return WorldModelVectorEnv(bandit, model, anchor_mode="background", **(settings | options))


def actions(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1, 3, (count, 4, 2))


class Held(Bandit):
    """Executes nothing until it is let go."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.go = threading.Event()

    def execute(self, attempt: Any) -> Any:
        if threading.current_thread().name.startswith("wmrl-real"):
            assert self.go.wait(60)
        return super().execute(attempt)


def test_a_pool_that_dies_loses_its_anchors_and_nothing_else() -> None:
    class Dead(Bandit):
        """Its executor is gone from the third execution on."""

        def execute(self, attempt: Any) -> Any:
            if threading.current_thread().name.startswith("wmrl-real") and self.executed >= 2:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().execute(attempt)

    bandit = Dead(max_turns=1)
    envs = background(bandit)
    stack = OnlineDebiasing(envs)
    stack.reset(seed=0)

    def play() -> None:
        for each in actions(8):
            _, reward, *_ = stack.step(each)
            assert np.isfinite(reward).all()
            envs.engine.wait(60)

    with pytest.warns(UserWarning, match="a background anchor was lost and counts as unknown"):
        play()
    assert envs.engine.stream.added == 2
    assert envs.engine.unknown == 8 * 4 - 2
    assert stack.stats()["debias/pairs"] == 2
    stack.close()


def test_runs_in_flight_are_run_again_after_resuming_and_tell_the_same() -> None:
    held = Held(max_turns=2)
    envs = background(held, max_real=2)
    stack = OnlineDebiasing(envs)
    stack.reset(seed=5)
    for each in actions(7):
        stack.step(each)
    saved = envs.state_dict(), stack.state_dict()
    state = saved[0]["engine"]
    assert state["episodes"]["counters"]["next"] == 16
    assert len(state["unfinished"]) == 12  # not one has finished
    assert len(state["recorder"]["recorded"]) == 4  # and four more are under way
    held.go.set()

    resumed_bandit = Bandit(max_turns=2)
    resumed_envs = background(resumed_bandit, max_real=2)
    resumed = OnlineDebiasing(resumed_envs)
    resumed_envs.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for both in ((envs, stack), (resumed_envs, resumed)):
        for each in actions(9, seed=1):
            both[1].step(each)
        assert both[0].engine.wait(60)
        both[1].step(actions(1)[0])
    streams = [each.engine.stream.since(0)[0] for each in (envs, resumed_envs)]
    order = [np.argsort(pairs.pair) for pairs in streams]
    for name in ("pair", "predicted", "real", "episode", "step"):
        first, second = (getattr(pairs, name)[rows] for pairs, rows in zip(streams, order, strict=True))
        np.testing.assert_array_equal(first, second)
    x = np.linspace(0, 1, 20)
    np.testing.assert_allclose(stack.correction.calibration.predict(x), resumed.correction.calibration.predict(x), atol=1e-12)
    stack.close()
    resumed.close()


def test_the_fit_is_the_same_in_whatever_order_executions_finish() -> None:
    class Shuffled(Bandit):
        """Lets its executions go in an order of its own."""

        def __init__(self, order: list[int]) -> None:
            super().__init__(max_turns=1)
            self.order, self.turn = order, threading.Condition()
            self.begun, self.let_go = 0, 0

        def execute(self, attempt: Any) -> Any:
            if not threading.current_thread().name.startswith("wmrl-real"):
                return super().execute(attempt)
            with self.turn:
                own, self.begun = self.begun, self.begun + 1
                self.turn.notify_all()
                assert self.turn.wait_for(lambda: self.begun == 8 and self.order[self.let_go % 8] == own, timeout=60)
                self.let_go += 1
                self.turn.notify_all()
            return super().execute(attempt)

    fits = []
    for order in (list(range(8)), [7, 2, 5, 0, 3, 6, 1, 4]):
        envs = background(Shuffled(order), max_real=8)
        stack = OnlineDebiasing(envs)
        stack.reset(seed=0)
        for each in actions(2):
            stack.step(each)
        assert envs.engine.wait(60)
        stack.correction.learn()
        fits.append(stack.correction.calibration.predict(np.linspace(0, 1, 30)))
        assert envs.engine.stream.added == 8
        stack.close()
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-12)
