"""A trainer that forms its own group advantages (GRPO's kind) on AutoResearchDesign, in a world model with real anchors.

Each step draws a few questions (tasks), answers each eight times with one policy, and compares the answers of a question with
each other. Most answers are paid by the world model; single ones among them run for real. What is then done with both is one
line:

    fused     weights that adapt to the noise and the bias that were measured (``FusedAdvantages``)
    residual  calibrated predictions plus what each anchor's truth says against its own (``residual_advantages``)
    grpo      calibrated predictions, and truths in their place where there are some (``grpo``)

    python examples/group_advantages.py --advantages fused --seed 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rich.progress import track

from wmrl_gym.corrections import Advantages, FusedAdvantages, grpo, residual_advantages
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.factored_env import FactoredVectorEnv
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.vector import OnlineDebiasing, WorldModelVectorEnv


@dataclass(frozen=True)
class Config:
    advantages: str = "fused"  # or residual, or grpo
    tasks: str = "diabetes,breast-cancer,cars-mpg"
    seed: int = 0
    steps: int = 60
    questions: int = 8  # groups a step
    group_size: int = 8  # answers to each question
    anchors: float = 0.05  # share of the answers that are executed
    warmup: int = 48  # random designs that the model is first fitted on
    learning_rate: float = 0.02
    evaluation_episodes: int = 48


class Policy(torch.nn.Module):
    """Independent choices for the slots of a design, given what is known of the task."""

    def __init__(self, inputs: int, choices: Sequence[int]) -> None:
        super().__init__()
        self.choices = list(choices)
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.Tanh(), torch.nn.Linear(32, sum(choices)))
        torch.nn.init.zeros_(self.net[-1].weight)  # all designs are equally likely at first

    def slots(self, observation: Any) -> list[torch.distributions.Categorical]:
        logits = self.net(torch.as_tensor(observation)).split(self.choices, dim=1)
        return [torch.distributions.Categorical(logits=each) for each in logits]

    def log_prob(self, observation: Any, action: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of whole designs: shape (B,)."""
        return torch.stack([slot.log_prob(action[:, at]) for at, slot in enumerate(self.slots(observation))]).sum(0)


def sample(policy: Policy, observation: Any, generator: torch.Generator) -> torch.Tensor:
    with torch.no_grad():
        drawn = [torch.multinomial(slot.probs, 1, generator=generator) for slot in policy.slots(observation)]
    return torch.cat(drawn, dim=1)


def train(config: Config) -> dict[str, float]:
    """Train, and grade the untrained and the trained policy by real execution."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    rng, generator = np.random.default_rng(config.seed), torch.Generator().manual_seed(config.seed)
    n = config.questions * config.group_size
    designs = AutoResearchDesign(config.tasks.split(","), max_turns=1, workers=2)
    imagined = WorldModelVectorEnv(
        designs,
        OutcomeModel(encoder="none", seed=config.seed),
        num_envs=n,
        max_real=2,
        anchors=config.anchors,
        warmup=config.warmup,
        update_every=16,
        autoreset_mode=AutoresetMode.DISABLED,
        seed=config.seed,
    )
    envs = OnlineDebiasing(imagined)
    policy = Policy(designs.observation_space.shape[0], designs.action_space.nvec.tolist())
    optimiser = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
    fused = FusedAdvantages()
    group = np.repeat(np.arange(config.questions), config.group_size)
    envs.reset(seed=config.seed)  # begins the run; the first one fits the model
    before = evaluate(policy, config)
    for _ in track(range(config.steps), description=config.advantages):
        # The members of a group answer the same question: they start from the same seed.
        observation, _ = envs.reset(seed=np.repeat(rng.integers(2**31, size=config.questions), config.group_size).tolist())
        action = sample(policy, observation, generator)
        *_, info = envs.step(action.numpy())
        advantage = form(config, fused, info, group)
        log_prob = policy.log_prob(observation, action)
        if config.advantages == "fused":
            # How bias shows: the gradients that each prediction, and the residual, would give.
            probes = torch.as_tensor(fused.probes(), dtype=torch.float32)
            rows = [
                torch.autograd.grad((probe * log_prob).sum(), list(policy.parameters()), retain_graph=True) for probe in probes
            ]
            fused.update_gradients([torch.cat([part.flatten() for part in row]).numpy() for row in rows])
        mask = torch.as_tensor(advantage.mask)
        loss = -(torch.as_tensor(advantage.value, dtype=torch.float32) * log_prob)[mask].sum() / max(int(mask.sum()), 1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    said = diagnostics(envs)
    envs.close()
    executed = {"executions": said["cost/executions"], "imagined": said["cost/imagined"], "kappa": fused.kappa}
    return {"before": before, "after": evaluate(policy, config), **executed}


def form(config: Config, fused: FusedAdvantages, info: dict[str, Any], group: np.ndarray[Any, Any]) -> Advantages:
    """One step's advantages, from predictions of before its own pairs."""
    calibrated, real, valid = info["calibrated_reward"], info["real_reward"], info["reward_valid"]
    if config.advantages == "fused":
        raw, chance = [info["wm_reward"]], info["propensity"]  # f flattens where x is noisy; the raw x does not
        return fused.advantages(calibrated, real, group, anchor=info["anchor"], more=raw, propensity=chance, valid=valid)
    if config.advantages == "residual":
        noise, anchored = float(info["residual_var"][0]), {"anchor": info["anchor"], "propensity": info["propensity"]}
        return residual_advantages(calibrated, real, group, residual_var=noise, valid=valid, **anchored)
    return grpo(np.where(np.isfinite(real), real, calibrated), group, valid=valid)


def evaluate(policy: Policy, config: Config) -> float:
    """Mean ladder reward of what the policy samples, really executed."""
    generator = torch.Generator().manual_seed(1)
    designs = AutoResearchDesign(config.tasks.split(","), max_turns=1, workers=2)
    envs = FactoredVectorEnv(designs, num_envs=config.evaluation_episodes, max_real=2)
    observation, _ = envs.reset(seed=1)
    _, reward, *_, info = envs.step(sample(policy, observation, generator).numpy())
    envs.close()
    return float(reward[info["reward_valid"]].mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        parser.add_argument(name, type=type(default), default=default, help="(default: %(default)s)")
    config = Config(**vars(parser.parse_args(argv)))
    if config.advantages not in ("fused", "residual", "grpo"):
        parser.error(f"--advantages must be fused, residual or grpo, got {config.advantages!r}")
    said = train(config)
    print(
        f"mean ladder reward, really executed: {said['before']:.3f} untrained, {said['after']:.3f} trained ({config.advantages})"
    )
    print(f"{said['imagined']:,.0f} imagined answers, {said['executions']:,.0f} executed; kappa at the end {said['kappa']:.2f}")
    return said


if __name__ == "__main__":
    main()
