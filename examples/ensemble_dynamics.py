"""A model that learns the dynamics of an environment from its steps alone: fit it, measure it, save it, step it.

An ensemble learns Hopper's dynamics from a few thousand real steps, and is compared with real episodes that it has not seen: how
far off its rewards are, whether it knows how sure it can be, whether it knows when the hopper falls, and how errors grow the
further it looks ahead. Then the environment is stepped in it, at no real cost.

    python examples/ensemble_dynamics.py --steps 4000
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import gymnasium as gym
import torch
from rich.console import Console

from wmrl_gym.world_models import EnsembleDynamics, check_world_model, evaluate
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fit and measure an ensemble of dynamics models.")
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=4_000, help="real steps to learn from")
    parser.add_argument("--held-out", type=int, default=1_000, help="real steps to compare with")
    parser.add_argument("--gradient-steps", type=int, default=2_000, help="the most, on each network")
    parser.add_argument("--seed", type=int, default=0)
    config = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()

    # Real steps, by random actions: the model learns from them, or is compared with them.
    model = EnsembleDynamics(max_gradient_steps=config.gradient_steps)
    envs = WorldModelVectorEnv(config.env, model, num_envs=256, seed=config.seed)
    envs.warm_up(config.steps)
    never = EnsembleDynamics(min_transitions=100_000)  # does not learn: these steps are only recorded
    unseen = WorldModelVectorEnv(config.env, never, num_envs=1, seed=config.seed + 1)
    unseen.warm_up(config.held_out)
    held_out = unseen.engine.buffer.everything()
    assert held_out is not None
    evaluate(model, held_out).show(console)

    # The contract that wrappers rely on, and a round trip to disk.
    broken = check_world_model(model, gym.make(config.env))
    console.print(f"promises broken: {broken or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        again = EnsembleDynamics()
        again.load(folder)
    console.print(f"loaded a model of {again.transitions:,} transitions")

    # 256 imagined hoppers, one prediction a step for all of them.
    envs.reset(seed=config.seed)
    before = envs.last_cost
    for _ in range(20):
        envs.step(envs.action_space.sample())
    cost = envs.last_cost
    per_second = (cost["imagined"] - before["imagined"]) / (cost["predict_s"] - before["predict_s"])
    console.print(f"{per_second:,.0f} imagined steps a second; real steps so far: {cost['executions']:,.0f}")
    envs.close()
    unseen.close()


if __name__ == "__main__":
    main()
