"""The method in one file: an agent learns from predicted rewards, and a few real executions keep them honest.

WMRL (arXiv 2608.12564) in numpy, scipy, torch and gymnasium; of `wmrl_gym` only the environment is used. The package has all of
this general and fast (`wmrl_gym.corrections`, docs/corrections.md). A *question* is a data set, an *answer* a pipeline for it: it
is run in a sandbox, graded on hidden data, and paid a reward in [0, 1]. That is slow, so most are only imagined. In each step:

    1. ask Q questions, and let the policy answer each G times     a *group*: the answers to one question
    2. predict every answer's reward:  x = r + bias + noise        the world model
    3. execute a random few, the anchors, each with chance p       the only truth there is: pairs (x, r)
    4. calibrate:  f(x), monotone, fitted on earlier pairs         removes the bias that is a function of x
       and delta(what was done), on what f leaves                  removes the bias that is a function of the answer
    5. form advantages inside groups, anchors counting for more    removes other bias, and noise
    6. follow the policy gradient                                  mean of A grad log pi(answer)
    7. now, and not before, fit f and delta on all pairs anew      else they had seen the truth that they are to predict

`--method contextual` does all of this, `smooth` without delta, `model` without anchors. `--method paper`: anchors are groups, f
is isotonic regression on bins (Online Debiasing), and truths replace predictions, with a weight (Inverse-Variance Denoising).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from scipy.optimize import isotonic_regression, nnls
from torch import nn

import wmrl_gym  # noqa: F401  registers wmrl/AutoResearchDesign-v0; nothing else of it is used

METHODS = ("contextual", "smooth", "paper", "model")
Array = np.ndarray  # float64 rewards and advantages, int64 questions and answers


@dataclass(frozen=True)
class Args:
    method: str = METHODS[0]
    tasks: str = "diabetes,breast-cancer,cars-mpg"  # the questions
    seed: int = 0
    steps: int = 50  # updates of the policy
    groups: int = 8  # Q, questions a step
    group_size: int = 8  # G, answers to each question
    warmup: int = 32  # random answers that are executed first, to fit the world model
    anchors: float = 0.02  # p, the share of answers that is executed (0.1 in the paper)
    kappa: float = 0.5  # not in the paper's: the share of an anchor's residual that is passed on
    learning_rate: float = 0.3
    entropy: float = 0.01  # keeps the policy from settling before the anchors have spoken
    evaluation: int = 16  # real executions that grade the policy, before and after


def execute(env: gym.Env, tasks: Sequence[str], question: Array, answer: Array) -> Array:
    """The real rewards, shape (B,); NaN where an execution was lost by no fault of its own: unknown is never 0."""
    rewards = np.full(len(question), np.nan)
    for i in range(len(question)):
        env.reset(options={"task": tasks[question[i]]})
        _, reward, _, _, info = env.step(answer[i])  # the one slow line of this file
        rewards[i] = reward if info["reward_valid"] else np.nan
    return rewards


def one_hot(sizes: Sequence[int], question: Array, answer: Array) -> Array:
    """What was done as zeros and ones: `sizes` are the numbers of questions, and of choices in each slot of an answer."""
    columns = np.column_stack([question, answer])
    return np.concatenate([np.eye(size)[columns[:, i]] for i, size in enumerate(sizes)], axis=1)


def fit_world_model(done: Array, reward: Array) -> Callable[[Array], Array]:
    """x = r + bias + noise: a small network from what was done, as zeros and ones, to the reward."""
    net = nn.Sequential(nn.Linear(done.shape[1], 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0), nn.Hardtanh(0.0, 1.0)).double()
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        ((net[:-1](torch.as_tensor(done)) - torch.as_tensor(reward)) ** 2).mean().backward()
        optimiser.step()
    return lambda done: net(torch.as_tensor(done)).detach().numpy()


# --- Calibration: the real reward to be expected of a prediction, as a function that is fitted to all pairs so far ---
# A pair is a prediction x, its truth r, its question, and what was done as zeros and ones.
Calibration = Callable[[Array, Array, Array], Array]  # of x, question and done


def fit_binned(x: Array, r: Array, question: Array, done: Array, tasks: int, min_pairs: int = 16) -> Calibration:
    """The paper's f: the mean truth in 10 bins of x, made monotone, linear in between. (The paper waits for 200 pairs.)"""
    knots = np.array([0.0, 1.0]), np.array([0.0, 1.0])  # the identity, while little is known
    cell = np.digitize(x, np.linspace(0.0, 1.0, 11)[1:-1])
    count = np.bincount(cell, minlength=10)
    filled = count > 0
    if len(x) >= min_pairs and filled.sum() >= 2:  # one bin alone shows no slope
        mean_x, mean_r = (np.bincount(cell, each, 10)[filled] / count[filled] for each in (x, r))
        knots = mean_x, isotonic_regression(mean_r, weights=count[filled]).x
    return lambda x, question, done: np.clip(np.interp(x, *knots), 0.0, 1.0)


