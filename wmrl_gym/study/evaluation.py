"""Grading policies by real execution, on fresh seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy

from wmrl_gym import batch
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.factored import Outcome
from wmrl_gym.lazy import renamed
from wmrl_gym.sandbox import Limits, Sandbox


@dataclass(frozen=True, slots=True)
class GradedEpisode:
    """One evaluation episode, really executed.

    Args:
        task: its name.
        reward: ladder reward of its best attempt.
        percentile: share of the leaderboard that the best attempt beats; 0 where none was valid.
    """

    task: str
    reward: float
    percentile: float


class RememberedDesigns(AutoResearchDesign):
    """Executes each script once. They are deterministic, many designs stand for the same script, and policies repeat theirs.

    At equal wall-clock time only evaluation remembers, since there an arm pays for what it executes in training by the time it
    takes. Where executions are counted instead, arms may share what they executed: ``asked`` counts what each one asked for.

    Args:
        path: where results are kept from run to run.
        sandbox: executes what is not known yet.
        tasks: names of tasks; None is all.
        workers: executions at once.
        max_turns: attempts in an episode.
        limits: of one execution; None is the environment's own.
    """

    def __init__(
        self,
        path: Path,
        *,
        sandbox: Sandbox,
        tasks: tuple[str, ...] | None,
        workers: int,
        max_turns: int = 3,
        limits: Limits | None = None,
    ) -> None:
        names = None if tasks is None else list(tasks)
        super().__init__(names, sandbox=sandbox, workers=workers, max_turns=max_turns, limits=limits)
        self.path = path
        self.asked = 0
        self.known: dict[str, dict[str, float]] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.known[entry.pop("key")] = entry

    def execute(self, attempt: Any) -> Outcome:
        """The remembered outcomes where there are some, real execution for the others."""
        rows = [self._one(batch.take(attempt, [row])) for row in range(len(attempt.task))]
        return batch.concatenate(rows)

    def _one(self, attempt: Any) -> Outcome:
        ((context, program),) = self._programs(attempt)
        key = f"{self.contexts[context]}:{hashlib.sha256(program.encode()).hexdigest()[:24]}"
        with self._lock:
            self.asked += 1
        if key not in self.known:
            outcome = super().execute(attempt)
            if outcome.known[0]:
                self._remember(key, outcome)
            return outcome
        entry, zero = self.known[key], np.zeros(1)
        status, feedback = np.array([int(entry["status"])]), np.array([""], dtype=object)
        shown = np.array([entry["shown"]])
        return Outcome(status, np.array([entry["value"]]), shown, feedback, np.ones(1, bool), zero, zero)

    def _remember(self, key: str, outcome: Outcome) -> None:
        entry = {"status": int(outcome.status[0]), "value": float(outcome.value[0]), "shown": float(outcome.shown[0])}
        with self._lock:
            self.known[key] = entry
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **entry}) + "\n")


class Evaluator:
    """Grades policies.

    Args:
        designs: the environment, remembering what it executed.
        policy_kwargs: of the policies.
    """

    def __init__(self, designs: RememberedDesigns, *, policy_kwargs: dict[str, Any]) -> None:
        self.designs = designs
        self.policy_kwargs = policy_kwargs

    def grade(
        self, weights: dict[str, torch.Tensor], *, episodes: int, seed: int, tick: Callable[[int], None] = lambda done: None
    ) -> list[GradedEpisode]:
        """Run a policy, sampling its actions, for ``episodes`` episodes of each task.

        Args:
            weights: its parameters.
            episodes: for each task.
            seed: of the actions drawn.
            tick: called after every turn with its number of steps.

        Raises:
            RuntimeError: infrastructure lost every episode.
        """
        policy = self._policy(weights)
        names = self.designs.contexts
        task = np.repeat(np.arange(len(names)), episodes)
        generator = torch.Generator().manual_seed(seed)
        reward, valid = np.zeros(len(task)), np.ones(len(task), bool)
        observation, state = self._begin(task)
        with ThreadPoolExecutor(self.designs.workers) as pool:
            for _ in range(self.designs.rules.max_turns):
                attempt = self.designs.attempt(state, sample_designs(policy, observation, generator))
                rows = list(pool.map(self.designs.execute, [batch.take(attempt, [row]) for row in range(len(task))]))
                state, step = self.designs.advance(state, attempt, batch.concatenate(rows))
                observation = step.observation
                reward = np.where(step.reward_due, step.reward, reward)
                valid &= step.reward_valid
                tick(len(task))
        if not valid.any():
            raise RuntimeError("not one evaluation episode could be graded: the sandbox is failing")
        # What infrastructure lost is unknown, and no 0.
        graded = zip(task[valid], reward[valid], strict=True)
        return [GradedEpisode(names[t], float(r), max(0.0, 2.0 * float(r) - 1.0)) for t, r in graded]

    def _begin(self, task: NDArray[np.int64]) -> tuple[Any, Any]:
        start, none = self.designs.start, np.zeros(1, np.int64)
        starts = [dict(zip(("observation", "info"), start(none, {"task": name}), strict=True)) for name in self.designs.contexts]
        chosen = batch.take(batch.concatenate(starts), task)
        return chosen["observation"], self.designs.begin(chosen["observation"], chosen["info"])

    def _policy(self, weights: dict[str, torch.Tensor]) -> ActorCriticPolicy:
        policy = ActorCriticPolicy(self.designs.observation_space, self.designs.action_space, lambda _: 0.0, **self.policy_kwargs)
        policy.load_state_dict(weights)
        return policy.eval()


def sample_designs(policy: ActorCriticPolicy, observation: NDArray[np.float32], generator: torch.Generator) -> NDArray[np.int64]:
    """Actions drawn by ``generator``: int64, shape (B, slots)."""
    with torch.no_grad():
        slots: Any = policy.get_distribution(torch.as_tensor(observation)).distribution
        drawn = [torch.multinomial(slot.probs, 1, generator=generator)[:, 0] for slot in slots]
    actions: NDArray[np.int64] = torch.stack(drawn, dim=1).numpy()
    return actions


def mean_and_error(grades: list[GradedEpisode], field: str) -> tuple[float, float]:
    """Mean over episodes, and its standard error."""
    values = np.array([asdict(grade)[field] for grade in grades])
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(values.mean()), error


__getattr__ = renamed(__name__, {"Grade": "GradedEpisode"})
