"""GRPO in CleanRL's manner: one file, no critic, groups of episodes that share their start, in a world model with real anchors.

Each iteration runs ``num_groups`` groups of ``group_size`` episodes side by side. All members of a group start from the same
seed, an episode's return is compared with its group's, and every turn of the episode gets that advantage. What a world model
brings are the lines marked "world model", which use what ``info`` says of a step:

    weight        how much its advantage counts
    reward_valid  whether its reward is known: if not, the whole episode enters neither its group's baseline nor the loss
    pair          the number of an anchor that runs in the background, whose truth comes late and rewrites the reward

    python examples/cleanrl_grpo.py --task diabetes --seed 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rich.progress import track
from torch import nn
from torch.distributions import Categorical

import wmrl_gym  # noqa: F401 - registers the ids
from wmrl_gym.corrections import dr_grpo
from wmrl_gym.integrations.arrays import LateTruths
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import diagnostics, step_info


@dataclass(frozen=True)
class Args:
    task: str = "diabetes"
    seed: int = 1
    iterations: int = 60
    num_groups: int = 4
    group_size: int = 8
    max_turns: int = 2
    anchors: float = 0.05  # share of the episodes that are executed
    warmup: int = 32  # random designs that the model is first fitted on
    learning_rate: float = 0.01
    update_epochs: int = 2
    clip_coef: float = 0.2
    ent_coef: float = 0.003
    evaluation_episodes: int = 32


class Agent(nn.Module):
    def __init__(self, inputs: int, nvec: Sequence[int]) -> None:
        super().__init__()
        self.nvec = list(nvec)
        self.net = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, sum(nvec)))
        nn.init.zeros_(self.net[-1].weight)  # all designs are equally likely at first
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = [Categorical(logits=logits) for logits in self.net(x).split(self.nvec, dim=-1)]
        if action is None:
            action = torch.stack([part.sample() for part in parts], dim=-1)
        log_prob = torch.stack([part.log_prob(action[..., at]) for at, part in enumerate(parts)]).sum(0)
        return action, log_prob, torch.stack([part.entropy() for part in parts]).sum(0)


@dataclass(frozen=True)
class Rollout:
    """One episode in every slot; arrays of shape (max_turns, num_envs), observations and actions with one more dimension."""

    obs: torch.Tensor
    actions: torch.Tensor
    logprobs: torch.Tensor
    rewards: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]
    valid: np.ndarray[Any, Any]
    pairs: np.ndarray[Any, Any]
    alive: np.ndarray[Any, Any]  # whether the episode was still going on


def make_envs(args: Args) -> Any:
    return gym.make_vec(  # this call is all that differs from GRPO on real environments
        "wmrl/AutoResearchDesign-v0",
        num_envs=args.num_groups * args.group_size,
        task=args.task,
        max_turns=args.max_turns,
        world_model=OutcomeModel(encoder="none", seed=args.seed),
        preset="recommended",
        anchors=args.anchors,
        anchor_mode="background",  # anchors run while the agent goes on
        late=True,  # and their truths are joined below
        warmup=args.warmup,
        max_real=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def collect(envs: Any, agent: Agent, seeds: Sequence[int]) -> Rollout:
    """One episode in every slot, each from its own seed."""
    kept: list[tuple[Any, ...]] = []
    obs, _ = envs.reset(seed=list(seeds))
    alive = np.ones(envs.num_envs, bool)
    while alive.any():
        x = torch.as_tensor(obs)
        with torch.no_grad():
            action, logprob, _ = agent(x)
        obs, reward, terminated, truncated, infos = envs.step(action.numpy())
        ends = terminated | truncated
        info = step_info(infos, ends)  # of ended steps too, which are in final_info
        waits = alive & ~np.isfinite(info["real_reward"])  # world model: pairs whose truth is still to come
        pair = np.where(waits, info["pair"], -1)
        kept.append((x, action, logprob, reward, info["weight"], info["reward_valid"] | ~alive, pair, alive))
        alive = alive & ~ends
    tensors, arrays = zip(*((row[:3], row[3:]) for row in kept), strict=True)
    return Rollout(*map(torch.stack, zip(*tensors, strict=True)), *map(np.stack, zip(*arrays, strict=True)))


def train(args: Args) -> dict[str, float]:
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    envs = make_envs(args)
    late = LateTruths(envs)  # world model
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.nvec.tolist())
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    group = np.repeat(np.arange(args.num_groups), args.group_size)
    envs.reset(seed=args.seed)  # begins the run; the first reset fits the model
    before = evaluate(agent, args)
    learnt = left_out = 0
    for _ in track(range(args.iterations), description="GRPO"):
        steps = collect(envs, agent, rng.integers(2**31, size=args.num_groups)[group].tolist())
        late.join(steps.rewards, steps.valid, pairs=steps.pairs)  # world model
        returns = np.where(steps.alive, steps.rewards, 0.0).sum(axis=0)
        # Not divided by the group's standard deviation: that would blow up groups of which the model predicts nearly the same.
        advantage = dr_grpo(returns, group, valid=steps.valid.all(axis=0))  # world model: unknown returns enter no baseline
        used = torch.as_tensor(steps.alive & advantage.mask)
        learnt, left_out = learnt + int(advantage.mask.sum()), left_out + int((~advantage.mask).sum())
        if not used.any():
            continue
        value = torch.as_tensor(advantage.value * steps.weights, dtype=torch.float32)[used]  # world model
        value = value / (value.square().mean().sqrt() + 1e-8)
        for _ in range(args.update_epochs):
            _, log_prob, entropy = agent(steps.obs[used], steps.actions[used])
            ratio = (log_prob - steps.logprobs[used]).exp()
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            loss = torch.max(-value * ratio, -value * clipped).mean() - args.ent_coef * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    said = diagnostics(envs)
    envs.close()
    counts = {"executions": said["cost/executions"], "imagined": said["cost/imagined"], "learnt": learnt, "left_out": left_out}
    return {"before": before, "after": evaluate(agent, args), "arrived": late.arrived, **counts}


def evaluate(agent: Agent, args: Args) -> float:
    """Mean return of what the agent samples, really executed."""
    envs = gym.make_vec(
        "wmrl/AutoResearchDesign-v0",
        num_envs=args.evaluation_episodes,
        task=args.task,
        max_turns=args.max_turns,
        max_real=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        steps = collect(envs, agent, range(args.evaluation_episodes))
    envs.close()
    returns = np.where(steps.alive, steps.rewards, 0.0).sum(axis=0)
    return float(returns[steps.valid.all(axis=0)].mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        parser.add_argument(name, type=type(default), default=default, help="(default: %(default)s)")
    said = train(Args(**vars(parser.parse_args(argv))))
    print(f"mean return, really executed: {said['before']:.3f} untrained, {said['after']:.3f} trained")
    print(
        f"{said['imagined']:,.0f} imagined steps, {said['executions']:,.0f} executed; {said['left_out']:,.0f} episodes left out"
    )
    return said


if __name__ == "__main__":
    main()