def fit_smooth(x: Array, r: Array, question: Array, done: Array, tasks: int) -> Calibration:
    """f_q(x) = a_q + sum_j beta_j clip(12 x - j, 0, 1)  for question q, every beta_j >= 0.05 / 12.

    Monotone keeps the ranking that the model got right, and it is never flat: a group of ties would have no advantages. All
    questions share the slopes; each has an offset, shrunk to the common one by n / (n + 4). Without pairs it is the identity,
    which counts as 32 of them.
    """
    ramps, prior, pooling = 12, 32.0, 4.0
    # The ramps' mean and covariance where x is uniform. Of two ramps' product only the later one is left.
    mean = (ramps - np.arange(ramps) - 0.5) / ramps
    second = np.minimum.outer(mean, mean)
    np.fill_diagonal(second, (ramps - 1 - np.arange(ramps) + 1 / 3) / ramps)
    covariance = second - np.outer(mean, mean)

    def basis(x: Array) -> Array:
        return np.clip(ramps * x[:, None] - np.arange(ramps), 0.0, 1.0)

    # Slopes: least squares on pairs less their question's shrunken mean, and on the identity's.
    rows = np.column_stack([basis(x), r])
    which = np.eye(tasks)[question]
    sums, count = which.T @ rows, which.sum(0)
    means = sums / np.sqrt(count + pooling)[:, None]
    products = rows.T @ rows - means.T @ means
    quadratic = products[:-1, :-1] + prior * covariance
    linear = products[:-1, -1] + prior * covariance.sum(1) / ramps
    floor, root = 0.05 / ramps, np.linalg.cholesky(quadratic)
    slopes = floor + nnls(root.T, np.linalg.solve(root, linear - floor * quadratic.sum(1)))[0]
    # Offsets: what the slopes leave, on average over all pairs, then over each question's own.
    left = sums[:, -1] - sums[:, :-1] @ slopes
    common = (left.sum() + prior * (0.5 - slopes @ mean)) / (count.sum() + prior)
    offsets = common + (left - count * common) / (count + pooling)
    return lambda x, question, done: np.clip(offsets[question] + basis(x) @ slopes, 0.0, 1.0)


