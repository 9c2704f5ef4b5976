"""What it costs to learn from N real steps as they arrive, 32 at a time: part of ``python -m benchmarks.world_models``.

``EnsembleDynamics`` with its defaults learns steps of Pendulum; ``OutcomeModel`` learns designs of the embedded tasks, whose
outcomes are made up (a smooth function of the features, with noise), since only its own time is measured here. CPU seconds of all
updates together, one thread. Both refit when a share of what they know is new, so that the whole may grow as N log N: the last
column is a model's growth from one row to the next over that of N log N, and the bar is that it stays below 1.5.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from time import process_time

import gymnasium as gym
import numpy as np
from rich.table import Table

from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.autoresearch.rules import RUNTIME_ERROR, VALID
from wmrl_gym.factored import Outcome
from wmrl_gym.world_models import EnsembleDynamics, Interface, OutcomeModel

SIZES = (512, 1024, 2048, 4096, 8192)
EVERY = 32
BAR = 1.5


def pendulum(n: int) -> tuple[Interface, Transitions]:
    """``n`` steps of random actions."""
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    before, actions, rewards, after = [], [], [], []
    for _ in range(n):
        action = env.action_space.sample()
        following, reward, _, truncated, _ = env.step(action)
        before.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        after.append(following)
        observation = env.reset()[0] if truncated else following
    no = np.zeros(n, bool)
    steps = Transitions(
        np.array(before), np.array(actions), np.array(rewards), np.array(after), no, no, ~no, np.zeros(n, np.int64)
    )
    return Interface(env.observation_space, env.action_space), steps


def designs(n: int) -> tuple[Interface, Transitions]:
    """``n`` designs of the embedded tasks, with made-up outcomes."""
    factored, rng = AutoResearchDesign(), np.random.default_rng(0)
    observation, info = factored.start(np.arange(n))
    factored.action_space.seed(0)
    actions = np.stack([factored.action_space.sample() for _ in range(n)])
    attempt = factored.attempt(factored.begin(observation, info), actions)
    x = factored.features(attempt).astype(np.float64)
    quality = x @ rng.standard_normal(x.shape[1]) + np.square(x @ rng.standard_normal(x.shape[1]))
    value = 1 / (1 + np.exp(-(quality - quality.mean()) / quality.std())) * 0.9 + 0.1 * rng.random(n)
    fails = x @ rng.standard_normal(x.shape[1]) + rng.standard_normal(n) > 1.5
    value[fails] = factored.status_values[RUNTIME_ERROR]
    status, no, zeros = np.where(fails, RUNTIME_ERROR, VALID), np.zeros(n, bool), np.zeros(n)
    outcome = Outcome(status, value, value, np.full(n, "", object), ~no, zeros, zeros)
    steps = Transitions(observation, actions, value, observation, ~no, no, ~no, info["context"], attempt, outcome)
    return Interface(factored.observation_space, factored.action_space, factored.reward_range, factored), steps


def costs(model: EnsembleDynamics | OutcomeModel, interface: Interface, steps: Transitions) -> dict[str, dict[str, float]]:
    """CPU seconds and fits by how many steps were learnt."""
    model.bind(interface)
    rng, spent, fits, end = np.random.default_rng(0), 0.0, 0, 0
    rows: dict[str, dict[str, float]] = {}
    for start in range(0, len(steps), EVERY):
        new = batch.take(steps, np.arange(start, min(start + EVERY, len(steps))))
        began = process_time()
        model.update(new, rng)
        spent += process_time() - began
        fits, end = fits + (model.span.end != end), model.span.end
        if start + EVERY in SIZES:
            rows[str(start + EVERY)] = {"cpu_s": spent, "fits": fits}
    for less, more in pairwise(SIZES):
        if str(more) in rows:
            growth = rows[str(more)]["cpu_s"] / rows[str(less)]["cpu_s"]
            rows[str(more)]["growth_by_n_log_n"] = growth / (more * log(more) / (less * log(less)))
    return rows


def measure(largest: int = SIZES[-1]) -> dict[str, dict[str, dict[str, float]]]:
    """The costs of both models, up to ``largest`` steps."""
    return {
        "EnsembleDynamics": costs(EnsembleDynamics(), *pendulum(largest)),
        "OutcomeModel": costs(OutcomeModel(encoder="none"), *designs(largest)),
    }


def misses(results: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """The models whose cost grows faster than the bar allows, each in a sentence; noise counts as growth, so from 2,048 on."""
    return [
        f"{name}: from {int(size) // 2:,} to {int(size):,} steps its cost grew {row['growth_by_n_log_n']:.2f} times as N log N"
        for name, rows in results.items()
        for size, row in rows.items()
        if int(size) >= 2048 and row["growth_by_n_log_n"] > BAR
    ]


def table(results: dict[str, dict[str, dict[str, float]]]) -> Table:
    """The results, for people."""
    shown = Table(title="learning N steps as they arrive")
    for heading in ("model", "N", "fits", "CPU s", "us a step", "growth / N log N"):
        shown.add_column(heading, justify="left" if heading == "model" else "right")
    for name, rows in results.items():
        for size, row in rows.items():
            each = f"{1e6 * row['cpu_s'] / int(size):,.0f}"
            growth = f"{row['growth_by_n_log_n']:.2f}" if "growth_by_n_log_n" in row else ""
            shown.add_row(name, f"{int(size):,}", f"{row['fits']:.0f}", f"{row['cpu_s']:.2f}", each, growth)
    return shown
