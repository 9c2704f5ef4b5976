"""The method in one file: an agent learns from predicted rewards, and a few real executions keep them honest.

WMRL (arXiv 2608.12564) in numpy, torch and gymnasium; of `wmrl_gym` only the environment is used. The package has all of this
general and fast (`wmrl_gym.corrections`, docs/corrections.md). A *question* is a data set, an *answer* a pipeline for it: it is
run in a sandbox, graded on hidden data, and paid a reward in [0, 1]. That is slow, so most are only imagined. In each step:

    1. ask Q questions, and let the policy answer each G times     a *group*: the answers to one question
    2. predict every answer's reward:  x = r + bias + noise        the world model
    3. execute a random few, the anchors, each with chance p       the only truth there is: pairs (x, r)
    4. calibrate:  f(x), monotone, fitted on earlier pairs         removes the bias that is a function of x
       and delta(what was done), on what f leaves                  removes the bias that is a function of the answer
    5. form advantages inside groups, anchors counting for more    removes other bias, and noise
    6. follow the policy gradient                                  mean of A grad log pi(answer)
    7. now, and not before, fit f on this step's pairs too         else f had seen the truth that it is to predict

`--method paper`: anchors are whole groups, f is isotonic regression on bins (Online Debiasing), and the truth of anchors replaces
their prediction and has a weight (Inverse-Variance Denoising). `--method recommended`: single answers, a smooth f, and an anchor
adds what its truth says against its own prediction. `--method contextual`: delta too. `--method model`: the world model alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import wmrl_gym  # noqa: F401  registers wmrl/AutoResearchDesign-v0; nothing else of it is used

METHODS = ("recommended", "contextual", "paper", "model")
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
    kappa: float = 0.5  # recommended: the share of an anchor's residual that is passed on
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


def kernel(a: Array, b: Array, length: float) -> Array:
    return 1.0 / (1.0 + ((a[:, None] - b) ** 2).sum(-1) * (0.5 / length**2))


class WorldModel(nn.Module):
    """x = r + bias + noise: the mean of five small networks from (question, answer), as zeros and ones, to the reward."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes, wide = sizes, sum(sizes)
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(5))

    def forward(self, question: Array, answer: Array) -> torch.Tensor:
        inputs = torch.as_tensor(one_hot(self.sizes, question, answer), dtype=torch.float32)
        return torch.cat([net(inputs) for net in self.members], dim=1)

    def fit(self, question: Array, answer: Array, reward: Array) -> None:
        target = torch.as_tensor(reward, dtype=torch.float32)[:, None]
        optimiser = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)
        for _ in range(200):
            optimiser.zero_grad()
            ((self(question, answer) - target) ** 2).mean().backward()
            optimiser.step()

    @torch.no_grad()
    def predict(self, question: Array, answer: Array) -> Array:
        return self(question, answer).mean(1).clamp(0.0, 1.0).double().numpy()


# --- Calibration: f(x), the real reward to be expected of a prediction ---
# Monotone keeps the ranking that the model got right. Affine would do nothing: standardising inside a group cancels it.
def isotonic(values: Array, weights: Array) -> Array:
    """The non-decreasing sequence nearest to `values` in weighted squares: at i, the max-min of the means of blocks around i."""
    n, w, v = len(values), np.append(0.0, weights).cumsum(), np.append(0.0, weights * values).cumsum()
    mean = {(j, k): (v[k] - v[j]) / (w[k] - w[j]) for j in range(n) for k in range(j + 1, n + 1)}
    return np.array([max(min(mean[j, k] for k in range(i + 1, n + 1)) for j in range(i + 1)) for i in range(n)])


class BinnedIsotonic:
    """The paper's f: the mean truth in 10 bins of x, made monotone, linear in between. All questions share it."""

    def __init__(self, min_pairs: int = 200, refit_every: int = 64, window: int = 5000) -> None:
        self.min_pairs, self.refit_every, self.window = min_pairs, refit_every, window
        self.pairs, self.new = np.zeros((2, 0)), 0
        self.knots = np.array([0.0, 1.0]), np.array([0.0, 1.0])  # the identity, while little is known

    def push(self, x: Array, r: Array, question: Array, answer: Array | None = None) -> None:
        self.pairs = np.append(self.pairs, [x, r], axis=1)[:, -self.window :]  # the newest: bias drifts as the policy moves
        self.new += len(x)
        if self.pairs.shape[1] < self.min_pairs or self.new < self.refit_every:
            return
        cell = np.digitize(self.pairs[0], np.linspace(0.0, 1.0, 11)[1:-1])
        count = np.bincount(cell, minlength=10)
        filled = count > 0
        if filled.sum() >= 2:  # one bin alone shows no slope
            mean_x, mean_r = (np.bincount(cell, each, 10)[filled] / count[filled] for each in self.pairs)
            self.knots, self.new = (mean_x, isotonic(mean_r, count[filled])), 0

    def predict(self, x: Array, question: Array, answer: Array | None = None) -> Array:
        return np.clip(np.interp(x, *self.knots), 0.0, 1.0)