class Delta:
    """A Gaussian process from what was done to what b, f or x itself, leaves of the truth: zero where nothing is known.

    `share` is how much of it to believe, by what all other pairs say of each: 0 where they explain nothing that f does not.
    """

    def __init__(self, done: Array, r: Array, f: Array, b: Array) -> None:
        places, target = np.unique(done, axis=0), r - b
        span = np.ptp(places, axis=0)
        self.scale = np.where(span > 0, np.maximum(places.std(0), span / 4), np.inf)  # constant columns count nothing
        self.z = done / self.scale
        self.choose_kernel(places / self.scale, target)
        covariance = self.variance * self.kernel(self.z, self.length, self.offset)
        inverse = np.linalg.inv(covariance + self.noise * np.eye(len(r)))
        self.weights = self.variance * (inverse @ target)
        said = target - inverse @ target / np.diag(inverse)  # of each pair by all the others
        best = np.clip(said @ target / (said @ said), 0.0, 1.0) if self.variance and said.any() else 0.0
        left = (target - best * said) ** 2
        gain = (r - f) ** 2 - left
        mean, error = gain.mean(), gain.std(ddof=1) / np.sqrt(len(r))
        self.left, self.share = left.mean(), best * (1.0 - (error / mean) ** 2) if mean > error else 0.0

    def kernel(self, z: Array, length: float, offset: float) -> Array:
        return 1.0 / (1.0 + ((z[:, None] - self.z) ** 2).sum(-1) / (2.0 * length**2)) + offset

    def choose_kernel(self, places: Array, target: Array) -> None:
        """Length scale, offset, variance and noise of the largest marginal likelihood; the noise counts for 2 pairs of 0.005."""
        apart = ((places[:, None] - places) ** 2).sum(-1)[np.triu_indices(len(places), 1)]
        unit, n = np.sqrt(np.median(apart)) if len(apart) else 1.0, len(target) + 2
        best = -0.5 * n * np.log(target @ target + 0.01)
        self.length, self.offset, self.variance, self.noise = unit, 0.0, 0.0, 0.005  # no process at all
        for length, offset in [(length * unit, offset) for length in (0.25, 0.5, 1.0, 2.0) for offset in (0.1, 1.0)]:
            values, vectors = np.linalg.eigh(self.kernel(self.z, length, offset))
            for gain in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0):
                grown = 1.0 + gain * np.maximum(values, 0.0)
                rest = ((vectors.T @ target) ** 2 / grown).sum() + 0.01
                likelihood = -0.5 * (n * np.log(rest) + np.log(grown).sum())
                if likelihood > best:
                    best, self.length, self.offset = likelihood, length, offset
                    self.variance, self.noise = gain * rest / n, rest / n

    def __call__(self, done: Array) -> Array:
        return self.kernel(done / self.scale, self.length, self.offset) @ self.weights


def fit_contextual(x: Array, r: Array, question: Array, done: Array, tasks: int) -> Calibration:
    """f and what was done:  f(x) + share (b(x) + delta(done) - f(x)) + effect(done),  with b the f above, or x itself.

    Of both b, the one that predicts each pair better from all the others is taken. The effect is for what was executed before:
    the mean of what is missed there all the same, the more the less its truths differ.
    """
    f = fit_smooth(x, r, question, done, tasks)
    fx = f(x, question, done)
    both = [Delta(done, r, fx, b) for b in (fx, x)] if len(x) >= 6 else []
    delta = min(both, key=lambda each: each.left, default=None)

    def regressed(x: Array, question: Array, done: Array) -> Array:
        fx = f(x, question, done)
        return fx + delta.share * ((fx if delta is both[0] else x) + delta(done) - fx) if delta else fx

    seen, place, count = np.unique(done, axis=0, return_inverse=True, return_counts=True)
    missed = r - regressed(x, question, done)
    mean = np.bincount(place.ravel(), missed) / count
    sigma = (((missed - mean[place.ravel()]) ** 2).sum() + 0.01) / (len(x) - len(count) + 2)  # variance of one answer's truths
    tau = max((mean**2 - sigma / count).sum() / max(len(count), 1), 0.0)  # of what is missed, from answer to answer
    effect = mean * tau / (tau + sigma / count)

    return lambda x, question, done: np.clip(regressed(x, question, done) + (done[:, None] == seen).all(-1) @ effect, 0.0, 1.0)


# --- Advantages: arrays of shape (Q, G), a row a group ---
def centre(reward: Array, valid: Array) -> tuple[Array, Array, Array]:
    """Rewards less their group's mean, the group's variance, and which are used. Unknown rewards count nowhere."""
    used = valid & (valid.sum(1, keepdims=True) >= 2)  # a group of one has nothing to be compared with
    count = np.maximum(used.sum(1, keepdims=True), 1)
    centred = np.where(used, reward - np.where(used, reward, 0.0).sum(1, keepdims=True) / count, 0.0)
    return centred, (centred**2).sum(1, keepdims=True) / count, used


