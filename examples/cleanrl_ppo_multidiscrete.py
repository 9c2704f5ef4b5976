"""PPO for MultiDiscrete actions, in CleanRL's manner: one file, on AutoResearchDesign in a world model with real anchors.

It is any PPO of that kind, plus the lines marked "world model", which use what ``info`` says of a step:

    weight        how much its advantage counts
    reward_valid  whether its reward is known: if not, its episode so far is left out of the loss
    pair          the number of an anchor that runs in the background, whose truth comes late and rewrites the reward

and the line marked "Gymnasium 1": where an episode was cut, the value of what it was cut at (``final_obs``) goes on.

    python examples/cleanrl_ppo_multidiscrete.py --task diabetes --seed 1
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
from wmrl_gym.integrations.arrays import LateTruths, known_to_the_end
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import diagnostics, step_info


@dataclass(frozen=True)
class Args:
    task: str = "diabetes"
    seed: int = 1
    total_timesteps: int = 6_144
    num_envs: int = 32
    num_steps: int = 6  # a multiple of an episode's turns, so that rollouts hold whole episodes
    anchors: float = 0.05  # share of the episodes that are executed
    warmup: int = 32  # random designs that the model is first fitted on
    learning_rate: float = 2.5e-3
    gamma: float = 1.0
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.003
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    evaluation_episodes: int = 32


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, inputs: int, nvec: Sequence[int]) -> None:
        super().__init__()
        self.nvec = list(nvec)
        self.critic = nn.Sequential(layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), 1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, sum(nvec)), 0.01))

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x).flatten()

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = [Categorical(logits=logits) for logits in self.actor(x).split(self.nvec, dim=1)]
        if action is None:
            action = torch.stack([part.sample() for part in parts], dim=1)
        log_prob = torch.stack([part.log_prob(action[:, at]) for at, part in enumerate(parts)]).sum(0)
        return action, log_prob, torch.stack([part.entropy() for part in parts]).sum(0), self.get_value(x)


def make_envs(args: Args) -> Any:
    return gym.make_vec(  # this call is all that differs from PPO on real environments
        "wmrl/AutoResearchDesign-v0",
        num_envs=args.num_envs,
        task=args.task,
        world_model=OutcomeModel(encoder="none", seed=args.seed),
        preset="recommended",
        anchors=args.anchors,
        anchor_mode="background",  # anchors run while the agent goes on
        late=True,  # and their truths are joined below
        warmup=args.warmup,
        max_real=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def train(args: Args) -> dict[str, float]:
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    envs = make_envs(args)
    late = LateTruths(envs)  # world model
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.nvec.tolist())
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    steps, shape = args.num_steps, (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions = torch.zeros((*shape, len(agent.nvec)), dtype=torch.long)
    logprobs, values = torch.zeros(shape), torch.zeros(shape)
    rewards, weights, goes_on = np.zeros(shape), np.ones(shape), np.zeros(shape)
    ends, valid, pairs = np.zeros(shape, bool), np.ones(shape, bool), np.full(shape, -1)
    learnt = left_out = 0

    next_obs, _ = envs.reset(seed=args.seed)
    next_obs = torch.as_tensor(next_obs)
    before = evaluate(agent, args)
    for _ in track(range(args.total_timesteps // (steps * args.num_envs)), description="PPO"):
        for step in range(steps):
            obs[step] = next_obs
            with torch.no_grad():
                actions[step], logprobs[step], _, values[step] = agent.get_action_and_value(next_obs)
            new, rewards[step], terminated, truncated, infos = envs.step(actions[step].numpy())
            goes_on[step] = 0.0
            ends[step] = terminated | truncated
            info = step_info(infos, ends[step])  # of ended steps too, which are in final_info
            weights[step], valid[step] = info["weight"], info["reward_valid"]  # world model
            pairs[step] = np.where(np.isfinite(info["real_reward"]), -1, info["pair"])  # world model: those still to come
            for slot in np.flatnonzero(truncated & ~terminated):  # Gymnasium 1
                with torch.no_grad():
                    final = torch.as_tensor(infos["final_obs"][slot])[None]
                    goes_on[step, slot] = args.gamma * float(agent.get_value(final))
            next_obs = torch.as_tensor(new)
        late.join(rewards, valid, pairs=pairs)  # world model

        with torch.no_grad():  # generalised advantage estimation
            advantages, last = torch.zeros(shape), torch.zeros(args.num_envs)
            next_value, same_episode = agent.get_value(next_obs), torch.as_tensor(~ends, dtype=torch.float32)
            paid = torch.as_tensor(rewards + goes_on, dtype=torch.float32)
            for step in reversed(range(steps)):
                delta = paid[step] + args.gamma * next_value * same_episode[step] - values[step]
                advantages[step] = last = delta + args.gamma * args.gae_lambda * same_episode[step] * last
                next_value = values[step]
            returns = advantages + values
        advantages = advantages * torch.as_tensor(weights, dtype=torch.float32)  # world model
        usable = np.flatnonzero(known_to_the_end(valid, ends))  # world model
        learnt, left_out = learnt + len(usable), left_out + valid.size - len(usable)
        if len(usable) < args.num_minibatches:
            continue

        flat = (obs.flatten(0, 1), actions.flatten(0, 1), logprobs.flatten(), advantages.flatten(), returns.flatten())
        for _ in range(args.update_epochs):
            for index in np.array_split(rng.permutation(usable), args.num_minibatches):
                loss = ppo_loss(agent, args, *(each[index] for each in flat))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
    said = diagnostics(envs)
    envs.close()
    counts = {"executions": said["cost/executions"], "imagined": said["cost/imagined"], "learnt": learnt, "left_out": left_out}
    return {"before": before, "after": evaluate(agent, args), "arrived": late.arrived, **counts}


def ppo_loss(agent: Agent, args: Args, x: Any, action: Any, old: Any, advantage: Any, returned: Any) -> torch.Tensor:
    _, log_prob, entropy, value = agent.get_action_and_value(x, action)
    ratio = (log_prob - old).exp()
    # Scaled and not centred: an advantage that is 0 by its weight stays 0.
    advantage = advantage / (advantage.square().mean().sqrt() + 1e-8)
    policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)).mean()
    return policy - args.ent_coef * entropy.mean() + args.vf_coef * 0.5 * (value - returned).square().mean()


def evaluate(agent: Agent, args: Args) -> float:
    """Mean reward of the agent's episodes, really executed."""
    envs = gym.make_vec("wmrl/AutoResearchDesign-v0", num_envs=args.evaluation_episodes, task=args.task, max_real=2)
    observation, _ = envs.reset(seed=1)
    total, known, over = (
        np.zeros(args.evaluation_episodes),
        np.ones(args.evaluation_episodes, bool),
        np.zeros(args.evaluation_episodes, bool),
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        while not over.all():
            with torch.no_grad():
                action, *_ = agent.get_action_and_value(torch.as_tensor(observation))
            observation, reward, terminated, truncated, info = envs.step(action.numpy())
            total += np.where(over, 0.0, reward)
            known &= info["reward_valid"] | over
            over |= terminated | truncated
    envs.close()
    return float(total[known].mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        parser.add_argument(name, type=type(default), default=default, help="(default: %(default)s)")
    said = train(Args(**vars(parser.parse_args(argv))))
    print(f"mean reward, really executed: {said['before']:.3f} untrained, {said['after']:.3f} trained")
    print(f"{said['imagined']:,.0f} imagined steps, {said['executions']:,.0f} executed; {said['left_out']:,.0f} left out")
    return said


if __name__ == "__main__":
    main()