def nonnegative_minimum(quadratic: Array, linear: Array) -> Array:
    """The b >= 0 that minimises b'Qb / 2 - q'b: one coordinate at a time, until none moves."""
    b, moved = np.zeros(len(linear)), 1.0
    while moved > 1e-14:
        before = b.copy()
        for j in range(len(b)):
            b[j] = max(0.0, b[j] + (linear[j] - quadratic[j] @ b) / quadratic[j, j])
        moved = np.abs(b - before).max()
    return b


class SmoothMonotone:
    """The recommended f:  f_q(x) = a_q + sum_j beta_j clip(12 x - j, 0, 1)  for question q, every beta_j >= 0.05 / 12.

    All questions share the slopes; each has an offset, shrunk to the common one by n / (n + 4). It starts as the identity, which
    counts as 32 pairs. It is never flat: a group of ties would have no advantages.
    """

    def __init__(self, tasks: int, ramps: int = 12, floor: float = 0.05, prior: float = 32.0, pooling: float = 4.0) -> None:
        self.ramps, self.floor, self.prior, self.pooling = ramps, floor / ramps, prior, pooling
        # The ramps' mean and covariance where x is uniform. Of two ramps' product only the later one is left.
        self.mean = (ramps - np.arange(ramps) - 0.5) / ramps
        second = np.minimum.outer(self.mean, self.mean)
        np.fill_diagonal(second, (ramps - 1 - np.arange(ramps) + 1 / 3) / ramps)
        self.covariance = second - np.outer(self.mean, self.mean)
        # Sums of (1, ramps, r) by question, and of their products over all questions: no pair needs to be kept.
        self.sums, self.products = np.zeros((tasks, ramps + 2)), np.zeros((ramps + 2, ramps + 2))
        self.slopes, self.offsets = np.full(ramps, 1 / ramps), np.zeros(tasks)

    def basis(self, x: Array) -> Array:
        return np.clip(self.ramps * x[:, None] - np.arange(self.ramps), 0.0, 1.0)

    def push(self, x: Array, r: Array, question: Array, answer: Array | None = None) -> None:
        rows = np.column_stack([np.ones(len(x)), self.basis(x), r])
        np.add.at(self.sums, question, rows)
        self.products += rows.T @ rows
        # Slopes: least squares on pairs less their question's shrunken mean, and on the identity's.
        count = self.sums[:, 0]
        means = self.sums / np.sqrt(count + self.pooling)[:, None]
        centred = (self.products - means.T @ means)[1:-1, 1:]
        quadratic = centred[:, :-1] + self.prior * self.covariance
        linear = centred[:, -1] + self.prior * self.covariance.sum(1) / self.ramps
        self.slopes = self.floor + nonnegative_minimum(quadratic, linear - self.floor * quadratic.sum(1))
        # Offsets: what the slopes leave, on average over all pairs, then over each question's own.
        left = self.sums[:, -1] - self.sums[:, 1:-1] @ self.slopes
        common = (left.sum() + self.prior * (0.5 - self.slopes @ self.mean)) / (count.sum() + self.prior)
        self.offsets = common + (left - count * common) / (count + self.pooling)

    def predict(self, x: Array, question: Array, answer: Array | None = None) -> Array:
        return np.clip(self.offsets[question] + self.basis(x) @ self.slopes, 0.0, 1.0)