def grpo_advantages(reward: Array, valid: Array, weight: Array) -> Array:
    """The paper's:  A = w (r - mean) / (std + 1e-4)  inside each group."""
    centred, variance, _ = centre(reward, valid)
    return weight * centred / (np.sqrt(variance) + 1e-4)


def anchor_weight(noise: Sequence[float], warmup: int = 4) -> float:
    """The paper's weight of anchor groups:  w = clip(1 + s^2 / s_0^2, 1, 4).

    Fused best, two gradients weigh by their inverse variances. For the model's noise stands s^2, the running mean, of half-life
    64, of `noise`: var(f - r) / var(r) inside each anchor group. s_0^2 is what it was after `warmup` groups (32 in the paper).
    """
    keep = 0.5 ** (1 / 64)
    s2 = list(accumulate(noise, lambda mean, new: keep * mean + (1.0 - keep) * new))
    return 1.0 if len(s2) < warmup else float(np.clip(1.0 + s2[-1] / max(s2[warmup - 1], 1e-12), 1.0, 4.0))


def residual_advantages(f: Array, real: Array, valid: Array, p: float, kappa: float, squares: Sequence[float]) -> Array:
    """Ours:  A = [f - mean f + kappa m / p (r - f)] / sqrt(var f + s^2),  clipped at 5 root mean squares.

    m = 1 on anchors, `real` is NaN elsewhere. As E[m / p] = 1, the residual makes A right on average whatever f is, at kappa = 1.
    It comes in after centring: an anchor tells of itself alone. s^2, the mean of all (r - f)^2 so far, keeps ties small.
    """
    centred, variance, used = centre(f, valid)
    residual = np.where(np.isfinite(real), kappa / p * (real - f), 0.0)
    s2 = (8.0 * 0.02 + sum(squares)) / (8.0 + len(squares))
    advantage = np.where(used, (centred + residual) / np.sqrt(variance + s2), 0.0)
    limit = 5.0 * np.sqrt((advantage[used] ** 2).mean()) if used.any() else 0.0
    return np.clip(advantage, -limit, limit)


class Policy(nn.Module):
    """For each question, and each slot of an answer, one softmax over the choices."""

    def __init__(self, tasks: int, choices: Sequence[int]) -> None:
        super().__init__()
        self.choices, self.logits = list(choices), nn.Parameter(torch.zeros(tasks, sum(choices)))

    def forward(self, question: Array) -> list[torch.distributions.Categorical]:
        return [torch.distributions.Categorical(logits=slot) for slot in self.logits[question].split(self.choices, dim=1)]

    @torch.no_grad()
    def sample(self, question: Array) -> Array:
        return torch.stack([slot.sample() for slot in self(question)], dim=1).numpy()


def evaluate(policy: Policy, env: gym.Env, tasks: Sequence[str], count: int) -> tuple[float, float]:
    """Mean reward of fresh answers, all executed for real, and its standard error."""
    question = np.arange(count) % len(tasks)
    reward = execute(env, tasks, question, policy.sample(question))
    known = reward[np.isfinite(reward)]
    return float(known.mean()), float(known.std() / np.sqrt(max(known.size - 1, 1)))


