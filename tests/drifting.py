"""A world model that is wrong in a known way, a fitted one, and small environments that count."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.bandit import Bandit
from wmrl_gym.world_models import OutcomeModel, Prediction, WorldModel
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


class Drift(WorldModel):
    """Believes that CartPole's observation moves by ``step`` and pays ``pays``; ends where told."""

    def __init__(self, *, step: float = 0.01, pays: float = 0.5, ends: bool = False) -> None:
        self.by, self.pays, self.ends = step, pays, ends

    def begin(self, observation: Any, info: Any, rng: Any) -> Any:
        return observation

    def step(self, state: Any, action: Any, rng: Any) -> tuple[Any, Prediction]:
        n = len(state)
        after = (state + self.by).astype(np.float32)
        yes, no = np.ones(n, bool), np.zeros(n, bool)
        return after, Prediction(after, np.full(n, self.pays), np.full(n, 0.1), yes & self.ends, no, yes, yes)


class CountedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Counts real steps."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)


def fitted(bandit: Bandit, executions: int = 96) -> OutcomeModel:
    """A model that has seen random designs of the bandit."""

    model = OutcomeModel(16, encoder="none")
    WorldModelVectorEnv(bandit, model, num_envs=1, seed=0).warm_up(executions)
    return model


def run(env: gym.Env[Any, Any], episodes: int, *, seed: int = 0) -> list[tuple[float, dict[str, Any]]]:
    """The last reward and info of each episode under random actions."""
    rng = np.random.default_rng(seed)
    ends = []
    for episode in range(episodes):
        env.reset(seed=seed if episode == 0 else None)
        over = False
        while not over:
            _, reward, terminated, truncated, info = env.step(rng.integers(0, 4, 2))
            over = terminated or truncated
        ends.append((float(reward), info))
    return ends


class Inflated(OutcomeModel):
    """Overrates everything: 0.8 + 0.2 v."""

    def predict_outcomes(self, attempt: Any, context: Any, **options: Any) -> Any:
        predicted = super().predict_outcomes(attempt, context, **options)
        predicted.outcome.value[:] = 0.8 + 0.2 * predicted.outcome.value
        return predicted


def inflated(bandit: Bandit) -> Inflated:
    model = Inflated(16, encoder="none")

    WorldModelVectorEnv(bandit, model, num_envs=1, seed=0).warm_up(200)
    return model


class Counter(gym.Env[Any, Any]):
    """Pays 1 a step; ends at step ``ends`` (never: 0); reuses one array for its observations."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *, ends: int = 0, context: Any = None) -> None:
        self.ends, self.context = ends, context
        self.seen = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.seen, {} if self.context is None else {"context": self.context}

    def step(self, action: Any) -> Any:
        self.seen += 1
        return self.seen, 1.0, bool(self.ends and self.seen[0] >= self.ends), False, {}