class Contextual:
    """f and what was done:  f(x) + share (b(x) + delta(question, answer) - f(x)),  with b the f above, or x itself.

    delta is a Gaussian process on r - b(x): zero where nothing is known. Of both b, the one that predicts each pair better from
    all the others is taken; share is 0 where the answers explain nothing, by the same measure, so that f alone is left. Where an
    answer was executed before, the mean of what is missed there is added, the more the less its truths differ.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.f, self.sizes, self.fit, self.chosen_at = SmoothMonotone(sizes[0]), sizes, None, 0
        self.pairs: tuple[Array, ...] = (np.zeros(0), np.zeros(0), np.zeros(0, int), np.zeros((0, sum(sizes))))

    def push(self, x: Array, r: Array, question: Array, answer: Array) -> None:
        self.f.push(x, r, question)
        new = x, r, question, one_hot(self.sizes, question, answer)
        self.pairs = tuple(np.concatenate(both) for both in zip(self.pairs, new, strict=True))
        n = len(self.pairs[0])
        if self.fit and n < self.chosen_at + self.chosen_at // 8:
            self.fit = self.fitted(self.fit["on_f"], self.fit["chosen"])
        elif n >= 6:
            self.fit, self.chosen_at = min(self.fitted(True), self.fitted(False), key=lambda fit: fit["left"]), n
        self.seen, place, count = np.unique(self.pairs[3], axis=0, return_inverse=True, return_counts=True)
        missed = self.pairs[1] - self.smooth(self.pairs[0], self.pairs[2], self.pairs[3])
        mean = np.bincount(place.ravel(), missed) / count
        sigma = (((missed - mean[place.ravel()]) ** 2).sum() + 0.01) / (n - len(count) + 2)  # variance of one answer's truths
        tau = max((mean**2 - sigma / count).mean(), 0.0)
        self.effect = mean * tau / np.maximum(tau + sigma / count, 1e-300)

    def fitted(self, on_f: bool, chosen: tuple[float, ...] | None = None) -> dict[str, Any]:
        x, r, question, z = self.pairs
        f = self.f.predict(x, question)
        target, places = r - (f if on_f else x), np.unique(z, axis=0)
        span = np.ptp(places, axis=0)
        scale = np.where(span > 0, np.maximum(places.std(0), span / 4), np.inf)
        z = z / scale
        length, variance, offset, noise = chosen = chosen or self.likeliest(places / scale, z, target)
        inverse = np.linalg.inv(variance * (kernel(z, z, length) + offset) + noise * np.eye(len(x)))
        unseen = target - inverse @ target / np.diag(inverse)  # what the others say of each pair
        best = np.clip(unseen @ target / (unseen @ unseen), 0.0, 1.0) if variance and unseen.any() else 0.0
        left = (target - best * unseen) ** 2
        gain = (r - f) ** 2 - left
        mean, error = gain.mean(), gain.std(ddof=1) / np.sqrt(len(x))
        share = best * (1.0 - (error / mean) ** 2) if best > 0 and mean > error else 0.0  # what chance does not explain
        weights = variance * (inverse @ target)
        return dict(on_f=on_f, chosen=chosen, left=left.mean(), share=share, scale=scale, z=z, weights=weights)

    def likeliest(self, places: Array, z: Array, target: Array) -> tuple[float, ...]:
        """Length scale, variance, offset and noise of the largest marginal likelihood; the noise counts for 2 pairs of 0.005."""
        apart = ((places[:, None] - places) ** 2).sum(-1)[np.triu_indices(len(places), 1)]
        unit, n = np.sqrt(np.median(apart[apart > 1e-9])) if (apart > 1e-9).any() else 1.0, len(target) + 2
        best, found = -0.5 * n * np.log(target @ target + 0.01), (unit, 0.0, 0.0, 0.005)
        for length, offset in [(length * unit, offset) for length in (0.25, 0.5, 1.0, 2.0) for offset in (0.1, 1.0)]:
            values, vectors = np.linalg.eigh(kernel(z, z, length) + offset)
            for gain in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0):
                grown = 1.0 + gain * np.maximum(values, 0.0)
                rest = ((vectors.T @ target) ** 2 / grown).sum() + 0.01
                likelihood = -0.5 * (n * np.log(rest) + np.log(grown).sum())
                if likelihood > best:
                    best, found = likelihood, (length, gain * rest / n, offset, rest / n)
        return found

    def smooth(self, x: Array, question: Array, z: Array) -> Array:
        f, fit = self.f.predict(x, question), self.fit
        if not fit or not fit["share"]:
            return f
        near = kernel(z / fit["scale"], fit["z"], fit["chosen"][0]) + fit["chosen"][2]
        return f + fit["share"] * ((f if fit["on_f"] else x) + near @ fit["weights"] - f)

    def predict(self, x: Array, question: Array, answer: Array) -> Array:
        z = one_hot(self.sizes, question, answer)
        said = self.smooth(x, question, z)
        if len(self.pairs[0]):
            said = said + (z[:, None] == self.seen).all(-1) @ self.effect
        return np.clip(said, 0.0, 1.0)


# --- Advantages: arrays of shape (Q, G), a row a group ---
def centre(reward: Array, valid: Array) -> tuple[Array, Array, Array]:
    """Rewards less their group's mean, the group's variance, and which are used. Unknown rewards count nowhere."""
    used = valid & (valid.sum(1, keepdims=True) >= 2)  # a group of one has nothing to be compared with
    count = np.maximum(used.sum(1, keepdims=True), 1)
    centred = np.where(used, reward - np.where(used, reward, 0.0).sum(1, keepdims=True) / count, 0.0)
    return centred, (centred**2).sum(1, keepdims=True) / count, used


def grpo_advantages(reward: Array, valid: Array, weight: Array, eps: float = 1e-4) -> Array:
    """The paper's:  A = w (r - mean) / (std + eps)  inside each group."""
    centred, variance, _ = centre(reward, valid)
    return weight * centred / (np.sqrt(variance) + eps)