# --- Training: the steps 1 to 7 of the head of this file ---
def train(args: Args) -> dict[str, Any]:
    torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(args.seed)
    rng, tasks = np.random.default_rng(args.seed), args.tasks.split(",")
    env = gym.make("wmrl/AutoResearchDesign-v0", task=tasks, max_turns=1)
    env.reset(seed=args.seed)
    choices = env.action_space.nvec.tolist()  # how many each slot of an answer has
    sizes, shape = [len(tasks), *choices], (args.groups, args.group_size)
    policy = Policy(len(tasks), choices)
    optimiser = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    before = evaluate(policy, env, tasks, args.evaluation)

    question, answer = rng.integers(len(tasks), size=args.warmup), rng.integers(choices, size=(args.warmup, len(choices)))
    reward, executions = execute(env, tasks, question, answer), args.warmup
    known = np.isfinite(reward)
    model = fit_world_model(one_hot(sizes, question, answer)[known], reward[known])

    fit: Callable[..., Calibration] = {"paper": fit_binned, "contextual": fit_contextual}.get(args.method, fit_smooth)
    pairs = np.zeros(0), np.zeros(0), np.zeros(0, int), np.zeros((0, sum(sizes)))
    paper, calibrate = args.method == "paper", fit(*pairs, len(tasks))
    squares: list[float] = []  # of r - f, of each anchor
    noise: list[float] = []  # of each anchor group
    for step in range(args.steps):
        question = np.repeat(rng.integers(len(tasks), size=args.groups), args.group_size)  # 1
        answer = policy.sample(question)
        done = one_hot(sizes, question, answer)
        x = model(done)  # 2
        draws = rng.random((args.groups, 1)) if paper else rng.random(shape)  # 3: whole groups, or single answers
        anchor = np.broadcast_to(draws < (0.0 if args.method == "model" else args.anchors), shape)
        executed = np.flatnonzero(anchor)
        real = np.full(shape, np.nan)
        real.flat[executed] = execute(env, tasks, question[executed], answer[executed])
        executions += len(executed)
        graded = np.isfinite(real)
        valid = graded | ~anchor  # an anchor whose grade was lost is left out

        f = calibrate(x, question, done).reshape(shape)  # 4
        if paper:  # 5
            weight = np.where(anchor, anchor_weight(noise), 1.0)
            advantage = grpo_advantages(np.where(graded, real, f), valid, weight)
        else:
            advantage = residual_advantages(f, real, valid, args.anchors, args.kappa, squares)

        slots = policy(question)  # 6
        log_prob = sum(slot.log_prob(torch.as_tensor(answer[:, i])) for i, slot in enumerate(slots))
        entropy = sum(slot.entropy() for slot in slots)
        loss = -(torch.as_tensor(advantage.ravel()) * log_prob + args.entropy * entropy).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

        squares += ((real - f)[graded] ** 2).tolist()  # 7
        new = x[graded.ravel()], real[graded], question[graded.ravel()], done[graded.ravel()]
        pairs = tuple(np.concatenate(both) for both in zip(pairs, new, strict=True))
        calibrate = fit(*pairs, len(tasks))
        left = real - calibrate(x, question, done).reshape(shape)
        for group in np.flatnonzero(graded.sum(axis=1) >= 2):
            wrong, right = left[group, graded[group]].var(), real[group, graded[group]].var()
            noise += [wrong / right] if right > 1e-9 else []  # equal truths rank nothing
        print(f"\rstep {step + 1} of {args.steps}: mean x {x.mean():.3f}, mean f {f.mean():.3f}", end="", flush=True)
    after = evaluate(policy, env, tasks, args.evaluation)
    env.close()
    imagined = args.steps * args.groups * args.group_size
    return {"before": before, "after": after, "predicted": x.mean(), "executions": executions, "imagined": imagined}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        name, default, only = f"--{field.name.replace('_', '-')}", field.default, METHODS if field.name == "method" else None
        parser.add_argument(name, type=type(default), default=default, choices=only, help="(default: %(default)s)")
    args = Args(**vars(parser.parse_args(argv)))
    began, said = time.monotonic(), train(args)
    before, after = (f"{mean:.3f} +- {error:.3f}" for mean, error in (said["before"], said["after"]))
    print(f"\n\n{args.method}, really executed: {before} untrained, {after} trained; believed: {said['predicted']:.3f}")
    print(f"{said['imagined']} imagined, {said['executions']} executed, {time.monotonic() - began:.0f} s")
    return said


if __name__ == "__main__":
    main()