@dataclass
class AnchorWeight:
    """The paper's weight of anchor groups:  w = clip(1 + c s^2, 1, 4).

    Fused best, two gradients weigh by their inverse variances. For the model's noise stands s^2, the mean of var(f - r) / var(r)
    inside anchor groups, of half-life 64. c is set once, so that w = 2 after `warmup` groups; as s^2 falls, w does.
    """

    warmup: int = 32
    s2: float = 0.0
    seen: int = 0
    c: float = 0.0

    def weight(self) -> float:
        return float(np.clip(1.0 + self.c * self.s2, 1.0, 4.0))

    def update(self, f: Array, r: Array) -> None:
        """Take in one group: f from *after* its pairs were pushed, and the truth, shape (n,) each."""
        if len(r) < 2 or r.var() < 1e-9:  # nothing to rank
            return
        keep = 0.5 ** (1 / 64) if self.seen else 0.0
        self.s2, self.seen = keep * self.s2 + (1.0 - keep) * (f - r).var() / r.var(), self.seen + 1
        if self.c == 0.0 and self.seen >= self.warmup and self.s2 > 1e-12:
            self.c = 1.0 / self.s2


def residual_advantages(f: Array, real: Array, valid: Array, propensity: float, residual_var: float, kappa: float) -> Array:
    """The recommended ones:  A = [f - mean f + kappa m / p (r - f)] / sqrt(var f + s^2),  clipped at 5 root mean squares.

    m = 1 on anchors, `real` is NaN elsewhere. As E[m / p] = 1, the residual makes A right on average whatever f is, at kappa = 1.
    It comes in after centring: an anchor tells of itself alone. s^2, the running mean of (r - f)^2, keeps ties small.
    """
    centred, variance, used = centre(f, valid)
    residual = np.where(np.isfinite(real), kappa / propensity * (real - f), 0.0)
    advantage = np.where(used, (centred + residual) / np.sqrt(variance + residual_var), 0.0)
    limit = 5.0 * np.sqrt((advantage[used] ** 2).mean()) if used.any() else 0.0
    return np.clip(advantage, -limit, limit)


@dataclass
class ResidualVariance:
    """s^2, a running mean of (r - f)^2 that starts at 0.02, as if from 8 pairs, and remembers some 500."""

    variance: float = 0.02
    count: float = 8.0

    def update(self, f: Array, r: Array) -> None:
        for square in (r - f) ** 2:
            self.count = min(self.count + 1.0, 500.0)
            self.variance += (square - self.variance) / self.count


class Policy(nn.Module):
    """For each question, and each slot of an answer, one softmax over the choices."""

    def __init__(self, tasks: int, choices: Sequence[int]) -> None:
        super().__init__()
        self.choices, self.logits = list(choices), nn.Parameter(torch.zeros(tasks, sum(choices)))

    def forward(self, question: Array) -> list[torch.distributions.Categorical]:
        return [torch.distributions.Categorical(logits=slot) for slot in self.logits[question].split(self.choices, dim=1)]

    @torch.no_grad()
    def sample(self, question: Array, generator: torch.Generator) -> Array:
        return torch.cat([torch.multinomial(slot.probs, 1, generator=generator) for slot in self(question)], dim=1).numpy()

    def evaluate(self, env: gym.Env, tasks: Sequence[str], count: int, seed: int) -> tuple[float, float]:
        """Mean reward of fresh answers, all executed for real, and its standard error."""
        question = np.arange(count) % len(tasks)
        reward = execute(env, tasks, question, self.sample(question, torch.Generator().manual_seed(seed)))
        known = reward[np.isfinite(reward)]
        return float(known.mean()), float(known.std() / np.sqrt(max(known.size - 1, 1)))


# --- Training: the steps 1 to 7 of the head of this file ---
def train(args: Args) -> dict[str, Any]:
    torch.set_num_threads(1)  # networks this small gain nothing from more
    rng, generator = np.random.default_rng(args.seed), torch.manual_seed(args.seed)
    tasks = args.tasks.split(",")
    env = gym.make("wmrl/AutoResearchDesign-v0", task=tasks, max_turns=1)
    env.reset(seed=args.seed)
    choices = env.action_space.nvec.tolist()  # how many each slot of an answer has
    sizes, shape = [len(tasks), *choices], (args.groups, args.group_size)
    policy, model = Policy(len(tasks), choices), WorldModel(sizes)
    optimiser = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    before = policy.evaluate(env, tasks, args.evaluation, seed=args.seed + 1)

    question, answer = rng.integers(len(tasks), size=args.warmup), rng.integers(choices, size=(args.warmup, len(choices)))
    reward, executions = execute(env, tasks, question, answer), args.warmup
    model.fit(*(each[np.isfinite(reward)] for each in (question, answer, reward)))

    paper = args.method == "paper"
    # The paper waits for 200 pairs, 64 new ones, and 32 groups, which would not come in a minute.
    makers = {"paper": lambda: BinnedIsotonic(16, 8), "contextual": lambda: Contextual(sizes)}
    calibrator = makers.get(args.method, lambda: SmoothMonotone(len(tasks)))()
    residual_var, anchor_weight = ResidualVariance(), AnchorWeight(warmup=4)
    for step in range(args.steps):
        question = np.repeat(rng.integers(len(tasks), size=args.groups), args.group_size)  # 1
        answer = policy.sample(question, generator)
        x = model.predict(question, answer)  # 2
        draws = rng.random((args.groups, 1)) if paper else rng.random(shape)  # 3: whole groups, or single answers
        anchor = np.broadcast_to(draws < (0.0 if args.method == "model" else args.anchors), shape)
        executed = np.flatnonzero(anchor)
        real = np.full(shape, np.nan)
        real.flat[executed] = execute(env, tasks, question[executed], answer[executed])
        executions += len(executed)
        graded = np.isfinite(real)
        valid = graded | ~anchor  # an anchor whose grade was lost is left out

        f = calibrator.predict(x, question, answer).reshape(shape)  # 4
        if paper:  # 5
            weight = np.where(anchor, anchor_weight.weight(), 1.0)
            advantage = grpo_advantages(np.where(graded, real, f), valid, weight)
        else:
            advantage = residual_advantages(f, real, valid, args.anchors, residual_var.variance, args.kappa)

        slots = policy(question)  # 6
        log_prob = sum(slot.log_prob(torch.as_tensor(answer[:, i])) for i, slot in enumerate(slots))
        entropy = sum(slot.entropy() for slot in slots)
        loss = -(torch.as_tensor(advantage.ravel()) * log_prob + args.entropy * entropy).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

        pairs = graded.ravel()  # 7
        residual_var.update(f[graded], real[graded])
        calibrator.push(x[pairs], real[graded], question[pairs], answer[pairs])
        later = calibrator.predict(x, question, answer).reshape(shape)
        for each in np.flatnonzero(graded.any(axis=1)):
            anchor_weight.update(later[each, graded[each]], real[each, graded[each]])
        print(f"\rstep {step + 1} of {args.steps}: mean x {x.mean():.3f}, mean f {f.mean():.3f}", end="", flush=True)
    after = policy.evaluate(env, tasks, args.evaluation, seed=args.seed + 2)
    env.close()
    return {"before": before, "after": after, "predicted": float(x.mean()), "executions": executions}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        name, default, only = f"--{field.name.replace('_', '-')}", field.default, METHODS if field.name == "method" else None
        parser.add_argument(name, type=type(default), default=default, choices=only, help="(default: %(default)s)")
    args = Args(**vars(parser.parse_args(argv)))
    began, said = time.monotonic(), train(args)
    before, after = (f"{mean:.3f} +- {error:.3f}" for mean, error in (said["before"], said["after"]))
    print("\n\nmean reward, really executed, of the untrained and of the trained policy; what the model believed of the latter")
    print(f"{'method':11}  {'before':15}  {'after':15}  believed  imagined  executed  seconds")
    counts = f"{args.steps * args.groups * args.group_size:8}  {said['executions']:8}  {time.monotonic() - began:7.0f}"
    print(f"{args.method:11}  {before:15}  {after:15}  {said['predicted']:8.3f}  {counts}")
    return said


if __name__ == "__main__":
    main()
